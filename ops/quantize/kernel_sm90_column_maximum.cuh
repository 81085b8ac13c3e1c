// QuantizeKernel::maximum of functions that keep an order, of 16-bit x: the largest magnitude
// follows from the largest and the smallest x, which packed instructions find.
//
// - GELU: kernel_sm90_gelu_maximum.cuh.
// - modulate rises or falls with x wherever scale and shift stay the same: in a column of the rows
//   of one group.
//
// A thread owns a few columns and walks down rows. There is one thread block a multiprocessor, with
// registers for little more than what is on its way: so those of the kernel that quantises start
// beside it, and have filled their tables and loaded their first tiles when the maximum is known.
// Rows further on may be on their way to the level-2 cache.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/packed.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The largest and the smallest x of each of kCount columns, NaN not counted.
template <Format kFormat, int kCount>
class ColumnExtremes {
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr uint32_t kInfinities = kIsBf16 ? 0x7F807F80u : 0x7C007C00u;
  using X = Chunk<kFormat, kCount>;

 public:
  BLOCKSCALE_DEVICE ColumnExtremes() {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < X::kWords; ++i) {
      largest_.word[i] = kInfinities | 0x80008000u;
      smallest_.word[i] = kInfinities;
    }
  }

  BLOCKSCALE_DEVICE void fold(const X& x) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < X::kWords; ++i) {
      uint32_t& largest = largest_.word[i];
      uint32_t& smallest = smallest_.word[i];
      largest = kIsBf16 ? ptx::max_bf16x2(largest, x.word[i]) : ptx::max_f16x2(largest, x.word[i]);
      smallest =
          kIsBf16 ? ptx::min_bf16x2(smallest, x.word[i]) : ptx::min_f16x2(smallest, x.word[i]);
    }
  }

  BLOCKSCALE_DEVICE float largest(int i) const { return value_at(largest_, i); }
  BLOCKSCALE_DEVICE float smallest(int i) const { return value_at(smallest_, i); }

  /// Whether both are finite. Where they are not, x is infinite somewhere, or NaN everywhere.
  BLOCKSCALE_DEVICE bool finite(int i) const {
    const float larger = ptx::max(ptx::abs(largest(i)), ptx::abs(smallest(i)));
    return bit_cast<uint32_t>(larger) < kInfinityBits;
  }

 private:
  X largest_;
  X smallest_;
};

/// A thread's part of the maximum of a thread block. Tiles of the grid that lie below each other
/// are a tile column. `walkers` thread blocks share one, and take its tiles in turn, so that all of
/// them go through the tensor from its beginning to its end together.
template <QuantizeConfig kConfig>
class ColumnMaximum {
  static_assert(walks_columns(kConfig));
  static constexpr bool kModulate = kConfig.transform == InputTransform::modulate;
  static constexpr uint32_t kAtOnce = kConfig.chunks;
  using X = Chunk<kConfig.input, kConfig.chunk>;
  using Extremes = ColumnExtremes<kConfig.input, kConfig.chunk>;

  /// Rows of one group, as far as they are folded.
  static constexpr uint32_t kNoGroup = ~0u;
  struct Stretch {
    uint32_t first = 0;
    uint32_t group = kModulate ? kNoGroup : 0;
    Extremes extremes;
  };

 public:
  BLOCKSCALE_DEVICE explicit ColumnMaximum(const QuantizeParams& p) : p_(p) {
    const uint32_t count = p.maxima.count;
    const uint32_t across = p.grid.across.divisor;
    scale_ = p.maxima.parts.quotient(ptx::ctaid_x());
    part_ = ptx::ctaid_x() - scale_ * count;
    walkers_ = count > across ? count / across : 1;
    step_ = walkers_ * p.grid.rows;
    step_bytes_ = step_ * p.x.row_stride;
    ahead_ = p.maxima.prefetches * kAtOnce;
  }

  /// Waits for the kernels before this one; only prefetches come before that.
  BLOCKSCALE_DEVICE void find() {
    const uint32_t first = row_of(go_to(part_));
    if (part_ < items() && column_ < p_.k) {
      prefetch(row_at(first_matrix(), first), first, 0, ahead_);
    }
    await_predecessors();
    each_matrix([&](uint32_t matrix, uint32_t row) { walk(matrix, row); });
    leave_maximum(p_.maxima, scale_, part_, kModulate ? computed_.f32_bits() : largest_gelu());
  }

