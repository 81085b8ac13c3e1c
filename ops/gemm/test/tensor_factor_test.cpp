#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "ops/gemm/kernels/tensor_scale.cuh"

namespace blockscale {
namespace {

using Sums = std::array<float, 4>;

/// What a tensor scale makes of sums, beside what division and multiplication make of each.
void expect_each(const Sums& sums, float value) {
  for (const bool divides : {false, true}) {
    const TensorFactor factor(value, divides);
    float together[4];
    std::copy(sums.begin(), sums.end(), together);
    factor.apply(together);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float expected = divides ? sums[i] / value : sums[i] * value;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(together[i])) << sums[i] << (divides ? " / " : " * ") << value;
      } else {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(together[i]), std::bit_cast<std::uint32_t>(expected))
            << sums[i] << (divides ? " / " : " * ") << value;
      }
      EXPECT_EQ(std::bit_cast<std::uint32_t>(factor(sums[i])),
                std::bit_cast<std::uint32_t>(together[i]));
    }
  }
}

/// Zeros, subnormal numbers, those about the limits of quotients by a reciprocal, and none.
TEST(TensorFactor, DividesWhateverTheSum) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSums[] = {0,
                             -0.0f,
                             0x1p-149f,
                             -0x1.8p-127f,
                             0x1p-126f,
                             0x1p-91f,
                             -0x1p-90f,
                             0x1.fffffep-91f,
                             1.5f,
                             -3,
                             0x1p94f,
                             0x1.8p94f,
                             -0x1.fffffep127f,
                             kInfinity,
                             -kInfinity,
                             std::numeric_limits<float>::quiet_NaN()};
  constexpr float kValues[] = {0x1.8p-127f, 0x1.1p-100f, 0x1.fp-33f, 0x1.3p-32f,
                               0.1f,        1,           2688,       448 * 6.7f,
                               0x1p32f,     0x1.1p32f,   0x1p100f,   0x1.fffffep127f};
  for (const float value : kValues) {
    for (const float sum : kSums) expect_each({1, sum, -7.25f, 0}, value);
  }
}

/// The nearest to halfway between two numbers that quotients of 24 bits come: for a divisor of
/// significand b those with a 2^k = b m + 1 or b m - 1, where m is halfway.
TEST(TensorFactor, RoundsQuotientsNextToHalfway) {
  std::mt19937 random(5);
  int cases = 0;
  while (cases < 20000) {
    const std::uint64_t b = (1u << 23) | (random() % (1u << 23)) | 1;
    std::uint64_t inverse = 1;  // of b, modulo 2^64
    for (int i = 0; i < 6; ++i) inverse *= 2 - b * inverse;
    for (const int k : {24, 25}) {
      for (const std::uint64_t rest : {std::uint64_t{1}, ~std::uint64_t{0}}) {
        const std::uint64_t m = (std::uint64_t{0} - rest * inverse) & ((std::uint64_t{1} << k) - 1);
        const std::uint64_t halfway = k == 24 ? m | 1u << 24 : m;
        const std::uint64_t a = (b * halfway + rest) >> k;
        if (halfway >> 24 != 1 || a >> 23 != 1) continue;
        ++cases;
        const float sum = static_cast<float>(a), value = std::ldexp(static_cast<float>(b), -18);
        expect_each({sum, -sum, 0, sum}, value);
      }
    }
  }
}

}  // namespace
}  // namespace blockscale
