// QuantizeKernel::row, ::norm, and ::maximum of rms_norm where kernel_sm90_row_maximum.cuh does not
// take it: thread blocks that hold whole rows, so that what depends on all of a row costs no second
// read: the scale of fp8_row, the factor of rms_norm.
//
// As many warps work on a row as cover it, up to kRowMostWarps; longer rows take several *rounds*
// and are read again from L2 or memory for each use. A tile is the rows that a thread block holds
// at once. What the warps of a row must tell each other goes through shared memory, one barrier
// each time (kernel_sm90_row_exchange.cuh). Without operands that rows share a thread block of
// `row` has one tile (kernel_sm90_row_tile.cuh).
//
// With such operands (the weight of rms_norm, a group's scale and shift) it goes through several
// tiles, with modulate consecutive ones, which are of few groups; a thread has one chunk of each.
// Then
// - the next tile's elements are on their way to registers while a tile is worked on;
// - operands are converted once, into shared memory of the thread's own: a quarter of a load for
//   each element and use, and no registers.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_maximum.cuh"
#include "ops/quantize/kernel_sm90_operands.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_rms.cuh"
#include "ops/quantize/kernel_sm90_row_exchange.cuh"
#include "ops/quantize/kernel_sm90_row_tile.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Operands of a thread's chunk as f32, in shared memory that no other thread touches: the weight
/// of rms_norm; 1 + scale, and shift, of modulate.
template <QuantizeConfig kConfig>
class RowOperands {
  static constexpr int kCount = row_operands(kConfig.kernel, kConfig.transform);
  static constexpr uint32_t kVectors = kConfig.chunk / 4;
  using Values = Chunk<Format::f32, kConfig.chunk>;

 public:
  BLOCKSCALE_DEVICE RowOperands() {
    // Vectors of a warp's lanes lie side by side, so that its loads are free of bank conflicts.
    const uint32_t lane = ptx::tid_x() % 32;
    const uint32_t warp = ptx::tid_x() - lane;
    at_ = device::shared_base() +
          (kQuantizeSharedBytes + warp * kCount * uint32_t{sizeof(Values)} + 16 * lane);
  }

  /// Makes them those of a group's columns, from `column` on; `left` of these exist.
  BLOCKSCALE_DEVICE void hold(const TransformParams& t, uint32_t group, uint32_t column,
                              int32_t left, bool whole) const {
    BLOCKSCALE_NO_UNROLL
    for (int o = 0; o < kCount; ++o) {
      Values operand;
      load_operand(operand, operand_matrix<kConfig.transform>(t, o), group, column, left, whole);
      make_applicable<kConfig.transform>(operand, o);
      store_operand(operand, [&](uint32_t v) { return place(static_cast<uint32_t>(o), v); });
    }
  }

  /// As apply_operands.
  template <class Function>
  BLOCKSCALE_DEVICE void apply(Values& values, const Function& function) const {
    apply_operands<kCount>(values, [&](uint32_t o, uint32_t v) { return place(o, v); }, function);
  }

 private:
  BLOCKSCALE_DEVICE ptx::SharedAddress place(uint32_t operand, uint32_t vector) const {
    return at_ + (operand * kVectors + vector) * 512;
  }

  ptx::SharedAddress at_;
};

/// A thread's part of a run of tiles whose rows share operands. All threads of the block go through
/// the same functions. kOneRound: p.row_rounds is 1.
template <QuantizeConfig kConfig, bool kOneRound>
class RowRun {
  static constexpr bool kNormalizes = kConfig.transform == InputTransform::rms_norm;
  static_assert(kNormalizes || kConfig.transform == InputTransform::modulate);
  static_assert(kConfig.persistent && kConfig.chunks == 1);
  using Raw = Chunk<kConfig.input, kConfig.chunk>;
  using Maximum = Largest<kValueFormat<kConfig>, kConfig.rule != ScaleRule::fp8>;
  static constexpr uint32_t kWarpColumns = 32 * kConfig.chunk;

 public:
  BLOCKSCALE_DEVICE explicit RowRun(const QuantizeParams& p) : p_(p), exchange_(p.row_warps) {
    clear(raw_);
  }

  BLOCKSCALE_DEVICE void work() {
    const TileRun run = tiles_of_block();
    place_ = place_of(run.first, 0);
    go_to_round(0);
    if constexpr (kOneRound) {
      load_raw(place_);
      if constexpr (kNormalizes) hold_operands(0);
    }
    exchange_.clear_words();
    for (uint32_t tile = run.first; tile < run.end; tile += run.step) {
      const bool another = tile + run.step < run.end;
      if constexpr (kOneRound) {
        take_tile();
        if (another) load_raw(place_after(run, tile));
      }
      work_on_tile();
      place_ = place_after(run, tile);
    }
    if constexpr (kConfig.kernel == QuantizeKernel::maximum) {
      ptx::barrier_sync_all();  // who still reads words of the exchange
      leave_maximum(p_.maxima, run.scale, run.part, largest_.f32_bits());
    }
  }

