// Transposes a tile in the cache, for every SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/transpose.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "ops/quantize/cpu/steps.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// Transposes a square of as many rows as a 128-bit vector has elements. Merging row i with row
/// i + n / 2 rotates the bits of each element's index (row, column) by one; log2(n) times is half a
/// turn, which swaps row and column.
template <class T>
HWY_INLINE void transpose_square(const T* in, std::int64_t in_stride, T* out,
                                 std::int64_t out_stride) {
  const hn::Full128<T> d;
  constexpr int kSize = 16 / sizeof(T);
  hn::Vec<decltype(d)> rows[kSize], merged[kSize];
  for (int i = 0; i < kSize; ++i) rows[i] = hn::LoadU(d, in + i * in_stride);
  for (int turn = 1; turn < kSize; turn *= 2) {
    for (int i = 0; i < kSize / 2; ++i) {
      merged[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kSize / 2]);
      merged[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kSize / 2]);
    }
    for (int i = 0; i < kSize; ++i) rows[i] = merged[i];
  }
  for (int i = 0; i < kSize; ++i) hn::StoreU(rows[i], d, out + i * out_stride);
}
#endif

template <class T>
void transpose_tile(const T* in, std::int64_t in_stride, std::int64_t rows, std::int64_t columns,
                    T* out, std::int64_t out_stride) {
  std::int64_t whole_rows = 0, whole_columns = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr std::int64_t kSize = 16 / sizeof(T);
  whole_rows = rows / kSize * kSize;
  whole_columns = columns / kSize * kSize;
  for (std::int64_t c = 0; c < whole_columns; c += kSize) {
    for (std::int64_t r = 0; r < whole_rows; r += kSize) {
      transpose_square(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
#endif
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) {
      std::memcpy(out + c * out_stride + r, in + r * in_stride + c, sizeof(T));
    }
  }
}

void transpose(int element_bytes, const void* in, std::int64_t in_stride, std::int64_t rows,
               std::int64_t columns, void* out, std::int64_t out_stride) {
  if (element_bytes == 2) {
    transpose_tile(static_cast<const std::uint16_t*>(in), in_stride, rows, columns,
                   static_cast<std::uint16_t*>(out), out_stride);
  } else {
    transpose_tile(static_cast<const std::uint32_t*>(in), in_stride, rows, columns,
                   static_cast<std::uint32_t*>(out), out_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(transpose);

namespace steps {

void transpose(int element_bytes, const void* in, std::int64_t in_stride, std::int64_t rows,
               std::int64_t columns, void* out, std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose)(element_bytes, in, in_stride, rows, columns, out, out_stride);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