 private:
  /// Walks of all thread blocks that work for the scale: through each tile column those of
  /// `walkers_`.
  BLOCKSCALE_DEVICE uint32_t items() const { return p_.grid.across.divisor * walkers_; }

  /// Takes the thread to its columns in a walk. Returns the first tile's number below the top.
  BLOCKSCALE_DEVICE uint32_t go_to(uint32_t item) {
    const TileGrid& grid = p_.grid;
    const uint32_t tile = grid.across.quotient(item);
    const uint32_t chunk = ptx::tid_x() & ((1u << grid.log2_chunks) - 1);
    const uint32_t across = item - tile * grid.across.divisor;
    column_ = ((across << grid.log2_chunks) + chunk) * kConfig.chunk;
    whole_ = p_.x.vectors && column_ + kConfig.chunk <= p_.k;
    return tile;
  }

  /// The thread's row of a tile.
  BLOCKSCALE_DEVICE uint32_t row_of(uint32_t tile) const {
    return tile * p_.grid.rows + (ptx::tid_x() >> p_.grid.log2_chunks);
  }

  BLOCKSCALE_DEVICE bool one_scale() const { return p_.maxima.stride == 0; }
  BLOCKSCALE_DEVICE uint32_t first_matrix() const { return one_scale() ? 0 : scale_; }

