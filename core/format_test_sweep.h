// A sweep over f32 inputs, for tests: a sample of them, or all 2^32 with BLOCKSCALE_EXHAUSTIVE=1
// (but in sanitized builds, where it takes long and shows nothing new); and the size of an error.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "blockscale/parallel.h"
#include "core/sanitizer_test_share.h"

namespace blockscale {

inline bool exhaustive() {
  const char* value = std::getenv("BLOCKSCALE_EXHAUSTIVE");
  return !test::kIsSanitized && value != nullptr && std::strcmp(value, "1") == 0;
}

/// One in so many inputs is tried without BLOCKSCALE_EXHAUSTIVE; a prime, so that no bit is fixed.
inline constexpr std::int64_t kSampleStep = 2039;

/// Sum of count_errors(begin, end, step) over pieces of [0, 2^32), the bits of all f32, on all
/// threads. Each call tries the multiples of `step` in [begin, end).
template <class CountErrors>
std::int64_t sweep_f32(const CountErrors& count_errors) {
  const std::int64_t step = exhaustive() ? 1 : kSampleStep;
  std::atomic<std::int64_t> errors = 0;
  parallel_for(
      std::int64_t{1} << 32, std::int64_t{1} << 22, 0,
      [&](std::int64_t begin, std::int64_t end) { errors += count_errors(begin, end, step); });
  return errors;
}

/// |value - exact| in units of the last place of an f32 of exact's size.
inline double error_in_ulp(float value, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(value) - exact) / std::ldexp(1.0, exponent - 23);
}

/// The first multiple of `step` that is not below `begin`.
inline std::int64_t first_multiple(std::int64_t begin, std::int64_t step) {
  return (begin + step - 1) / step * step;
}

}  // namespace blockscale