 private:
  /// Every `step`th tile from `first` on, before `end`.
  struct TileRun {
    uint32_t first, end, step;
    uint32_t scale, part;  // maximum: what they are a part of
  };

  BLOCKSCALE_DEVICE TileRun tiles_of_block() const {
    const uint32_t block = ptx::ctaid_x();
    const uint32_t blocks = ptx::nctaid_x();
    const uint32_t tiles = p_.grid.tiles;
    if constexpr (kConfig.kernel == QuantizeKernel::maximum) {
      const TilesOfScale run = tiles_of_scale(p_);
      const uint32_t first = run.scale * run.tiles;
      return {first + run.part, first + run.tiles, p_.maxima.count, run.scale, run.part};
    } else if constexpr (kNormalizes) {
      return {block, tiles, blocks, 0, 0};
    } else {
      // Consecutive ones: of few groups.
      const uint32_t each = tiles / blocks;
      const uint32_t more = tiles % blocks;  // thread blocks that have one tile more
      const uint32_t first = block * each + (block < more ? block : more);
      return {first, first + each + (block < more ? 1 : 0), 1, 0, 0};
    }
  }

  /// The place in the tile's row; tiles lie one below the other.
  BLOCKSCALE_DEVICE ChunkPlace place_of(uint32_t tile, uint32_t column) const {
    const uint32_t matrix = p_.grid.per_matrix.quotient(tile);
    const uint32_t down = tile - matrix * p_.grid.per_matrix.divisor;
    return {matrix, down * p_.grid.rows + exchange_.row_of_tile(), column};
  }

  /// The place in the tile that comes after `tile`, which place_ is in.
  BLOCKSCALE_DEVICE ChunkPlace place_after(const TileRun& run, uint32_t tile) const {
    const ChunkPlace place = below(place_, run.step * p_.grid.rows);
    // In the same matrix, or, if that is too small for the step, anywhere.
    if (place.row < p_.grid.per_matrix.divisor * p_.grid.rows) return place;
    return place_of(tile + run.step, place_.column);
  }

  BLOCKSCALE_DEVICE void work_on_tile() {
    if constexpr (kNormalizes) normalize_tile();
    if constexpr (kConfig.kernel == QuantizeKernel::norm) {
      store_factor();
    } else if constexpr (kConfig.kernel == QuantizeKernel::maximum) {
      store_factor();
      each_round<false>([&] { largest_.fold(values_); });
    } else if constexpr (kConfig.block == 0) {
      quantize_with_one_scale();
    } else {
      quantize_blocks_of_held_row();
    }
  }

  BLOCKSCALE_DEVICE void go_to_round(uint32_t round) {
    const uint32_t first = (round * p_.row_warps.divisor + exchange_.warp_of_row()) * kWarpColumns;
    place_.column = first + ptx::tid_x() % 32 * kConfig.chunk;
    inside_ = place_.column + kConfig.chunk <= p_.k;
    constexpr bool kStores = kConfig.kernel == QuantizeKernel::row;
    whole_ = p_.x.vectors && (p_.value_vectors || !kStores) &&
             has_whole_chunks<kConfig.chunk>(p_.k, first, kWarpColumns);
  }

  BLOCKSCALE_DEVICE bool exists() const { return place_.row < p_.rows; }
  BLOCKSCALE_DEVICE ChunkState state() const { return {exists() && inside_, whole_}; }

  /// The tile's elements, which are in raw_, become values_: of rms_norm x itself.
  BLOCKSCALE_DEVICE void take_tile() {
    if (!kNormalizes && group() != held_group_) hold_operands(group());
    use_raw();
  }

  /// raw_ becomes the chunk of x at a place in the current columns, or stays as it is where whole_
  /// and there is none.
  BLOCKSCALE_DEVICE void load_raw(const ChunkPlace& place) {
    const uint8_t* const from = x_at<kConfig>(p_, place);
    const bool exists = place.row < p_.rows;
    if (!whole_) {
      const int32_t left = exists ? static_cast<int32_t>(p_.k - place.column) : 0;
      load_part(raw_, from, left, p_.x.vectors);
    } else if (exists && inside_) {
      load_vectors(raw_, from);
    }
  }