  /// Calls body(matrix, row) for the thread's columns and its first row of each matrix. Only
  /// threads whose column exists do.
  template <class Body>
  BLOCKSCALE_DEVICE void each_matrix(const Body& body) {
    const uint32_t down = p_.grid.across.quotient(p_.grid.per_matrix.divisor);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t item = part_; item < items(); item += p_.maxima.count) {
      uint32_t tile = go_to(item);
      if (column_ >= p_.k) continue;
      const uint32_t end = one_scale() ? p_.batch : scale_ + 1;
      BLOCKSCALE_NO_UNROLL
      for (uint32_t matrix = first_matrix(); matrix < end; ++matrix) {
        body(matrix, row_of(tile));
        while (tile < down) tile += walkers_;
        tile -= down;
      }
    }
  }

  BLOCKSCALE_DEVICE const uint8_t* row_at(uint32_t matrix, uint32_t row) const {
    return p_.x.data + matrix * p_.x.batch_stride + row * p_.x.row_stride +
           int64_t{column_} * X::kElementBytes;
  }

  /// Folds every `step_`th row of a matrix: kAtOnce at a time, while the next ones are on their
  /// way, where they are of one group and vectors fit; else one by one.
  BLOCKSCALE_DEVICE void walk(uint32_t matrix, uint32_t row) {
    const uint8_t* from = row_at(matrix, row);
    if (matrix != first_matrix()) prefetch(from, row, 0, ahead_);
    Stretch stretch;
    X x[kAtOnce];
    bool loaded = false;
    BLOCKSCALE_NO_UNROLL
    for (;;) {
      const uint32_t group = row < p_.rows ? group_of(matrix, row) : stretch.group + 1;
      if constexpr (kModulate) {
        if (group != stretch.group) {
          fold_modulated(stretch, matrix, row);
          stretch = {};
          stretch.first = row;
          stretch.group = group;
          loaded = false;  // so that x needs no registers meanwhile
        }
      }
      if (row >= p_.rows) break;
      const uint32_t last = row + (kAtOnce - 1) * step_;
      if (whole_ && group_of(matrix, last < p_.rows ? last : p_.rows - 1) == group) {
        if (!loaded) load(x, from, row);
        loaded = true;
        const uint32_t next = row + kAtOnce * step_;
        X of_next[kAtOnce];
        if (next < p_.rows) load(of_next, from + kAtOnce * step_bytes_, next);
        prefetch(from, row, ahead_, kAtOnce);
        BLOCKSCALE_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) fold(stretch.extremes, x[u]);
        BLOCKSCALE_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) x[u] = of_next[u];
        row = next;
        from += kAtOnce * step_bytes_;
      } else {
        X one;
        load_part(one, from, static_cast<int32_t>(p_.k - column_), whole_);
        fold(stretch.extremes, one);
        loaded = false;
        row += step_;
        from += step_bytes_;
      }
    }
  }

  /// kAtOnce rows of the walk from `row` on. In place of those beyond the matrix there is the
  /// first.
  BLOCKSCALE_DEVICE void load(X (&x)[kAtOnce], const uint8_t* from, uint32_t row) const {
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      load_vectors(x[u], row + u * step_ < p_.rows ? from + u * step_bytes_ : from);
    }
  }

  /// Of modulate, with every number of `matrix` but its own.
  BLOCKSCALE_DEVICE uint32_t group_of(uint32_t matrix, uint32_t row) const {
    if constexpr (!kModulate) return 0;
    return p_.transform.rows_per_group.quotient(matrix * p_.rows + row);
  }

  BLOCKSCALE_DEVICE void fold(Extremes& extremes, const X& x) {
    if constexpr (kModulate) {
      extremes.fold(x);
    } else {
      largest_x_.fold(x);
    }
  }

  /// `count` rows, `skipped` rows of the walk below `row`. One thread does for those beside it.
  BLOCKSCALE_DEVICE void prefetch(const uint8_t* from, uint32_t row, uint32_t skipped,
                                  uint32_t count) const {
    const uint32_t chunks = 1u << p_.grid.log2_chunks;
    if ((ptx::tid_x() & (chunks - 1)) != 0 || !whole_ || ahead_ == 0) return;
    const uint32_t left = (p_.k - column_) / kConfig.chunk;
    const uint32_t bytes = (left < chunks ? left : chunks) * uint32_t{sizeof(X)};
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = skipped; i < skipped + count; ++i) {
      if (row + i * step_ >= p_.rows) return;
      ptx::cp_async_bulk_prefetch_L2(from + i * step_bytes_, bytes);
    }
  }

  /// modulate's largest magnitude of a stretch that ends before row `end`, from the largest and the
  /// smallest x.
  BLOCKSCALE_DEVICE void fold_modulated(const Stretch& stretch, uint32_t matrix, uint32_t end) {
    if (stretch.group == kNoGroup) return;
    bool finite = true;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kConfig.chunk; ++i) finite &= stretch.extremes.finite(i);
    if (!finite) {
      fold_computed(matrix, stretch.first, end);
      return;
    }
    const TransformParams& t = p_.transform;
    const auto left = static_cast<int32_t>(p_.k - column_);
    Chunk<Format::f32, kConfig.chunk> scale, shift, values;
    load_operand(scale, t.scale, stretch.group, column_, left, whole_);
    load_operand(shift, t.shift, stretch.group, column_, left, whole_);
    fill_values(values, [&](int i) {
      return modulated(stretch.extremes.largest(i), value_at(scale, i), value_at(shift, i));
    });
    computed_.fold(values);
    fill_values(values, [&](int i) {
      return modulated(stretch.extremes.smallest(i), value_at(scale, i), value_at(shift, i));
    });
    computed_.fold(values);
  }

  BLOCKSCALE_DEVICE static float modulated(float x, float scale, float shift) {
    return math::modulate<device::KernelMath>(x, scale, shift);
  }

  /// Every value of the rows from `first` on, before `end`.
  BLOCKSCALE_DEVICE void fold_computed(uint32_t matrix, uint32_t first, uint32_t end) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t row = first; row < end && row < p_.rows; row += step_) {
      ValueChunk<kConfig> values;
      load_part_of<kConfig>(values, p_, {matrix, row, column_});
      computed_.fold(values);
    }
  }

  /// GELU's largest magnitude (bits) of the warp.
  BLOCKSCALE_DEVICE uint32_t largest_gelu() {
    const float x = largest_x_.value();
    const float of_warp =
        bit_cast<float>(ptx::redux_sync_max(ptx::kFullMask, x > 0 ? bit_cast<uint32_t>(x) : 0u));
    if constexpr (is_gelu(kConfig.transform)) {
      if (of_warp >= kLeastOrderedX) return bit_cast<uint32_t>(gelu<kConfig.transform>(of_warp));
    }
    each_matrix([&](uint32_t matrix, uint32_t row) { fold_computed(matrix, row, p_.rows); });
    return computed_.f32_bits();
  }

  const QuantizeParams& p_;
  uint32_t scale_, part_;  // what the thread block's maximum is a part of
  uint32_t walkers_;
  uint32_t step_;  // rows
  int64_t step_bytes_;
  uint32_t ahead_;  // rows that are prefetched before they are loaded
  uint32_t column_ = 0;
  bool whole_ = false;  // vectors fit
  LargestX<kConfig.input> largest_x_;
  Largest<Format::f32, false> computed_;  // magnitudes of values
};

}  // namespace blockscale::quantize_sm90
