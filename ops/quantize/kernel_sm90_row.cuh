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

/// One tile of a row kernel: a thread's part of a row, and what it knows of it. Functions are
/// collective: all threads of the block call them.
template <QuantizeConfig kConfig>
class RowTile {
  static constexpr bool kNormalizes = kConfig.transform == InputTransform::rms_norm;
  /// What a thread holds: x where the row's factor is not known yet.
  using Held = Chunk<kNormalizes ? kConfig.input : kValueFormat<kConfig>, kConfig.chunk>;
  using Maximum = Largest<kValueFormat<kConfig>, kConfig.rule != ScaleRule::fp8>;
  /// Columns between a thread's chunks.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;

 public:
  BLOCKSCALE_DEVICE RowTile(const QuantizeParams& p, uint32_t tile_index) : p_(p) {
    static_assert(kConfig.chunk * kConfig.chunks * 32 == kRowElementsPerWarp);
    static_assert(kConfig.chunk * 32 == kRmsPartials);
    const TilePlace tile = tile_place(p.grid, tile_index);
    const uint32_t warp = ptx::tid_x() / 32;
    warps_ = 1u << p.grid.log2_chunks;
    first_warp_ = warp & ~(warps_ - 1);
    warp_ = warp & (warps_ - 1);
    matrix_ = tile.matrix;
    row_ = tile.row + (warp >> p.grid.log2_chunks);
    may_hold_ = p.x.vectors && p.k % kConfig.chunk == 0;
  }

  /// rms_norm: the row's factor.
  BLOCKSCALE_DEVICE void find_factor() {
    float total = 0;
    for (round_ = 0; round_ < p_.row_rounds; ++round_) total = add_segments(total, sum_segment());
    const float mean = ptx::div_rn(total, ptx::cvt_rn_f32_u32(p_.k));
    factor_ = ptx::rcp_rn(ptx::sqrt_rn(ptx::add_rn(mean, p_.transform.epsilon)));
  }

  BLOCKSCALE_DEVICE void store_factor() const {
    if (!is_first_thread() || row_ >= p_.rows) return;
    ptx::st_global(p_.row_factors + uint64_t{matrix_} * p_.rows + row_, factor_);
  }

