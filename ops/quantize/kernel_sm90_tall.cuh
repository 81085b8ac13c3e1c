// QuantizeKernel::tall: one scale for blocks of 32, 64 or 128 rows x 128.
//
// A thread block takes 128 x 128 elements or as many in another shape: a block of 128 rows, two of
// 64 or four of 32 side by side; of a small input, one block, or with GELU half of one. Half a warp
// holds 128 columns of a row, a thread all its chunks at once, so the matrix is read once (by
// halves of blocks twice, the second time from the level-2 cache).
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_tall_rows.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Where a warp works: which of the blocks side by side, and its two rows of each pass.
struct TallPlace {
  uint32_t blocks;  // side by side, a power of two
  uint32_t block;
  ChunkPlace first;
  uint32_t row_step;  // between a thread's chunks
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t warps_of_block() {
  return may_have_fewer_threads(kConfig) ? ptx::ntid_x() / 32 : kConfig.threads / 32;
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE TallPlace tall_place(const QuantizeParams& p, uint32_t tile_index) {
  static_assert(kConfig.chunk == 8 && kConfig.block == 128);
  constexpr uint32_t kLog2Lanes = 4;  // 16 lanes hold 128 columns of a row
  constexpr uint32_t kLanes = 1 << kLog2Lanes;
  const TilePlace tile = tile_place(p.grid, tile_index);
  const uint32_t log2_blocks = p.grid.log2_chunks - kLog2Lanes;
  const uint32_t warp = ptx::tid_x() / 32;
  const uint32_t lane = ptx::tid_x() % 32;
  TallPlace place;
  place.blocks = 1u << log2_blocks;
  place.block = warp & (place.blocks - 1);
  place.row_step = 2 * warps_of_block<kConfig>() >> log2_blocks;
  const uint32_t row = tile.row + (warp >> log2_blocks) * 2 + lane / kLanes;
  const uint32_t chunk = (tile.across << p.grid.log2_chunks) + place.block * kLanes + lane % kLanes;
  place.first = {tile.matrix, row, chunk * kConfig.chunk};
  return place;
}

/// What the thread block is going to encode into the level-2 cache, before it waits for whoever may
/// still be writing it: a lane does for its line, if its chunk begins that.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_tall_tile(const QuantizeParams& p) {
  static_assert(prefetches_tall(kConfig));
  if (ptx::ctaid_x() >= p.grid.tiles) return;
  constexpr uint32_t kChunkBytes = sizeof(Chunk<kConfig.input, kConfig.chunk>);
  constexpr bool kSwiglu = kConfig.transform == InputTransform::swiglu;
  // Of a line; of two where gates and ups alternate, which else are prefetched twice.
  constexpr uint32_t kLanes = ptx::kLineBytes / kChunkBytes / (kSwiglu ? 2 : 1);
  if (ptx::tid_x() % kLanes != 0) return;
  const TallPlace place = tall_place<kConfig>(p, ptx::ctaid_x());
  BLOCKSCALE_UNROLL
  for (uint32_t u = 0; u < kConfig.chunks; ++u) {
    const ChunkPlace at = below(place.first, u * place.row_step);
    if (at.row >= p.rows || at.column >= p.k) return;
    if constexpr (kSwiglu) {
      const GatedOffsets from = gated_offsets<kConfig.input, kConfig.chunk>(p, at.column);
      const uint8_t* const row = x_row_at(p, at.matrix, at.row);
      ptx::prefetch_global_l2(row + from.part[0]);
      ptx::prefetch_global_l2(row + from.part[1]);
    } else {
      ptx::prefetch_global_l2(x_at<kConfig>(p, at));
    }
  }
}

/// Bits of the largest magnitude of a warp's block, from that of each lane. Collective.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t tall_maximum(const TallPlace& place, uint32_t of_lane) {
  static_assert(kConfig.threads <= 1024 && !kConfig.persistent);
  const ptx::SharedAddress words = device::shared_base();
  const uint32_t warp = ptx::tid_x() / 32;
  const uint32_t lane = ptx::tid_x() % 32;
  const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, of_lane);
  if (lane == 0) ptx::st_shared(words + warp * 4, of_warp);
  ptx::barrier_sync_all();
  // Lane i has warp i's.
  const bool is_of_block =
      lane < warps_of_block<kConfig>() && (lane & (place.blocks - 1)) == place.block;
  const uint32_t other = is_of_block ? ptx::ld_shared<uint32_t>(words + lane * 4) : 0;
  return ptx::redux_sync_max(ptx::kFullMask, other);
}

/// A thread's part of a block of several rows.
template <QuantizeConfig kConfig>
class TallTile {
 public:
  BLOCKSCALE_DEVICE TallTile(const QuantizeParams& p, uint32_t tile)
      : p_(p), place_(tall_place<kConfig>(p, tile)), rows_(p, place_.first, place_.row_step) {
    // Each chunk exists as a whole, or lies beyond the matrix.
    const uint32_t last = place_.first.row + (kConfig.chunks - 1) * place_.row_step;
    may_hold_ = p.x.vectors && p.value_vectors && p.k % kConfig.chunk == 0 &&
                rows_share_operands<kConfig>(p, place_.first.matrix, place_.first.row, last);
  }

  /// Collective, as what follows it is.
  BLOCKSCALE_DEVICE void quantize() {
    const uint32_t amax = tall_maximum<kConfig>(place_, rows_.load(may_hold_));
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p_.amax_floor, p_.fp8_scale);
    if (ptx::tid_x() % 32 == 0 && begins_block()) store_scale_of_block(scale);
    if (may_hold_ && !scale.exceptional) {
      uint8_t* const to = codes_at<kConfig.element>(p_, place_.first);
      const int64_t step = place_.row_step * p_.value_row_stride;
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        if (!rows_.is_present(u)) continue;
        store_codes(encode_chunk<kConfig.element, kConfig.rule, false>(rows_.values(u), scale),
                    to + u * step);
      }
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        ValueChunk<kConfig> chunk;
        load_part_of<kConfig>(chunk, p_, chunk_place(u));
        store_exactly<kConfig>(p_, chunk_place(u), chunk, scale);
      }
    }
  }

 private:
  BLOCKSCALE_DEVICE ChunkPlace chunk_place(uint32_t u) const {
    return below(place_.first, u * place_.row_step);
  }

  /// Whether the warp's first row is its block's.
  BLOCKSCALE_DEVICE bool begins_block() const {
    return (place_.first.row & (p_.block_rows - 1)) == 0;
  }

  BLOCKSCALE_DEVICE void store_scale_of_block(const BlockScale& scale) const {
    const uint32_t column = place_.first.column / kConfig.block;
    if (column >= p_.scale_columns) return;
    const uint32_t stored[1] = {scale.stored};
    const uint32_t row = place_.first.row / p_.block_rows;
    store_scales_at<kConfig>(p_, place_.first.matrix, row, column, stored);
  }

  const QuantizeParams& p_;
  TallPlace place_;
  TallRows<kConfig> rows_;
  bool may_hold_;
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_tall_blocks(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) { TallTile<kConfig>(p, tile).quantize(); });
}

}  // namespace blockscale::quantize_sm90
