// QuantizeKernel::row and ::norm: thread blocks that hold whole rows, so that what depends on all
// of a row costs no second read: the scale of fp8_row, the factor of rms_norm.
//
// One to eight warps work on a row. In a *round* each of them takes a segment of 2048 elements, a
// thread 8 of every 256: the order in which rms_norm's sum is pinned. Rows that need more than one
// round are read again from L2 or memory where they are needed again.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// One tile of a row kernel: a thread's part of a row, and what it knows of it.
template <QuantizeConfig kConfig>
class RowTile {
  static constexpr bool kPoison = kConfig.rule != ScaleRule::fp8;
  using Maximum = Largest<kValueFormat<kConfig>, kPoison>;

 public:
  BLOCKSCALE_DEVICE RowTile(const QuantizeParams& p, uint32_t tile_index) : p_(p) {
    static_assert(kConfig.chunk * kConfig.chunks * 32 == kRowElementsPerWarp);
    const TilePlace tile = tile_place(p.grid, tile_index);
    const uint32_t warp = ptx::tid_x() / 32;
    warps_ = 1u << p.grid.log2_chunks;
    first_warp_ = warp & ~(warps_ - 1);
    warp_ = warp & (warps_ - 1);
    matrix_ = tile.matrix;
    row_ = tile.row + (warp >> p.grid.log2_chunks);
  }

  BLOCKSCALE_DEVICE uint32_t matrix() const { return matrix_; }

  /// fp8_row: one scale for the row.
  BLOCKSCALE_DEVICE void quantize_with_one_scale() {
    Maximum largest;
    for (round_ = 0; round_ < p_.row_rounds; ++round_) fold_round(largest);
    const uint32_t amax = row_maximum(largest.f32_bits());
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p_.amax_floor, p_.fp8_scale);
    if (warp_ == 0 && ptx::tid_x() % 32 == 0 && row_ < p_.rows) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p_, matrix_, row_, 0, stored);
    }
    for (round_ = 0; round_ < p_.row_rounds; ++round_) store_round(scale);
  }

 private:
  /// Columns between a thread's chunks.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    const uint32_t segment = round_ * warps_ + warp_;
    return {matrix_, row_,
            segment * kRowElementsPerWarp + u * kStep + ptx::tid_x() % 32 * kConfig.chunk};
  }

  BLOCKSCALE_DEVICE bool exists(uint32_t u) const {
    return row_ < p_.rows && place(u).column + kConfig.chunk <= p_.k;
  }

  /// Whether the thread may hold the round's chunks: each exists or is beyond the row's end.
  BLOCKSCALE_DEVICE bool whole() const {
    return p_.x.vectors && p_.value_vectors && p_.k % kConfig.chunk == 0;
  }

  BLOCKSCALE_DEVICE void load_round() {
    const Input<kConfig> input(p_, place(0));
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if (exists(u)) {
        input.load_whole(chunks_[u], 0, u * kStep);
      } else {
        clear(chunks_[u]);
      }
    }
  }

  BLOCKSCALE_DEVICE void fold_round(Maximum& largest) {
    if (whole()) {
      load_round();
      BLOCKSCALE_UNROLL
      for (int u = 0; u < kConfig.chunks; ++u) largest.fold(chunks_[u]);
      return;
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      ValueChunk<kConfig> chunk;
      load_part_of<kConfig>(chunk, p_, place(u));
      largest.fold(chunk);
    }
  }

  BLOCKSCALE_DEVICE void store_round(const BlockScale& scale) {
    if (whole() && !scale.exceptional) {
      if (p_.row_rounds > 1) load_round();
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        if (!exists(u)) continue;
        store_codes(encode_chunk<kConfig.element, kConfig.rule, false>(chunks_[u], scale),
                    codes_at<kConfig.element>(p_, place(u)));
      }
      return;
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      ValueChunk<kConfig> chunk;
      load_part_of<kConfig>(chunk, p_, place(u));
      store_exactly<kConfig>(p_, place(u), chunk, scale);
    }
  }

  /// Largest word of the row's threads. Collective.
  BLOCKSCALE_DEVICE uint32_t row_maximum(uint32_t of_lane) const {
    const ptx::SharedAddress words = device::shared_base() + kReductionOffset;
    const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, of_lane);
    if (warps_ == 1) return of_warp;
    ptx::barrier_sync_all();  // who still reads the words of the tile before
    if (ptx::tid_x() % 32 == 0) ptx::st_shared(words + (first_warp_ + warp_) * 4, of_warp);
    ptx::barrier_sync_all();
    uint32_t largest = 0;
    for (uint32_t i = 0; i < warps_; ++i) {
      const uint32_t other = ptx::ld_shared<uint32_t>(words + (first_warp_ + i) * 4);
      largest = other > largest ? other : largest;
    }
    return largest;
  }

  const QuantizeParams& p_;
  uint32_t matrix_;
  uint32_t row_;
  uint32_t warps_;       // of this row, a power of two
  uint32_t first_warp_;  // of this row
  uint32_t warp_;        // in the row
  uint32_t round_ = 0;
  ValueChunk<kConfig> chunks_[kConfig.chunks];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_rows(const QuantizeParams& p) {
  each_tile<kConfig>(p,
                     [&](uint32_t tile) { RowTile<kConfig>(p, tile).quantize_with_one_scale(); });
}

}  // namespace blockscale::quantize_sm90
