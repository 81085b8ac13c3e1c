// Formats against the independent oracle over all 2^32 f32 inputs (BLOCKSCALE_EXHAUSTIVE=1), or a
// sample of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/format.h"
#include "core/format_test_oracle.h"
#include "core/format_test_sweep.h"

namespace blockscale {
namespace {

using oracle::float_of;
using oracle::kInfinity;
using oracle::kSign;

/// Errors of encode<F> for the bits in [begin, end), all of which the oracle sends to `expected`.
template <Format F>
std::int64_t count_differences(std::int64_t begin, std::int64_t end, std::int64_t step,
                               Overflow overflow, std::uint32_t expected) {
  std::int64_t errors = 0;
  for (std::int64_t bits = first_multiple(begin, step); bits < end; bits += step) {
    errors += encode<F>(float_of(static_cast<std::uint32_t>(bits)), overflow) != expected;
  }
  return errors;
}

/// Walks the intervals of inputs that the oracle sends to one code each.
template <Format F>
std::int64_t count_errors(const oracle::Rounding& rounding, Overflow overflow, std::int64_t begin,
                          std::int64_t end, std::int64_t step) {
  const std::int64_t sign = begin & kSign;  // pieces do not straddle it
  std::vector<std::int64_t> starts(rounding.first().begin(), rounding.first().end());
  starts.push_back(std::int64_t{kInfinity} + 1);  // NaNs
  starts.push_back(std::int64_t{kSign});
  std::int64_t errors = 0;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::int64_t from = std::max(begin, starts[i] + sign);
    const std::int64_t to = std::min(end, starts[i + 1] + sign);
    if (from >= to) continue;
    const auto bits = static_cast<std::uint32_t>(from);
    errors += count_differences<F>(from, to, step, overflow, rounding.encode(bits, overflow));
  }
  return errors;
}

template <Format F>
void check_all_inputs() {
  const oracle::Rounding rounding(F);
  for (const Overflow overflow : {Overflow::saturate, Overflow::propagate}) {
    EXPECT_EQ(sweep_f32([&](std::int64_t begin, std::int64_t end, std::int64_t step) {
                return count_errors<F>(rounding, overflow, begin, end, step);
              }),
              0);
  }
}

TEST(FormatExhaustive, E2m1) {
  check_all_inputs<Format::e2m1>();
}
TEST(FormatExhaustive, E2m3) {
  check_all_inputs<Format::e2m3>();
}
TEST(FormatExhaustive, E3m2) {
  check_all_inputs<Format::e3m2>();
}
TEST(FormatExhaustive, E4m3) {
  check_all_inputs<Format::e4m3>();
}
TEST(FormatExhaustive, E5m2) {
  check_all_inputs<Format::e5m2>();
}
TEST(FormatExhaustive, Ue4m3) {
  check_all_inputs<Format::ue4m3>();
}
TEST(FormatExhaustive, F16) {
  check_all_inputs<Format::f16>();
}
TEST(FormatExhaustive, Bf16) {
  check_all_inputs<Format::bf16>();
}

void check_all_ue8m0(ScaleRounding rounding) {
  for (const Overflow overflow : {Overflow::saturate, Overflow::propagate}) {
    const std::int64_t errors =
        sweep_f32([=](std::int64_t begin, std::int64_t end, std::int64_t step) {
          std::int64_t differences = 0;
          for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
            const auto bits = static_cast<std::uint32_t>(i);
            const bool up = rounding == ScaleRounding::up;
            differences += encode_ue8m0(float_of(bits), rounding, overflow) !=
                           oracle::encode_ue8m0(bits, up, overflow);
          }
          return differences;
        });
    EXPECT_EQ(errors, 0);
  }
}

TEST(FormatExhaustive, Ue8m0TowardZero) {
  check_all_ue8m0(ScaleRounding::toward_zero);
}
TEST(FormatExhaustive, Ue8m0Up) {
  check_all_ue8m0(ScaleRounding::up);
}

}  // namespace
}  // namespace blockscale
