// QuantizeKernel::tall and ::row (fp8_row) with a table: one scale for what a group of warps holds,
// blocks of 32, 64 or 128 rows x 128 or whole rows. Groups of a thread block work on tiles of their
// own, below each other, and wait for nobody else, so that some encode while others look up.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_queue.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The warps whose chunks have one scale: neighbours, a power of two.
template <QuantizeConfig kConfig>
class ScaleGroup {
  static constexpr uint32_t kWarps = kConfig.threads / 32;

 public:
  BLOCKSCALE_DEVICE explicit ScaleGroup(const QuantizeParams& p) {
    threads_ = p.block_rows << p.grid.log2_chunks;
    first_ = ptx::tid_x() / threads_ * threads_;
  }

  BLOCKSCALE_DEVICE bool is_first_thread() const { return ptx::tid_x() == first_; }

  /// Largest of a word of each of its threads, all of which call it.
  BLOCKSCALE_DEVICE uint32_t maximum(uint32_t of_thread) {
    const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, of_thread);
    if (threads_ == 32) return of_warp;
    // Who still reads the words of the call before last has not come to the barrier of the last.
    const ptx::SharedAddress words =
        device::shared_base() + (kTableSharedBytes - kQuantizeSharedBytes + turn_ * kWarps * 4);
    turn_ ^= 1;
    if (ptx::tid_x() % 32 == 0) ptx::st_shared(words + ptx::tid_x() / 32 * 4, of_warp);
    ptx::bar_sync(1 + first_ / threads_, threads_);
    const uint32_t lane = ptx::tid_x() % 32;
    const uint32_t other =
        lane < threads_ / 32 ? ptx::ld_shared<uint32_t>(words + (first_ / 32 + lane) * 4) : 0;
    return ptx::redux_sync_max(ptx::kFullMask, other);
  }

 private:
  uint32_t threads_;
  uint32_t first_;
  uint32_t turn_ = 0;
};

/// Bits of the largest magnitude. kPoison as in Largest.
template <bool kPoison, int kCount>
BLOCKSCALE_DEVICE uint32_t largest_bits(const Chunk<Format::f32, kCount>& chunk) {
  Largest<Format::f32, kPoison> largest;
  largest.fold(chunk);
  return largest.f32_bits();
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_groups(const QuantizeParams& p) {
  static_assert(kConfig.table && kConfig.rule == ScaleRule::fp8);
  ScaleGroup<kConfig> group(p);
  each_queued_tile<kConfig>(p, [&](uint32_t tile, const RawChunk<kConfig>& raw) {
    const ChunkPlace place = chunk_place<kConfig>(p.grid, tile_place(p.grid, tile));
    const ChunkState state = chunk_state<kConfig>(p, place);
    const bool idle = !ptx::vote_sync_any(ptx::kFullMask, state.inside);
    ValueChunk<kConfig> chunk;
    uint32_t amax;
    // Where a value may be missing in the table the whole group computes its values.
    for (bool computed = false;; computed = true) {
      if (state.whole && idle) {
        clear(chunk);
      } else if (state.whole && !computed) {
        chunk = look_up<kConfig>(raw, p.transform);
      } else {
        load_part_of<kConfig>(chunk, p, place);
      }
      amax = group.maximum(computed ? largest_bits<false>(chunk) : largest_bits<true>(chunk));
      if (computed || amax < kInfinityBits) break;
    }
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
    const uint32_t column = kConfig.block == 0 ? 0 : place.column / 128;
    if (group.is_first_thread() && place.row < p.rows && column < p.scale_columns) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p, place.matrix, place.row / p.block_rows, column, stored);
    }
    if (!state.whole || scale.exceptional) {
      store_exactly<kConfig>(p, place, chunk, scale);
    } else if (state.inside) {
      store_shortly<kConfig>(p, place, chunk, {{scale}});
    }
  });
}

}  // namespace blockscale::quantize_sm90