  /// fp8_row: one scale for the row.
  BLOCKSCALE_DEVICE void quantize_with_one_scale() {
    Maximum largest;
    for (round_ = 0; round_ < p_.row_rounds; ++round_) {
      each_chunk(!kNormalizes,
                 [&](uint32_t, const ValueChunk<kConfig>& chunk) { largest.fold(chunk); });
    }
    const uint32_t amax = row_maximum(largest.f32_bits());
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p_.amax_floor, p_.fp8_scale);
    if (is_first_thread() && row_ < p_.rows) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p_, matrix_, row_, 0, stored);
    }
    const bool shortly = may_hold_ && p_.value_vectors && !scale.exceptional;
    for (round_ = 0; round_ < p_.row_rounds; ++round_) {
      if (shortly) {
        each_held_chunk(false, [&](uint32_t u, const ValueChunk<kConfig>& chunk) {
          if (exists(u)) store_shortly<kConfig>(p_, place(u), chunk, {{scale}});
        });
      } else {
        each_loaded_chunk([&](uint32_t u, const ValueChunk<kConfig>& chunk) {
          store_exactly<kConfig>(p_, place(u), chunk, scale);
        });
      }
    }
  }

  /// Scales for the blocks of the row.
  BLOCKSCALE_DEVICE void quantize_blocks_of_row() {
    const float tensor_scale = tensor_scale_of(p_, matrix_);
    const bool shortly = may_hold_ && p_.value_vectors;
    for (round_ = 0; round_ < p_.row_rounds; ++round_) {
      bool exactly = !shortly;
      if (shortly) {
        each_held_chunk(false, [&](uint32_t u, const ValueChunk<kConfig>& chunk) {
          const auto units = find_block_scales<kConfig, false>(p_, tensor_scale, place(u), chunk);
          exactly |= any_exceptional(units);
          if (exists(u)) store_shortly<kConfig>(p_, place(u), chunk, units);
        });
      }
      if (!exactly) continue;
      each_loaded_chunk([&](uint32_t u, const ValueChunk<kConfig>& chunk) {
        store_exactly<kConfig>(p_, place(u), chunk,
                               find_block_scales<kConfig, true>(p_, tensor_scale, place(u), chunk));
      });
    }
  }

 private:
  BLOCKSCALE_DEVICE bool is_first_thread() const { return warp_ == 0 && ptx::tid_x() % 32 == 0; }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    const uint32_t segment = round_ * warps_ + warp_;
    return {matrix_, row_,
            segment * kRowElementsPerWarp + u * kStep + ptx::tid_x() % 32 * kConfig.chunk};
  }

  BLOCKSCALE_DEVICE bool exists(uint32_t u) const {
    return row_ < p_.rows && place(u).column + kConfig.chunk <= p_.k;
  }

  /// Loads the round's chunks into held_. Requires may_hold_: a chunk exists or lies beyond the
  /// row.
  BLOCKSCALE_DEVICE void hold_round() {
    const Input<kConfig> input(p_, place(0));
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if (!exists(u)) {
        clear(held_[u]);
      } else if constexpr (kNormalizes) {
        input.load_raw(held_[u], u * kStep);
      } else {
        input.load_whole(held_[u], 0, u * kStep);
      }
    }
  }

  /// Calls body(u, chunk) for the round's chunks, held in registers. `first`: they are not yet.
  template <class Body>
  BLOCKSCALE_DEVICE void each_held_chunk(bool first, const Body& body) {
    if (first || p_.row_rounds > 1) hold_round();
    const Input<kConfig> input(p_, place(0));
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if constexpr (kNormalizes) {
        ValueChunk<kConfig> chunk;
        if (exists(u)) {
          input.normalize(chunk, held_[u], factor_, u * kStep, true);
        } else {
          clear(chunk);
        }
        body(u, chunk);
      } else {
        body(u, held_[u]);
      }
    }
  }

  /// The same for chunks that are loaded one after the other, as far as they exist.
  template <class Body>
  BLOCKSCALE_DEVICE void each_loaded_chunk(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const Input<kConfig> input(p_, place(u));
      ValueChunk<kConfig> chunk;
      if constexpr (kNormalizes) {
        Chunk<kConfig.input, kConfig.chunk> raw;
        input.load_raw_part_of(raw);
        input.normalize(chunk, raw, factor_, 0, false);
      } else {
        input.load_part_of(chunk);
      }
      body(u, chunk);
    }
  }

  template <class Body>
  BLOCKSCALE_DEVICE void each_chunk(bool first, const Body& body) {
    if (may_hold_) {
      each_held_chunk(first, body);
    } else {
      each_loaded_chunk(body);
    }
  }

  /// Sum of the squares of the warp's segment, in all its lanes.
  BLOCKSCALE_DEVICE float sum_segment() {
    float partial[kConfig.chunk] = {};
    if (may_hold_) {
      hold_round();
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) add_squares(partial, held_[u]);
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        Held raw;
        Input<kConfig>(p_, place(u)).load_raw_part_of(raw);
        add_squares(partial, raw);
      }
    }
    BLOCKSCALE_UNROLL
    for (int half = kConfig.chunk / 2; half > 0; half /= 2) {
      BLOCKSCALE_UNROLL
      for (int j = 0; j < half; ++j) partial[j] = ptx::add_rn(partial[2 * j], partial[2 * j + 1]);
    }
    float sum = partial[0];
    BLOCKSCALE_UNROLL
    for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
      sum = ptx::add_rn(sum, ptx::shfl_sync_bfly(ptx::kFullMask, sum, lanes));
    }
    return sum;
  }

  BLOCKSCALE_DEVICE static void add_squares(float (&partial)[kConfig.chunk], const Held& raw) {
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kConfig.chunk; ++j) {
      const float x = value_at(raw, j);
      partial[j] = ptx::fma_rn(x, x, partial[j]);
    }
  }

  /// Words that each warp of the row gives, in order, to `fold`.
  template <class Fold>
  BLOCKSCALE_DEVICE void share_words(uint32_t word, const Fold& fold) const {
    if (warps_ == 1) {
      fold(word);
      return;
    }
    const ptx::SharedAddress words = device::shared_base();
    ptx::barrier_sync_all();  // who still reads the words before
    if (ptx::tid_x() % 32 == 0) ptx::st_shared(words + (first_warp_ + warp_) * 4, word);
    ptx::barrier_sync_all();
    for (uint32_t i = 0; i < warps_; ++i) {
      fold(ptx::ld_shared<uint32_t>(words + (first_warp_ + i) * 4));
    }
  }

  /// `total` and then the sums of the round's segments, one after the other.
  BLOCKSCALE_DEVICE float add_segments(float total, float of_warp) const {
    share_words(bit_cast<uint32_t>(of_warp),
                [&](uint32_t sum) { total = ptx::add_rn(total, bit_cast<float>(sum)); });
    return total;
  }

  BLOCKSCALE_DEVICE uint32_t row_maximum(uint32_t of_lane) const {
    uint32_t largest = 0;
    share_words(ptx::redux_sync_max(ptx::kFullMask, of_lane),
                [&](uint32_t other) { largest = other > largest ? other : largest; });
    return largest;
  }

  const QuantizeParams& p_;
  uint32_t matrix_;
  uint32_t row_;
  uint32_t warps_;       // of this row, a power of two
  uint32_t first_warp_;  // of this row
  uint32_t warp_;        // in the row
  uint32_t round_ = 0;
  bool may_hold_;
  float factor_ = 0;
  Held held_[kConfig.chunks];
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_rows(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) {
    RowTile<kConfig> row(p, tile);
    if constexpr (kConfig.transform == InputTransform::rms_norm) row.find_factor();
    if constexpr (kConfig.kernel == QuantizeKernel::norm) {
      row.store_factor();
    } else if constexpr (kConfig.block == 0) {
      row.quantize_with_one_scale();
    } else {
      row.quantize_blocks_of_row();
    }
  });
}

}  // namespace blockscale::quantize_sm90