  /// values_ from raw_, with the operands held but without the factor of rms_norm.
  BLOCKSCALE_DEVICE void use_raw() {
    if constexpr (kNormalizes) {
      // Unpacked once, so that raw_ is free for the next tile.
      fill_values(values_, [&](int i) { return ptx::in_register(value_at(raw_, i)); });
    } else {
      operands_.apply(values_, [&](int i, float one_plus_scale, float shift) {
        return modulated(value_at(raw_, i), one_plus_scale, shift);
      });
    }
  }

  /// modulate: of the row, or of the last one that exists.
  BLOCKSCALE_DEVICE uint32_t group() const { return operand_group(p_, place_.matrix, place_.row); }

  BLOCKSCALE_DEVICE void hold_operands(uint32_t group) {
    if constexpr (kConfig.kernel == QuantizeKernel::norm) return;
    held_group_ = group;
    operands_.hold(p_.transform, group, place_.column, static_cast<int32_t>(p_.k - place_.column),
                   whole_ && inside_);
  }

  /// x (in values_) becomes rms_norm of it, with the operands held.
  BLOCKSCALE_DEVICE void normalize() {
    operands_.apply(values_, [&](int i, float weight) {
      return math::rms_norm<device::KernelMath>(value_at(values_, i), factor_, weight);
    });
  }

  /// Calls body() for each round, with its elements in values_: x of rms_norm with kOfX, else what
  /// is quantised.
  template <bool kOfX, class Body>
  BLOCKSCALE_DEVICE void each_round(const Body& body) {
    if constexpr (kOneRound) {
      body();
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t round = 0; round < p_.row_rounds; ++round) {
        go_to_round(round);
        if constexpr (!kNormalizes) hold_operands(group());
        if constexpr (kNormalizes && !kOfX) hold_operands(0);
        clear(raw_);
        load_raw(place_);
        use_raw();
        if constexpr (kNormalizes && !kOfX) normalize();
        body();
      }
    }
  }

  /// The rows' factors; with kOneRound values_ are normalised.
  BLOCKSCALE_DEVICE void normalize_tile() {
    float total = 0;
    each_round<true>(
        [&] { total = add_segments<kWarpColumns>(exchange_, total, sum_of_squares(values_)); });
    factor_ = rms_factor(total, p_.transform);
    if constexpr (kOneRound && kConfig.kernel != QuantizeKernel::norm) normalize();
  }

  BLOCKSCALE_DEVICE void store_factor() const { store_row_factor(p_, exchange_, place_, factor_); }

  /// fp8_row.
  BLOCKSCALE_DEVICE void quantize_with_one_scale() {
    Maximum largest;
    each_round<false>([&] { largest.fold(values_); });
    const uint32_t amax = exchange_.maximum(largest.f32_bits());
    const BlockScale scale = store_scale_of_row<kConfig>(p_, exchange_, place_, amax);
    each_round<false>([&] { store_with_scale<kConfig>(p_, state(), place_, values_, scale); });
  }

  /// Scales for the blocks of the row.
  BLOCKSCALE_DEVICE void quantize_blocks_of_held_row() {
    if constexpr (kConfig.rule == ScaleRule::nvfp4) {
      if (place_.matrix != scaled_matrix_) {
        scaled_matrix_ = place_.matrix;
        tensor_scale_ = await_tensor_scale<kConfig>(p_, place_);
      }
    }
    each_round<false>(
        [&] { quantize_held_chunk<kConfig>(p_, tensor_scale_, state(), place_, values_); });
  }

  const QuantizeParams& p_;
  RowExchange exchange_;
  RowOperands<kConfig> operands_;
  uint32_t held_group_ = ~0u;
  ChunkPlace place_ = {};
  bool inside_;  // the chunk is a part of the row, if that exists
  bool whole_;   // ChunkState, of the warp
  float factor_ = 0;
  uint32_t scaled_matrix_ = ~0u;
  float tensor_scale_ = 1;  // of nvfp4: that matrix's
  Maximum largest_;         // maximum: of all tiles
  ValueChunk<kConfig> values_;
  Raw raw_;  // x; kOneRound: of the tile that comes
};

template <QuantizeConfig kConfig, bool kOneRound>
BLOCKSCALE_DEVICE void quantize_rows_in(const QuantizeParams& p) {
  static_assert(kConfig.threads >= 32 * kRowMostWarps, "rounds are of kRowMostWarps warps");
  if constexpr (kConfig.persistent) {
    RowRun<kConfig, kOneRound>(p).work();
  } else {
    RowTile<kConfig, kOneRound>(p).quantize();
  }
}

/// Of kernels that hold rows (holds_rows).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_rows(const QuantizeParams& p) {
  if (p.row_rounds == 1) {
    quantize_rows_in<kConfig, true>(p);
  } else {
    quantize_rows_in<kConfig, false>(p);
  }
}

}  // namespace blockscale::quantize_sm90
