// QuantizeKernel::blocks, ::gathered and ::cast: a thread has one chunk, in many small CTAs. A warp
// whose chunks are whole and aligned, and whose blocks are ordinary, goes the short way: 16-byte
// loads and stores, and the encoding that counts its instructions (device/encode/codes.cuh). Worth
// twice the rate of plain.cuh, to which all others fall back.
#pragma once

#include "ops/quantize/kernels/plain.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale::quantizer {

/// Whether a lane of the warp has an exceptional block.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool any_exceptional(const Blocks<kConfig>& blocks) {
  bool exceptional = false;
  BLOCKSCALE_UNROLL
  for (const BlockScale& scale : blocks.scale) exceptional |= scale.exceptional;
  return ptx::vote_sync_any(ptx::kFullMask, exceptional);
}

/// Chunks of a warp, each of which is whole or lies beyond the matrix, vectors fitting. False, and
/// then no code is stored, if they must go the plain way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_fast(const QuantizeParams& p, float tensor_scale,
                                     const ChunkPlace& place, const ValueChunk<kConfig>& values,
                                     bool inside) {
  Blocks<kConfig> blocks;
  find_amaxes<kConfig>(blocks, values);
  find_scales<kConfig, false>(blocks, p, tensor_scale, place);
  if (any_exceptional<kConfig>(blocks)) return false;
  store_block_scales<kConfig>(p, place, blocks);
  if (inside) {
    encoding::store_codes(encode<kConfig, false>(values, blocks),
                          codes_at<kConfig.element>(p, place));
  }
  return true;
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_blocks(const QuantizeParams& p) {
  // Where amaxes are what is waited for, x is loaded before: it was complete when `amax` let this
  // kernel start.
  const bool follows = follows_amax(kConfig) && p.tensor_source == TensorScaleSource::amaxes;
  wait_for_turn(p, follows);
  const ChunkPlace place = chunk_of_thread<kConfig>(p);
  const bool inside = place.row < p.rows && place.column + kConfig.chunk <= p.k;
  const bool outside = place.row >= p.rows || place.column >= p.k;
  const bool vectors = p.x.vectors && p.value_vectors;
  const bool whole = vectors && ptx::vote_sync_all(ptx::kFullMask, inside || outside);
  const Extent extent = {inside ? kConfig.chunk : 0, true};
  constexpr bool kNormalizes = kConfig.fused == Fused::rms_norm;
  RawChunk<kConfig> raw;
  ValueChunk<kConfig> values;
  if (whole) {
    load_raw(raw, p, place, extent);
    if constexpr (!kNormalizes) find_values(values, raw, p, place, extent, 1);
  }
  if (follows) ptx::griddepcontrol_wait();
  const float rstd = stored_rstd<kConfig>(p, place);
  const float tensor_scale = tensor_scale_at<kConfig>(p, place);
  if (whole) {
    if constexpr (kNormalizes) find_values(values, raw, p, place, extent, rstd);
    if (quantize_fast<kConfig>(p, tensor_scale, place, values, inside)) return;
  }
  quantize_plainly<kConfig>(p, tensor_scale, place, rstd);
}

}  // namespace blockscale::quantizer
