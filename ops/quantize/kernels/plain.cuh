// The plain way to quantize a chunk, for any input, alignment and edge. Start reading here: load,
// amax, scale, encode, store. Kernels with scales for blocks of one row, or with scales that are
// known, fall back to it wherever their faster ways (blocks.cuh) do not apply.
//
// Neighbouring lanes share a block that is longer than a chunk, and a chunk may hold several that
// are shorter. All lanes of a warp call these functions, whether or not their chunks exist.
#pragma once

#include "device/encode/store.cuh"
#include "device/ptx/warp.h"
#include "ops/quantize/kernels/input.cuh"

namespace blockscale::quantizer {

using encoding::Amax;
using encoding::BlockScale;
using encoding::Codes;

/// The blocks of one row that a thread has a part in. A whole row's (block = 0) is no other
/// thread's business here.
template <QuantizeConfig kConfig>
struct Blocks {
  static constexpr int kCount =
      kConfig.block != 0 && kConfig.block < kConfig.chunk ? kConfig.chunk / kConfig.block : 1;
  static constexpr int kSize = kConfig.chunk / kCount;  // elements that a thread has of one
  static constexpr int kLanes = kConfig.block == 0 ? 1 : kConfig.block / kSize;

  uint32_t amax[kCount];  // f32 bits
  BlockScale scale[kCount];
};

/// Elements [i * kSize, i * kSize + kSize) of a chunk.
template <int kSize, Format kFormat, int kCount>
BLOCKSCALE_DEVICE Chunk<kFormat, kSize> part_of(const Chunk<kFormat, kCount>& chunk, int i) {
  Chunk<kFormat, kSize> part;
  constexpr int kWords = Chunk<kFormat, kSize>::kWords;
  BLOCKSCALE_UNROLL
  for (int j = 0; j < kWords; ++j) part.word[j] = chunk.word[i * kWords + j];
  return part;
}

/// The amaxes of a chunk's blocks.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_amaxes(Blocks<kConfig>& blocks, const ValueChunk<kConfig>& values) {
  using B = Blocks<kConfig>;
  // A NaN makes a block of MX or NVFP4 one, of FP8 just its own code.
  constexpr bool kPoison = kConfig.rule != ScaleRule::fp8;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < B::kCount; ++i) {
    Amax<kValueFormat<kConfig>, kPoison> amax;
    amax.fold(part_of<B::kSize>(values, i));
    BLOCKSCALE_UNROLL
    for (uint32_t lanes = 1; lanes < B::kLanes; lanes *= 2) {
      amax.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, amax.bits, lanes));
    }
    blocks.amax[i] = amax.f32_bits();
  }
}

/// Their scales, or the one of the chunk's row or tensor, which is known. kExact: for every input;
/// else where no block is exceptional.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE void find_scales(Blocks<kConfig>& blocks, const QuantizeParams& p,
                                   float tensor_scale, const ChunkPlace& place) {
  if constexpr (kConfig.kernel == QuantizeKernel::cast) {
    float scale = tensor_scale;
    if (p.given_scales && place.row < p.rows) {
      scale = encoding::load_row_scale(p.scales, place.matrix, place.row);
    }
    blocks.scale[0] = encoding::known_fp8_scale<kConfig.element>(scale, blocks.amax[0]);
  } else {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Blocks<kConfig>::kCount; ++i) {
      blocks.scale[i] = encoding::block_scale<kConfig.rule, kConfig.element, kExact>(
          blocks.amax[i], tensor_scale, p.scale_options);
    }
  }
}

/// Stores the scales of the blocks that begin in a chunk. Padding of the layout becomes 0.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_block_scales(const QuantizeParams& p, const ChunkPlace& place,
                                          const Blocks<kConfig>& blocks) {
  if constexpr (kConfig.kernel != QuantizeKernel::cast) {
    constexpr int kCount = Blocks<kConfig>::kCount;
    if (place.column % kConfig.block != 0 || place.row >= p.scales.rows) return;
    uint32_t stored[kCount];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const bool exists = place.row < p.rows && place.column + i * kConfig.block < p.k;
      stored[i] = exists ? blocks.scale[i].stored : 0u;
    }
    encoding::store_scales(p.scales, place.matrix, place.row, place.column / kConfig.block, stored);
  }
}

/// Codes of a chunk with the scales of its blocks. kExact as in find_scales.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Codes<kConfig.element, kConfig.chunk> encode(const ValueChunk<kConfig>& values,
                                                               const Blocks<kConfig>& blocks) {
  using B = Blocks<kConfig>;
  Codes<kConfig.element, kConfig.chunk> codes;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < B::kCount; ++i) {
    const auto part = encoding::encode_chunk<kConfig.element, kConfig.rule, kExact>(
        part_of<B::kSize>(values, i), blocks.scale[i]);
    constexpr int kWords = decltype(part)::kWords;
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kWords; ++j) codes.word[i * kWords + j] = part.word[j];
  }
  return codes;
}

/// Stores the codes of a chunk as far as it exists.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store(const QuantizeParams& p, const ChunkPlace& place,
                             const Codes<kConfig.element, kConfig.chunk>& codes) {
  const int32_t left = static_cast<int32_t>(p.k - place.column);
  if (place.row >= p.rows || left <= 0) return;
  uint8_t* const to = codes_at<kConfig.element>(p, place);
  if (p.value_vectors && left >= kConfig.chunk) {
    encoding::store_codes(codes, to);
  } else {
    encoding::store_code_bytes(codes, left, to);
  }
}

/// A thread's chunk, whatever it holds.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_values_plainly(const QuantizeParams& p, float tensor_scale,
                                               const ChunkPlace& place,
                                               const ValueChunk<kConfig>& values) {
  Blocks<kConfig> blocks;
  find_amaxes<kConfig>(blocks, values);
  find_scales<kConfig, true>(blocks, p, tensor_scale, place);
  store_block_scales<kConfig>(p, place, blocks);
  store<kConfig>(p, place, encode<kConfig, true>(values, blocks));
}

/// The same configuration with chunks of another size.
BLOCKSCALE_HD constexpr QuantizeConfig with_chunk(QuantizeConfig config, int chunk) {
  config.chunk = chunk;
  return config;
}

/// The same from memory, one block of the chunk after the other, which keeps few registers busy.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_plainly(const QuantizeParams& p, float tensor_scale,
                                        const ChunkPlace& place, float rstd) {
  constexpr QuantizeConfig kPart = with_chunk(kConfig, Blocks<kConfig>::kSize);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = 0; i < Blocks<kConfig>::kCount; ++i) {
    const ChunkPlace at = right_of(place, i * kPart.chunk);
    ValueChunk<kPart> values;
    load_values<kPart>(values, p, at, extent_at<kPart>(p, at), rstd);
    quantize_values_plainly<kPart>(p, tensor_scale, at, values);
  }
}

}  // namespace blockscale::quantizer
