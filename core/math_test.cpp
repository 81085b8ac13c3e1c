// Errors of core/math.h's functions over all f32 inputs (BLOCKSCALE_EXHAUSTIVE=1), or a sample of
// them, and what they make of zeros, infinities and NaN.
#include "core/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <vector>

#include "core/format_test_sweep.h"

namespace blockscale {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRoot2 = 1.4142135623730951;
constexpr double kRoot2OverPi = 0.79788456080286536;  // sqrt(2 / pi)

/// |value - exact| in units of the last place of an f32 of exact's size.
double error_in_ulp(float value, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(value) - exact) / std::ldexp(1.0, exponent - 23);
}

/// A lower end of a range, and the largest error allowed from there on.
struct Bound {
  float low;
  double ulp;
};

/// Checks the largest error over the f32 in [low, high] for each bound, and prints it for
/// docs/numerics.md. Bounds are in the order of falling `low`.
template <class Function, class Reference>
void check_errors(const char* name, const std::vector<Bound>& bounds, float high,
                  const Function& function, const Reference& reference) {
  std::mutex mutex;
  std::vector<double> largest(bounds.size(), 0.0);
  sweep_f32([&](std::int64_t begin, std::int64_t end, std::int64_t step) {
    std::vector<double> found(bounds.size(), 0.0);  // between a bound and the one before
    for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
      if (!(x >= bounds.back().low && x <= high)) continue;
      std::size_t range = 0;
      while (x < bounds[range].low) ++range;
      const double error = error_in_ulp(function(x), reference(static_cast<double>(x)));
      if (!(error <= found[range])) found[range] = error;  // NaN, too
    }
    const std::lock_guard lock(mutex);
    for (std::size_t b = 0; b < bounds.size(); ++b) {
      if (!(found[b] <= largest[b])) largest[b] = found[b];
    }
    return std::int64_t{0};
  });
  double worst = 0;
  for (std::size_t b = 0; b < bounds.size(); ++b) {
    if (!(largest[b] <= worst)) worst = largest[b];
    std::printf("%s from %g: %.2f ulp\n", name, static_cast<double>(bounds[b].low), worst);
    EXPECT_LE(worst, bounds[b].ulp) << name << " from " << bounds[b].low;
    EXPECT_GT(worst, bounds[b].ulp / 2) << "the bound is too loose";
  }
}

double exact_gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * kRoot2OverPi * (x + 0.044715 * x * x * x)));
}
double exact_gelu_erf(double x) {
  return x * std::erfc(-x / kRoot2) / 2;
}

TEST(Math, ExpError) {
  check_errors(
      "exp", {{-87, 1.1}}, 87, [](float x) { return math::exp(x); },
      [](double x) { return std::exp(x); });
}

TEST(Math, SigmoidError) {
  check_errors(
      "sigmoid", {{-87, 2.5}}, kInfinity, [](float x) { return math::sigmoid(x); },
      [](double x) { return 1 / (1 + std::exp(-x)); });
}

TEST(Math, SiluError) {
  check_errors(
      "silu", {{-87, 2.9}}, std::numeric_limits<float>::max(),
      [](float x) { return math::silu(x); }, [](double x) { return x / (1 + std::exp(-x)); });
}

TEST(Math, ReciprocalSqrtError) {
  check_errors(
      "reciprocal_sqrt", {{std::numeric_limits<float>::denorm_min(), 1.5}},
      std::numeric_limits<float>::max(), [](float x) { return math::reciprocal_sqrt(x); },
      [](double x) { return 1 / std::sqrt(x); });
}

// In GELU's tails an exponent's rounding becomes the result's error, so it grows with |x|.

TEST(Math, GeluTanhError) {
  check_errors(
      "gelu_tanh", {{-1, 3.9}, {-2, 8.1}, {-4, 16.1}, {-10, 160}}, 1e12f,
      [](float x) { return math::gelu_tanh(x); }, exact_gelu_tanh);
}

TEST(Math, GeluErfError) {
  check_errors(
      "gelu_erf", {{-1, 11}, {-2, 18}, {-4, 45}, {-8, 500}}, 1e12f,
      [](float x) { return math::gelu_erf(x); }, exact_gelu_erf);
}

/// Below the range of their tails functions stay where they are, next to zero.
TEST(Math, FarTailsAreNextToZero) {
  for (const float x : {-10.5f, -88.0f, -1e4f, -1e30f, -kInfinity}) {
    EXPECT_EQ(math::gelu_tanh(x), math::gelu_tanh(-10.0f));
    EXPECT_EQ(math::gelu_erf(x), math::gelu_erf(-8.0f));
  }
  for (const float x : {-87.5f, -1e4f, -std::numeric_limits<float>::max(), -kInfinity}) {
    EXPECT_EQ(math::silu(x), math::silu(-87.0f));
    EXPECT_EQ(math::exp(x), math::exp(-87.0f));
  }
  EXPECT_LT(std::fabs(math::gelu_tanh(-10.0f)), 0x1p-121f);
  EXPECT_LT(std::fabs(math::gelu_erf(-8.0f)), 0x1p-47f);
  EXPECT_LT(std::fabs(math::silu(-87.0f)), 0x1p-118f);
  EXPECT_EQ(math::exp(kInfinity), math::exp(87.0f));
}

TEST(Math, SpecialValues) {
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  EXPECT_EQ(math::sigmoid(0.0f), 0.5f);
  EXPECT_EQ(math::sigmoid(kInfinity), 1.0f);
  using Function = float (*)(float);
  for (const Function f :
       {Function{math::gelu_tanh}, Function{math::gelu_erf}, Function{math::silu}}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(f(0.0f)), 0u);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(f(-0.0f)), 0x80000000u);
    EXPECT_EQ(f(kInfinity), kInfinity);
    EXPECT_EQ(f(1e30f), 1e30f);
    EXPECT_TRUE(std::isnan(f(kNan)));
    EXPECT_TRUE(std::isnan(f(-kNan)));
    EXPECT_EQ(f(0x1p-130f), 0x1p-131f);
  }
}

TEST(Math, OperandsRoundWhereTheRulesSaySo) {
  // 1 + scale is rounded before it is multiplied; the sum is not rounded apart.
  EXPECT_EQ(math::modulate(3.0f, 0x1p-25f, 0.0f), 3.0f);
  EXPECT_EQ(math::modulate(1.0f + 0x1p-12f, 0x1p-12f, -1.0f),
            static_cast<float>((1 + 0x1p-12) * (1 + 0x1p-12) - 1));
  // x r overflows before the weight could bring it back.
  EXPECT_EQ(math::rms_norm(0x1p100f, 0x1p100f, 0x1p-100f), kInfinity);
  EXPECT_EQ(math::swiglu(-kInfinity, 1.0f), math::silu(-87.0f));
}

}  // namespace
}  // namespace blockscale
