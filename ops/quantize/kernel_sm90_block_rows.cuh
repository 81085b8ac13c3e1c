// QuantizeKernel::blocks, ::scaled and ::maximum where a thread has chunks of several rows, which
// share the operands that are fused with them.
#pragma once

#include "device/kernel.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernel_sm90_maximum.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Whether HeldChunks may hold the chunks from `first` down.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool may_hold_rows(const QuantizeParams& p, const ChunkPlace& first) {
  return p.x.vectors && p.k % kConfig.chunk == 0 &&
         rows_share_operands<kConfig>(p, first.matrix, first.row, first.row + kConfig.chunks - 1);
}

/// Where the results of a thread's chunks go, of aligned rows from `first` down.
template <QuantizeConfig kConfig>
class RowResults {
  static constexpr bool kHasBlocks = kConfig.kernel == QuantizeKernel::blocks;

 public:
  BLOCKSCALE_DEVICE RowResults(const QuantizeParams& p, const ChunkPlace& first)
      : p_(p), codes_(codes_at<kConfig.element>(p, first)) {
    if constexpr (kHasBlocks) {
      begins_block_ = first.column % kConfig.block == 0;
      scales_ = scale_offset_of(p, first.matrix, first.row, first.column / kConfig.block);
    }
  }

  /// Of the chunk u rows below, which exists.
  BLOCKSCALE_DEVICE void store(uint32_t u, const Units<kConfig>& units,
                               const Codes<kConfig.element, kConfig.chunk>& codes) const {
    if (kHasBlocks && begins_block_) {
      uint32_t stored[Units<kConfig>::kCount];
      BLOCKSCALE_UNROLL
      for (int i = 0; i < Units<kConfig>::kCount; ++i) stored[i] = units.scale[i].stored;
      store_scales_from<kConfig>(p_, scales_ + u * p_.scale_row_step, stored);
    }
    store_codes(codes, codes_ + u * p_.value_row_stride);
  }

 private:
  const QuantizeParams& p_;
  uint8_t* codes_;
  int64_t scales_ = 0;
  bool begins_block_ = false;
};

/// The scales of a chunk's blocks, or the one of its row or tensor. Nothing is stored.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE Units<kConfig> likely_scales(const QuantizeParams& p, float tensor_scale,
                                               const ChunkPlace& place,
                                               const ValueChunk<kConfig>& chunk) {
  const auto maxima = unit_maxima<kConfig, false>(chunk);
  if constexpr (kConfig.kernel == QuantizeKernel::scaled) {
    return known_scale<kConfig>(p, tensor_scale, place, maxima.bits[0]);
  } else {
    return block_scales<kConfig, false>(p, tensor_scale, maxima);
  }
}

/// A warp's chunks the short way, from `first` down. False, if some must be done (again) the exact
/// way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_rows_together(const QuantizeParams& p, const ChunkPlace& first) {
  const bool all_exist = first.row + kConfig.chunks <= p.rows && first.column < p.k;
  const bool together = p.value_vectors && all_exist && may_hold_rows<kConfig>(p, first);
  if (!ptx::vote_sync_all(ptx::kFullMask, together)) return false;
  HeldChunks<kConfig> chunks(p, first, 1);
  static_assert(SharedOperands<kConfig>::kExist);
  float tensor_scale = 1;
  chunks.load([&] {
    if constexpr (follows_maximum(kConfig)) tensor_scale = await_tensor_scale<kConfig>(p, first);
  });
  const RowResults<kConfig> results(p, first);
  // Without a branch for each row, so that what is computed of them overlaps.
  bool exceptional = false;
  BLOCKSCALE_UNROLL
  for (uint32_t u = 0; u < kConfig.chunks; ++u) {
    const ValueChunk<kConfig> chunk = chunks.values(u);
    const auto units = likely_scales<kConfig>(p, tensor_scale, below(first, u), chunk);
    BLOCKSCALE_UNROLL
    for (const BlockScale& scale : units.scale) exceptional |= scale.exceptional;
    const auto codes = encode_units<kConfig, false>(chunk, units);
    results.store(u, units, codes);
  }
  return !ptx::vote_sync_any(ptx::kFullMask, exceptional);
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_blocks_of_rows(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) {
    const ChunkPlace first = chunk_place<kConfig>(p.grid, tile_place(p.grid, tile));
    if (quantize_rows_together<kConfig>(p, first)) return;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) quantize_row_block<kConfig>(p, below(first, u));
  });
}

/// QuantizeKernel::maximum.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_maxima_of_modulated_rows(const QuantizeParams& p) {
  const TilesOfScale run = prefetch_and_await_tiles<kConfig>(p);
  Largest<kValueFormat<kConfig>, false> largest;
  for (uint32_t tile = run.part; tile < run.tiles; tile += p.maxima.count) {
    const ChunkPlace first =
        chunk_place<kConfig>(p.grid, tile_place(p.grid, run.scale * run.tiles + tile));
    HeldChunks<kConfig> chunks(p, first, 1);
    const bool may_hold = ptx::vote_sync_all(ptx::kFullMask, may_hold_rows<kConfig>(p, first));
    fold_rows(largest, chunks, may_hold, p, first, 1);
  }
  leave_maximum(p.maxima, run.scale, run.part, largest.f32_bits());
}

}  // namespace blockscale::quantize_sm90
