// QuantizeKernel::blocks, ::scaled and ::maximum where a thread has chunks of several rows, which
// share the operands that are fused with them.
#pragma once

#include "device/kernel.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Whether HeldChunks may hold the chunks from `first` down.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool may_hold_rows(const QuantizeParams& p, const ChunkPlace& first) {
  return p.x.vectors && p.k % kConfig.chunk == 0 &&
         rows_share_operands<kConfig>(p, first.matrix, first.row, first.row + kConfig.chunks - 1);
}

/// The chunks of a warp that are left (bit u: `u` rows below `first`) after the short way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t quantize_rows_together(const QuantizeParams& p,
                                                  const ChunkPlace& first) {
  constexpr uint32_t kAll = (1u << kConfig.chunks) - 1;
  const bool together = p.value_vectors && may_hold_rows<kConfig>(p, first);
  if (!ptx::vote_sync_all(ptx::kFullMask, together)) return kAll;
  HeldChunks<kConfig> chunks(p, first, 1);
  chunks.load();
  const float tensor_scale = await_tensor_scale<kConfig>(p, first);
  uint32_t left = 0;
  BLOCKSCALE_UNROLL
  for (uint32_t u = 0; u < kConfig.chunks; ++u) {
    const ChunkPlace place = below(first, u);
    const ValueChunk<kConfig> chunk = chunks.values(u);
    const Units<kConfig> units = scales_of<kConfig, false>(p, tensor_scale, place, chunk);
    if (any_exceptional(units)) {
      left |= 1u << u;
    } else if (chunks.is_present(u)) {
      store_shortly<kConfig>(p, place, chunk, units);
    }
  }
  return left;
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_blocks_of_rows(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) {
    const ChunkPlace first = chunk_place<kConfig>(p.grid, tile_place(p.grid, tile));
    const uint32_t left = quantize_rows_together<kConfig>(p, first);
    if (left == 0) return;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if ((left >> u & 1) != 0) quantize_row_block<kConfig>(p, below(first, u));
    }
  });
}

/// QuantizeKernel::maximum.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_maxima_of_rows(const QuantizeParams& p) {
  const MaximumRun run = begin_maxima<kConfig>(p);
  Largest<kValueFormat<kConfig>, false> largest;
  for (uint32_t tile = run.part; tile < run.tiles; tile += p.maxima.count) {
    const ChunkPlace first =
        chunk_place<kConfig>(p.grid, tile_place(p.grid, run.matrix * run.tiles + tile));
    if (ptx::vote_sync_all(ptx::kFullMask, may_hold_rows<kConfig>(p, first))) {
      HeldChunks<kConfig> chunks(p, first, 1);
      chunks.load();
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) largest.fold(chunks.values(u));
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        ValueChunk<kConfig> chunk;
        load_part_of<kConfig>(chunk, p, below(first, u));
        largest.fold(chunk);
      }
    }
  }
  leave_maximum(p.maxima, run.matrix, run.part, largest.f32_bits());
}

}  // namespace blockscale::quantize_sm90
