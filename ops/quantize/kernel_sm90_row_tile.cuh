// fp8_row of x, or of a function of x alone: one tile for a thread block.
#pragma once

#include "device/kernel.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_gelu_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_row_exchange.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Whether each chunk of kChunk elements of a row of k exists as a whole or lies beyond the row,
/// among those of `columns` columns from `first` on.
template <uint32_t kChunk>
BLOCKSCALE_DEVICE bool has_whole_chunks(uint32_t k, uint32_t first, uint32_t columns) {
  return k % kChunk == 0 || k - first >= columns;  // below 0 it is large
}

/// The scale of fp8_row for the largest magnitude (f32 bits) of the row of `place`, whose first
/// thread stores it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE BlockScale store_scale_of_row(const QuantizeParams& p,
                                                const RowExchange& exchange,
                                                const ChunkPlace& place, uint32_t amax) {
  const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  if (place.row < p.rows && exchange.is_first_lane()) {
    const uint32_t stored[1] = {scale.stored};
    store_scales_at<kConfig>(p, place.matrix, place.row, 0, stored);
  }
  return scale;
}

/// A thread's chunks of a row, 32 chunks apart, so that a load of a warp is of consecutive bytes.
/// All threads of the block go through the same functions. kOneRound: p.row_rounds is 1.
template <QuantizeConfig kConfig, bool kOneRound>
class RowTile {
  static_assert(kConfig.kernel == QuantizeKernel::row && kConfig.block == 0);
  using Values = ValueChunk<kConfig>;
  using Held = HeldChunk<kConfig>;
  using Maximum = Largest<kValueFormat<kConfig>, false>;
  /// Approximate values of GELU are found before the warps of a row wait for each other, while some
  /// of their elements are still on their way, and held instead of x.
  static constexpr bool kHoldsValues = kOneRound && approximates_gelu(kConfig);
  /// Columns between a thread's chunks, and of all of a warp's.
  static constexpr uint32_t kStep = 32 * kConfig.chunk;
  static constexpr uint32_t kWarpColumns = kStep * kConfig.chunks;

 public:
  BLOCKSCALE_DEVICE explicit RowTile(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {
    const TilePlace tile = tile_place(p.grid, ptx::ctaid_x());
    place_.matrix = tile.matrix;
    place_.row = tile.row + exchange_.row_of_tile();
  }

  BLOCKSCALE_DEVICE void quantize() {
    Maximum largest;
    if constexpr (!kOneRound) exchange_.clear_words();
    each_round([&] {
      if (whole_) load();
      if constexpr (kOneRound) exchange_.clear_words();
      fold_into(largest);
    });
    if constexpr (kHoldsValues) approximate();
    const uint32_t amax = exchange_.maximum(largest.f32_bits());
    const BlockScale scale = store_scale_of_row<kConfig>(p_, exchange_, place_, amax);
    each_round([&] { store(scale, amax); });
  }

 private:
  template <class Body>
  BLOCKSCALE_DEVICE void each_round(const Body& body) {
    if constexpr (kOneRound) {
      go_to_round(0);
      body();
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t round = 0; round < p_.row_rounds; ++round) {
        go_to_round(round);
        body();
      }
    }
  }

  BLOCKSCALE_DEVICE void go_to_round(uint32_t round) {
    const uint32_t first = (round * p_.row_warps.divisor + exchange_.warp_of_row()) * kWarpColumns;
    place_.column = first + ptx::tid_x() % 32 * kConfig.chunk;
    whole_ = p_.x.vectors && p_.value_vectors &&
             has_whole_chunks<kConfig.chunk>(p_.k, first, kWarpColumns);
  }

