// What the CPU GEMM works on: A, decoded, and blocks of D.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "core/recipe.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/value_range.h"

namespace blockscale::gemm_detail {

/// A band of A in FP4 as integers-inl.h multiplies it: twice its values as bytes, and of each
/// block -12 times their sum and its factor over 4.
struct IntegerRows {
  std::int64_t first_row = 0;
  std::int64_t row_bytes = 0;
  std::int64_t blocks = 0;  // of a row
  Array<std::int8_t> bytes;
  Array<std::int32_t> offsets;
  Array<float> factors;
  Array<ValueRange> ranges;  // of each row's factors
  ValueRange range;          // of all of them

  /// The range of all rows, once each has its own.
  void take_range(std::int64_t rows) {
    range = {};
    std::for_each_n(ranges.get(), rows, [&](const ValueRange& x) { range.include(x); });
  }
  /// Makes room for `rows` rows of `k` codes in blocks of `block`.
  void take_rows(std::int64_t rows, std::int64_t k, std::int64_t block, Memory& memory) {
    row_bytes = ceil_div(k, std::int64_t{128}) * 128;
    blocks = k / block;
    bytes = memory.take<std::int8_t>(rows * row_bytes);
    offsets = memory.take<std::int32_t>(rows * blocks);
    factors = memory.take<float>(rows * blocks);
    ranges = memory.take<ValueRange>(rows);
  }
};

/// k that share a scale of an FP8 operand, or a part of them.
inline constexpr std::int64_t kLateBlock = 128;

/// Whether bf16-inl.h applies the scales of `recipe` to sums, and not to values.
constexpr bool has_late_scales(Recipe recipe) {
  return recipe_traits(recipe).family == Family::fp8;
}

/// A band of A as bf16-inl.h multiplies it: panels of kPanelRows rows, (slab, panel, pair of k,
/// row), and where A or B is FP8 the scales of A, (block of k, row).
struct PairRows {
  static constexpr std::int64_t kPanelRows = 32;
  static constexpr std::int64_t kDepth = 512;  // of a slab

  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t pitch = 0;  // rows that there is room for
  std::int64_t chain = 0;  // k that are summed before scales are applied; divides kDepth
  Array<std::uint16_t> values;
  Array<float> factors;             // null where all scales are folded
  Array<ValueRange> ranges;         // of each panel
  Array<ValueRange> factor_ranges;  // of each panel
  ValueRange range;                 // of all of them
  ValueRange factor_range;

  /// Makes room for `most` rows of `k` elements of A.
  void take_rows(std::int64_t most, std::int64_t k, Recipe a, Recipe b, Memory& memory) {
    const bool with_factors = has_late_scales(a) || has_late_scales(b);
    const auto is_block = [](Recipe x) {
      return has_late_scales(x) && recipe_traits(x).block_k != 0;
    };
    chain = is_block(a) || is_block(b) ? kLateBlock : kDepth;
    pitch = ceil_div(most, kPanelRows) * kPanelRows;
    values = memory.take<std::uint16_t>(ceil_div(k, kDepth) * kDepth * pitch);
    ranges = memory.take<ValueRange>(pitch / kPanelRows);
    factor_ranges = memory.take<ValueRange>(pitch / kPanelRows);
    if (!with_factors) return;
    const std::int64_t count = ceil_div(k, kLateBlock) * pitch;
    factors = memory.take<float>(count);
    if (factors != nullptr) std::fill_n(factors.get(), count, 1.0f);
  }
  void take_ranges() {
    range = factor_range = {};
    for (std::int64_t i = 0; i * kPanelRows < rows; ++i) {
      range.include(ranges[static_cast<std::size_t>(i)]);
      factor_range.include(factor_ranges[static_cast<std::size_t>(i)]);
    }
  }
  /// From `k` on, the panel that begins with `row`.
  std::uint16_t* panel(std::int64_t k, std::int64_t row) const {
    return values.get() + (k / kDepth * pitch + row) * kDepth + k % kDepth * kPanelRows;
  }
  float* row_factors(std::int64_t block, std::int64_t row) const {
    return factors.get() + block * pitch + row;
  }
};

/// Numbers from one row of B to the next, where sums of `rows` rows of A lie together. Rows of B
/// would share a few sets of a level-1 cache if it were a power of two.
constexpr std::int64_t sums_pitch(std::int64_t rows) {
  return ceil_div(rows, PairRows::kPanelRows) * PairRows::kPanelRows + 16;
}

/// A band of A, decoded: (slab, row of the band, k of the slab) -> f32, and each row's range in
/// each slab. Values and ranges are there once they are needed.
struct PackedBand {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  Array<float> values;
  Array<ValueRange> ranges;
  ValueRange range;  // of all rows and slabs
  // With few rows: in the lane order of chunk-inl.h, or of bf16_rows-inl.h.
  Array<float> arranged;
  Array<std::uint16_t> bf16_rows;

  PairRows pairs;        // where bf16 holds all elements of A and B
  IntegerRows integers;  // with FP4 on both sides, where there are integers

  Memory memory;
  std::int64_t most_rows = 0;
  std::mutex decoding;
  bool is_decoded = false;

  /// Makes room for `values` and `ranges` of most_rows rows.
  void take_values(std::int64_t slabs) {
    values = memory.take<float>(slabs * most_rows * kSlab);
    ranges = memory.take<ValueRange>(slabs * most_rows);
  }
  /// The range of all rows, once each has its own.
  void take_range(std::int64_t slabs) {
    range = {};
    std::for_each_n(ranges.get(), slabs * rows, [&](const ValueRange& x) { range.include(x); });
    is_decoded = true;
  }
  /// Sums are made in f64 throughout: whether f32 holds them depends on the other rows.
  bool is_batch_invariant = false;

  float* row(std::int64_t slab, std::int64_t r) const {
    return values.get() + (slab * rows + r) * kSlab;
  }
};

/// Rows that are divided into groups of equal size, but for one row, of at most `most`: 16 rows are
/// 8 + 8, not 14 + 2.
struct RowGroups {
  std::int64_t rows = 0;
  std::int64_t count = 0;

  constexpr RowGroups(std::int64_t rows_of_all, std::int64_t most)
      : rows(rows_of_all), count(ceil_div(rows_of_all, most)) {}

  constexpr std::int64_t begin(std::int64_t group) const { return rows * group / count; }
  constexpr std::int64_t end(std::int64_t group) const { return begin(group + 1); }
};

/// One matrix of the batch of D, C and bias, as bytes.
struct OutputMatrix {
  std::uint8_t* d = nullptr;
  std::int64_t d_row_stride = 0;  // bytes
  const std::uint8_t* c = nullptr;
  std::int64_t c_row_stride = 0;  // bytes
  const std::uint8_t* bias = nullptr;
  Format bias_dtype = Format::f32;
  const std::uint8_t* gate = nullptr;
  Format gate_dtype = Format::f32;
};

/// A block of D: rows [row_begin, row_end) of the band, columns from `column_begin` on.
struct Task {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t column_begin = 0;
  std::int64_t columns = 0;
};

}  // namespace blockscale::gemm_detail
