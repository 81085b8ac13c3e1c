// QuantizeKernel::tall and ::row (fp8_row) with a table: one scale for what a group of warps holds,
// blocks of 32, 64 or 128 rows x 128 or whole rows. Groups of a thread block work on tiles of their
// own, below each other, and wait for nobody else, so that some encode while others look up.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_queue.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
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

/// A thread's chunk of a tile. Functions are collective among its group.
///
/// GELU's values are looked up when they are encoded: the largest magnitude follows from the
/// largest x. So no registers hold them while the group waits for each other, and warps that look
/// up run beside warps that encode. Values of swiglu are held.
template <QuantizeConfig kConfig>
class GroupChunk {
  static constexpr bool kHoldsX = is_gelu(kConfig.transform);
  static constexpr QuantizeConfig kPiece = with_chunk(kConfig, 8);

  /// How the largest magnitude is found; what comes later in this list is right for more inputs.
  enum class Way : uint8_t { by_order, by_table, computed };

 public:
  BLOCKSCALE_DEVICE GroupChunk(const QuantizeParams& p, const ChunkPlace& place,
                               const RawChunk<kConfig>& raw)
      : p_(p), place_(place), state_(chunk_state<kConfig>(p, place)), raw_(raw) {
    idle_ = state_.whole && !ptx::vote_sync_any(ptx::kFullMask, state_.inside);
  }

  BLOCKSCALE_DEVICE uint32_t find_maximum(ScaleGroup<kConfig>& group) {
    way_ = kHoldsX ? Way::by_order : Way::by_table;
    BLOCKSCALE_NO_UNROLL
    for (;;) {
      const uint32_t amax = group.maximum(idle_ ? 0u : largest_of_thread());
      if (way_ == Way::computed) return amax;
      if (amax >= kInfinityBits) {
        way_ = Way::computed;
      } else if (way_ == Way::by_order && amax < bit_cast<uint32_t>(kGeluBelowZero)) {
        way_ = Way::by_table;
      } else {
        return amax;
      }
    }
  }

  BLOCKSCALE_DEVICE void encode(const BlockScale& scale) {
    if (idle_) return;
    if (state_.whole && way_ != Way::computed && !scale.exceptional) {
      if (!state_.inside) return;
      if constexpr (kHoldsX) values_ = look_up<kConfig>(raw_, p_.transform);
      store_shortly<kConfig>(p_, place_, values_, {{scale}});
    } else {
      each_computed_piece([&](const ChunkPlace& place, const ValueChunk<kPiece>& piece) {
        store_exactly<kPiece>(p_, place, piece, scale);
      });
    }
  }

 private:
  BLOCKSCALE_DEVICE uint32_t largest_of_thread() {
    if (!state_.whole || way_ == Way::computed) {
      Largest<Format::f32, false> largest;
      each_computed_piece(
          [&](const ChunkPlace&, const ValueChunk<kPiece>& piece) { largest.fold(piece); });
      return largest.f32_bits();
    }
    if constexpr (kHoldsX) {
      if (way_ == Way::by_order) return gelu_of_largest_x();
    }
    values_ = look_up<kConfig>(raw_, p_.transform);
    Largest<Format::f32, true> largest;
    largest.fold(values_);
    return largest.f32_bits();
  }

  /// Calls body(place, values) for the chunk in pieces, which keep few registers busy.
  template <class Body>
  BLOCKSCALE_DEVICE void each_computed_piece(const Body& body) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < kConfig.chunk; i += kPiece.chunk) {
      const ChunkPlace place = {place_.matrix, place_.row, place_.column + i};
      ValueChunk<kPiece> piece;
      load_part_of<kPiece>(piece, p_, place);
      body(place, piece);
    }
  }

  /// Of 0, if all x are negative.
  BLOCKSCALE_DEVICE uint32_t gelu_of_largest_x() const {
    LargestX<kConfig.input> largest;
    largest.fold(raw_.part[0]);
    largest.fold(0u);
    using Table = FunctionTable<kConfig.transform, kConfig.input>;
    const auto both = Table::template look_up<false>(largest.bits);
    const uint32_t low = bit_cast<uint32_t>(both.low);
    const uint32_t high = bit_cast<uint32_t>(both.high);
    return low > high ? low : high;
  }

  const QuantizeParams& p_;
  ChunkPlace place_;
  ChunkState state_;
  bool idle_;  // beyond the matrix, with the whole warp
  const RawChunk<kConfig>& raw_;
  Way way_;
  ValueChunk<kConfig> values_;  // with kHoldsX only where they are needed at once
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_groups(const QuantizeParams& p) {
  static_assert(kConfig.table && kConfig.rule == ScaleRule::fp8);
  ScaleGroup<kConfig> group(p);
  each_queued_tile<kConfig>(p, [&](const ChunkPlace& place, const RawChunk<kConfig>& raw) {
    GroupChunk<kConfig> chunk(p, place, raw);
    const uint32_t amax = chunk.find_maximum(group);
    const BlockScale scale = fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
    const uint32_t column = kConfig.block == 0 ? 0 : place.column / 128;
    if (group.is_first_thread() && place.row < p.rows && column < p.scale_columns) {
      const uint32_t stored[1] = {scale.stored};
      store_scales_at<kConfig>(p, place.matrix, place.row / p.block_rows, column, stored);
    }
    chunk.encode(scale);
  });
}

}  // namespace blockscale::quantize_sm90
