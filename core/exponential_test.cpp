// Errors of core/exponential.h over all f32 inputs (BLOCKSCALE_EXHAUSTIVE=1) or a sample of them,
// and what it makes of the numbers at the ends.
#include "core/exponential.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>

#include "core/format_test_sweep.h"

namespace blockscale {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The largest error, in ulp, of function(x) for the inputs of a sweep with a finite result.
template <class Function, class Exact>
double largest_error(const Function& function, const Exact& exact) {
  double largest = 0;
  std::mutex mutex;
  sweep_f32([&](std::int64_t begin, std::int64_t end, std::int64_t step) -> std::int64_t {
    double of_piece = 0;
    for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
      const double y = exact(static_cast<double>(x));
      if (!(y < 0x1.ffffffp127)) continue;  // NaN, or rounds to infinity
      of_piece = std::max(of_piece, error_in_ulp(function(x), y));
    }
    const std::lock_guard lock(mutex);
    largest = std::max(largest, of_piece);
    return 0;
  });
  return largest;
}

TEST(Exponential, IsWithinItsBound) {
  const double error = largest_error(math::exponential, [](double x) { return std::exp(x); });
  EXPECT_LT(error, 1.1);
  EXPECT_GT(error, 1.0);
}

// Most f32 are far below 1 or far above it: these are not.
TEST(Exponential, IsWithinItsBoundWhereResultsAreOrdinary) {
  double largest = 0;
  float before = 0;
  for (double at = -104.5; at < 89; at += 0x1p-13) {
    const auto x = static_cast<float>(at);
    const float y = math::exponential(x);
    EXPECT_GE(y, before) << x;
    before = y;
    const double exact = std::exp(static_cast<double>(x));
    if (exact < 0x1.ffffffp127) largest = std::max(largest, error_in_ulp(y, exact));
  }
  EXPECT_LT(largest, 1.1);
  EXPECT_GT(largest, 1.0);
}

TEST(Exponential, NeverFalls) {
  const std::int64_t falls =
      sweep_f32([](std::int64_t begin, std::int64_t end, std::int64_t step) -> std::int64_t {
        std::int64_t count = 0;
        for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
          const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
          const float next = std::nextafter(x, kInfinity);
          count += math::exponential(next) < math::exponential(x) ? 1 : 0;
        }
        return count;
      });
  EXPECT_EQ(falls, 0);
  // Neighbours around each boundary between two powers of two.
  for (int n = -150; n <= 128; ++n) {
    float x = static_cast<float>((n + 0.5) * std::log(2.0));
    for (int i = 0; i < 64; ++i) x = std::nextafter(x, -kInfinity);
    for (int i = 0; i < 128; ++i) {
      const float next = std::nextafter(x, kInfinity);
      EXPECT_LE(math::exponential(x), math::exponential(next)) << x;
      x = next;
    }
  }
}

TEST(Exponential, AtTheEnds) {
  using math::exponential;
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-0.0f), 1.0f);
  EXPECT_EQ(exponential(0x1p-149f), 1.0f);
  EXPECT_EQ(exponential(kInfinity), kInfinity);
  EXPECT_EQ(exponential(-kInfinity), 0.0f);
  EXPECT_FALSE(std::signbit(exponential(-kInfinity)));
  EXPECT_TRUE(std::isnan(exponential(kNan)));
  EXPECT_TRUE(std::isnan(exponential(-kNan)));
  EXPECT_EQ(exponential(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(exponential(-std::numeric_limits<float>::max()), 0.0f);
  // The last finite result and the first infinite one; the last subnormal one and the first 0.
  EXPECT_LT(exponential(0x1.62e42ep6f), kInfinity);
  EXPECT_EQ(exponential(0x1.62e430p6f), kInfinity);
  EXPECT_EQ(exponential(-103.9f), 0x1p-149f);
  EXPECT_EQ(exponential(-103.98f), 0.0f);
}

TEST(Sigmoid, IsWithinItsBound) {
  const double error =
      largest_error(math::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
  // Where e^-x overflows, results are 0: below 2^-126, 2^23 units of the last place at most.
  EXPECT_LT(error, 0x1p23);
  for (float x = -87; x < 30; x += 0x1p-10f) {
    const double exact = 1 / (1 + std::exp(-static_cast<double>(x)));
    ASSERT_LT(error_in_ulp(math::sigmoid(x), exact), 2.5) << x;
  }
  EXPECT_EQ(math::sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(math::sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(math::sigmoid(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(math::sigmoid(kNan)));
}

}  // namespace
}  // namespace blockscale
