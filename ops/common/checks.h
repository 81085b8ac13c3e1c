// Checks of sizes, strides and pointers, with the errors that every operation throws for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "blockscale/error.h"
#include "core/scale_layout.h"

namespace blockscale::checks {

/// Sizes are kept below 2^57 so that bits of a whole tensor fit in an int64.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 57;

/// Names of arguments are "argument" or "argument.field".
inline std::string field_name(const char* argument, const char* field) {
  return field[0] == '\0' ? argument : std::string(argument) + "." + field;
}

[[noreturn]] inline void fail(const char* argument, const char* field, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, field_name(argument, field), message);
}

[[noreturn]] inline void fail(const char* argument, const std::string& message) {
  fail(argument, "", message);
}

inline std::string text(float value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", static_cast<double>(value));
  return buffer;
}

inline std::string is_but(std::int64_t value, const std::string& allowed) {
  return "is " + std::to_string(value) + ", must be " + allowed;
}

/// `meaning` says what `expected` is.
inline void check_equal(const char* argument, std::int64_t value, std::int64_t expected,
                        const char* meaning) {
  if (value == expected) return;
  fail(argument, "", is_but(value, std::to_string(expected) + ", " + meaning));
}

inline void check_threads(const char* argument, int threads) {
  if (threads < 0) fail(argument, "", is_but(threads, "0 (all) or more"));
}

/// x * y, at most kMaxSize. x, y >= 0.
inline std::int64_t product(const char* argument, const char* field, std::int64_t x,
                            std::int64_t y) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(x, y, &result) || result > kMaxSize) {
    fail(argument, field,
         "size overflows: " + std::to_string(x) + " * " + std::to_string(y) + " is above 2^57");
  }
  return result;
}

inline void check_size(const char* argument, const char* field, std::int64_t value,
                       std::int64_t least = 0) {
  if (value < least || value > kMaxSize) {
    fail(argument, field, is_but(value, "in " + std::to_string(least) + "..2^57"));
  }
}

/// `stride`, or `packed` for 0. Where there is no more than one step any will do; it becomes no
/// less than `packed`, so that nothing that is counted from it overlaps.
inline std::int64_t resolve_stride(const char* argument, const char* field, std::int64_t stride,
                                   std::int64_t packed, std::int64_t steps) {
  if (stride == 0) return packed;
  if (stride < 0 || stride > kMaxSize || (steps > 1 && stride < packed)) {
    fail(argument, field, is_but(stride, "0 (packed) or at least " + std::to_string(packed)));
  }
  return std::max(stride, packed);
}

inline void check_pointer(const char* argument, const char* field, const void* pointer, bool needed,
                          std::size_t alignment) {
  if (needed && pointer == nullptr) fail(argument, field, "is null, must point to data");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    fail(argument, field, "is misaligned, must be a multiple of " + std::to_string(alignment));
  }
}

template <class Number>
void check_numbers(const char* argument, const Number* numbers, bool needed = false) {
  check_pointer(argument, "", numbers, needed, alignof(Number));
}

inline void check_scale_layout(const char* argument, const char* field, ScaleLayout layout) {
  const int value = static_cast<int>(layout);
  if (value >= kScaleLayoutCount) {
    fail(argument, field, is_but(value, "in 0.." + std::to_string(kScaleLayoutCount - 1)));
  }
}

/// The leading stride of a grid of scales: `stride`, or the packed one for 0. The swizzled layouts
/// take no other.
inline std::int64_t resolve_leading_stride(const char* argument, const char* field,
                                           ScaleLayout layout, std::int64_t grid_rows,
                                           std::int64_t grid_columns, std::int64_t stride) {
  const std::int64_t packed = default_leading_stride(layout, grid_rows, grid_columns);
  if (is_swizzled(layout) && stride != 0 && stride != packed) {
    fail(argument, field,
         is_but(stride,
                "0 or " + std::to_string(packed) + " for " + scale_layout_traits(layout).name));
  }
  return resolve_stride(argument, field, stride, packed, 2);
}

/// default_batch_stride, at most kMaxSize.
inline std::int64_t packed_batch_stride(const char* argument, const char* field, ScaleLayout layout,
                                        std::int64_t grid_rows, std::int64_t grid_columns,
                                        std::int64_t leading) {
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  const std::int64_t lines =
      ceil_div(layout == ScaleLayout::mn_major ? grid_columns : grid_rows, t.tile_rows);
  product(argument, field, product(argument, field, lines, leading), t.tile_rows * t.tile_k);
  return default_batch_stride(layout, grid_rows, grid_columns, leading);
}

}  // namespace blockscale::checks
