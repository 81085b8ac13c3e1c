// What the CPU GEMM works on: A, decoded, and blocks of D.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/value_range.h"

namespace blockscale::gemm_detail {

/// An uninitialised, aligned array.
template <class T>
hwy::AlignedFreeUniquePtr<T[]> allocate(std::int64_t count) {
  auto result = hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<std::int64_t>(1, count)));
  if (result == nullptr) throw std::bad_alloc();
  return result;
}

/// `count` bytes of the calling thread, aligned and uninitialised, until its next call. They are
/// kept from task to task: what the kernel asks to map them anew takes as long as a small task.
inline std::uint8_t* thread_scratch(std::int64_t count) {
  thread_local hwy::AlignedFreeUniquePtr<std::uint8_t[]> scratch;
  thread_local std::int64_t size = 0;
  if (size < count) {
    scratch = allocate<std::uint8_t>(count);
    size = count;
  }
  return scratch.get();
}

/// A chunk of A in FP4 as integers-inl.h multiplies it: twice its values as bytes, and of each
/// block -12 times their sum and its factor over 4.
struct IntegerRows {
  std::int64_t first_row = 0;
  std::int64_t row_bytes = 0;
  std::int64_t blocks = 0;  // of a row
  hwy::AlignedFreeUniquePtr<std::int8_t[]> bytes;
  hwy::AlignedFreeUniquePtr<std::int32_t[]> offsets;
  hwy::AlignedFreeUniquePtr<float[]> factors;
  hwy::AlignedFreeUniquePtr<ValueRange[]> ranges;  // of each row's factors
  ValueRange range;                                // of all of them

  /// Makes room for `rows` rows of `k` codes in blocks of `block`.
  void allocate_rows(std::int64_t rows, std::int64_t k, std::int64_t block) {
    row_bytes = ceil_div(k, std::int64_t{128}) * 128;
    blocks = k / block;
    bytes = allocate<std::int8_t>(rows * row_bytes);
    offsets = allocate<std::int32_t>(rows * blocks);
    factors = allocate<float>(rows * blocks);
    ranges = allocate<ValueRange>(rows);
  }
};

/// A chunk of A, decoded: (slab, row of the chunk, k of the slab) -> f32, and each row's range in
/// each slab.
struct PackedChunk {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  hwy::AlignedFreeUniquePtr<float[]> values;
  hwy::AlignedFreeUniquePtr<ValueRange[]> ranges;
  ValueRange range;  // of all rows and slabs
  // With few rows: in the lane order of chunk-inl.h, or of bf16_rows-inl.h.
  hwy::AlignedFreeUniquePtr<float[]> arranged;
  hwy::AlignedFreeUniquePtr<std::uint16_t[]> bf16_rows;

  IntegerRows integers;  // with FP4 on both sides, where there are integers

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
};

/// A block of D: rows [row_begin, row_end) of the chunk, columns from `column_begin` on.
struct Task {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t column_begin = 0;
  std::int64_t columns = 0;
};

}  // namespace blockscale::gemm_detail
