// QuantizeKernel::blocks and ::scaled where a thread has chunks of several rows, which share the
// operands that are fused with them.
#pragma once

#include "device/kernel.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The chunks of a warp that are left (bit u: `u` rows below `first`) after the short way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t quantize_rows_together(const QuantizeParams& p,
                                                  const ChunkPlace& first) {
  constexpr uint32_t kAll = (1u << kConfig.chunks) - 1;
  const bool together =
      p.x.vectors && p.value_vectors && p.k % kConfig.chunk == 0 &&
      rows_share_operands<kConfig>(p, first.matrix, first.row, first.row + kConfig.chunks - 1);
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

}  // namespace blockscale::quantize_sm90