  BLOCKSCALE_DEVICE bool exists() const { return place_.row < p_.rows; }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    return {place_.matrix, place_.row, place_.column + u * kStep};
  }

  /// Whether chunk u exists as a whole.
  BLOCKSCALE_DEVICE bool inside(uint32_t u) const {
    return exists() && place(u).column + kConfig.chunk <= p_.k;
  }

  /// Where whole_: the thread's chunks.
  BLOCKSCALE_DEVICE void load() {
    const Input<with_held(kConfig)> input(p_, place_);
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if (inside(u)) {
        input.load_whole(held_[u], u * kStep);
      } else {
        clear(held_[u]);
      }
    }
  }

  /// Calls body(place, chunk) for the thread's chunks one after the other, as far as they exist.
  template <class Body>
  BLOCKSCALE_DEVICE void each_part(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      Values chunk;
      load_part_of<kConfig>(chunk, p_, place(u));
      body(place(u), chunk);
    }
  }

  BLOCKSCALE_DEVICE void fold_into(Maximum& largest) {
    if (!whole_) {
      each_part([&](const ChunkPlace&, const Values& chunk) { largest.fold(chunk); });
    } else if constexpr (approximates_gelu(kConfig)) {
      largest.fold_magnitudes(largest_gelu_of_warp<kConfig.transform>(held_));
    } else {
      BLOCKSCALE_UNROLL
      for (const Held& chunk : held_) largest.fold(chunk);
    }
  }

  BLOCKSCALE_DEVICE void approximate() {
    if (!whole_) return;
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      fill_values(values_[u], [&](int i) {
        const float x = value_at(held_[u], i);
        return ptx::in_register(approximate_gelu<kConfig.transform>(x).value());
      });
    }
  }

  BLOCKSCALE_DEVICE void store(const BlockScale& scale, uint32_t amax) {
    if (whole_ && !scale.exceptional) {
      if constexpr (!kOneRound) load();
      store_held(scale, amax);
    } else {
      each_part([&](const ChunkPlace& at, const Values& chunk) {
        store_exactly<kConfig>(p_, at, chunk, scale);
      });
    }
  }

  BLOCKSCALE_DEVICE void store_held(const BlockScale& scale, [[maybe_unused]] uint32_t amax) const {
    [[maybe_unused]] uint32_t doubtful = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      if (!inside(u)) continue;
      if constexpr (approximates_gelu(kConfig)) {
        static_assert(kConfig.chunk == 8);
        const auto gelu_at = [&](int i) {
          if constexpr (kHoldsValues) return value_at(values_[u], i);
          return approximate_gelu<kConfig.transform>(value_at(held_[u], i)).value();
        };
        doubtful |= store_likely<kConfig>(p_, place(u), held_[u], gelu_at, scale, amax) << u;
      } else {
        store_shortly<kConfig>(p_, place(u), held_[u], {{scale}});
      }
    }
    if constexpr (approximates_gelu(kConfig)) {
      store_again<kConfig>(p_, doubtful, {{scale}}, [&](uint32_t u) { return place(u); });
    }
  }

  const QuantizeParams& p_;
  RowExchange exchange_;
  ChunkPlace place_ = {};  // of the first chunk
  bool whole_ = false;     // ChunkState, of the warp
  Held held_[kConfig.chunks];
  Chunk<Format::f32, kConfig.chunk> values_[kHoldsValues ? kConfig.chunks : 1];
};

/// The thread block's rows into the level-2 cache, before it waits for whoever may still be writing
/// them.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_rows(const QuantizeParams& p) {
  const RowExchange exchange(p.row_warps);
  if (!p.x.vectors || p.row_rounds > 1 || !exchange.is_first_lane()) return;
  const uint32_t bytes = p.k * Chunk<kConfig.input, kConfig.chunk>::kElementBytes / 16 * 16;
  if (bytes == 0) return;
  each_tile<kConfig>(p, [&](uint32_t index) {
    const TilePlace tile = tile_place(p.grid, index);
    const uint32_t row = tile.row + exchange.row_of_tile();
    if (row >= p.rows) return;
    ptx::cp_async_bulk_prefetch_l2(x_row_at(p, tile.matrix, row), bytes);
  });
}

}  // namespace blockscale::quantize_sm90
