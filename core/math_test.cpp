// Errors of core/math.h's functions over all f32 inputs (BLOCKSCALE_EXHAUSTIVE=1), or a sample of
// them and all of bf16 and f16, and what they make of zeros, infinities and NaN.
#include "core/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>

#include "core/format.h"
#include "core/format_test_sweep.h"

namespace blockscale {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRoot2 = 1.4142135623730951;
constexpr double kRoot2OverPi = 0.79788456080286536;  // sqrt(2 / pi)

/// The larger error; NaN is infinitely wrong.
double larger(double a, double b) {
  return std::max(a, std::isnan(b) ? std::numeric_limits<double>::infinity() : b);
}

double exact_gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * kRoot2OverPi * (x + 0.044715 * x * x * x)));
}
double exact_gelu_erf(double x) {
  return x * std::erfc(-x / kRoot2) / 2;
}
double exact_silu(double x) {
  return x / (1 + std::exp(-x));
}

/// Numbers as they are made of Swiglu's.
SwigluNumbers swiglu_numbers(float limit, float alpha, float up_shift) {
  return {limit, alpha, 1 / alpha, up_shift == 0 ? -0.0f : up_shift};
}

struct Activation {
  const char* name;
  float (*function)(float);
  double (*exact)(double);
  float end;       // of its tail
  double share;    // the largest error, of what is allowed
  float negative;  // what is below -end gives
};
constexpr Activation kActivations[] = {
    {"gelu_tanh", math::gelu_tanh, exact_gelu_tanh, math::kGeluTanh.end, 0.475, -4.3e-7f},
    {"gelu_erf", math::gelu_erf, exact_gelu_erf, math::kGeluErf.end, 0.210, -1.2e-7f},
    {"silu", math::silu, exact_silu, math::kSilu.end, 0.578, -2.8e-6f}};

/// What docs/numerics.md allows an activation of x that is `exact`.
double allowed_error(double x, double exact) {
  const double size = std::fabs(exact), magnitude = std::fabs(x);
  return size > 0x1p-10 * magnitude ? 0x1p-12 * size : 0x1p-22 * magnitude;
}

/// |f(x) - exact| as a part of that.
double share_of_allowed(const Activation& f, float x) {
  const double exact = f.exact(static_cast<double>(x));
  const double allowed = allowed_error(static_cast<double>(x), exact);
  const double error = std::fabs(static_cast<double>(f.function(x)) - exact);
  return larger(0, error - 0x1p-149) / std::max(allowed, 0x1p-200);  // no 0 / 0
}

/// Calls check(x) for every finite number of a 16-bit format in [low, high], the smallest first.
template <Format kFormat, class Check>
void for_each_number(float low, float high, const Check& check) {
  const std::uint32_t infinity = format_traits(kFormat).max_code + 1;
  for (std::uint32_t i = infinity - 1; i > 0; --i) {
    const float x = -decode<kFormat>(i);
    if (low <= x && x <= high) check(x);
  }
  for (std::uint32_t i = 0; i < infinity; ++i) {
    const float x = decode<kFormat>(i);
    if (low <= x && x <= high) check(x);
  }
}

template <class Check>
void for_each_16_bit_number(float low, float high, const Check& check) {
  for_each_number<Format::bf16>(low, high, check);
  for_each_number<Format::f16>(low, high, check);
}

constexpr float kLargest = std::numeric_limits<float>::max();

/// The largest error(x) over the finite f32 of at least `low` that sweep_f32 tries.
template <class Error>
double largest_error(float low, const Error& error) {
  std::mutex mutex;
  double largest = 0;
  sweep_f32([&](std::int64_t begin, std::int64_t end, std::int64_t step) {
    double found = 0;
    for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
      if (x >= low && x <= kLargest) found = larger(found, error(x));
    }
    const std::lock_guard lock(mutex);
    largest = larger(largest, found);
    return std::int64_t{0};
  });
  return largest;
}

/// Prints the largest error for docs/numerics.md and compares it with what is said there.
void expect_error(const char* name, double largest, double bound) {
  std::printf("%s: %.4f\n", name, largest);
  EXPECT_LE(largest, bound) << name;
  EXPECT_GT(largest, bound * 0.97) << name << ": the bound is too loose";
}

TEST(Math, ReciprocalSqrtError) {
  const double largest = largest_error(std::numeric_limits<float>::denorm_min(), [](float x) {
    return error_in_ulp(math::reciprocal_sqrt(x), 1 / std::sqrt(static_cast<double>(x)));
  });
  expect_error("reciprocal_sqrt, units of the last place", largest, 1.5);
}

TEST(Math, ActivationErrors) {
  for (const Activation& f : kActivations) {
    const auto share = [&f](float x) { return share_of_allowed(f, x); };
    double largest = largest_error(-kLargest, share);
    for_each_16_bit_number(-kLargest, kLargest,
                           [&](float x) { largest = larger(largest, share(x)); });
    expect_error(f.name, largest, f.share);
  }
}

/// gate sigmoid(alpha gate) alone, then with ups that are clamped and shifted.
TEST(Math, ClampedSwigluErrors) {
  for (const float alpha : {1.702f, -0.3f, 5.0f}) {
    const double exact_alpha = static_cast<double>(alpha), a = std::fabs(exact_alpha);
    const SwigluNumbers alone = swiglu_numbers(kInfinity, alpha, 0);
    const SwigluNumbers shifted = swiglu_numbers(7.0f, alpha, 1.0f);
    const auto exact_gate = [&](double gate) { return gate / (1 + std::exp(-exact_alpha * gate)); };
    const double absolute = 0x1p-149 * (2 + 2 / a);
    const auto share = [&](float gate) {
      const auto x = static_cast<double>(gate);
      if (a * std::fabs(x) > static_cast<double>(kLargest)) return 0.0;
      const double exact = exact_gate(x);
      const double error =
          std::fabs(static_cast<double>(math::clamped_swiglu(gate, 1.0f, alone)) - exact);
      return larger(0, error - absolute) / std::max(allowed_error(x, exact), 0x1p-200);
    };
    const auto shifted_share = [&](float gate) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(gate) * 2654435761u;
      const float up = static_cast<float>(bits >> 8) * 0x1p-20f - 8.0f;  // -8 to 8
      const double x = std::min(static_cast<double>(gate), 7.0);
      const double factor = std::clamp(static_cast<double>(up), -7.0, 7.0) + 1;
      const double exact = exact_gate(x) * factor;
      const double allowed =
          allowed_error(x, exact_gate(x)) * std::fabs(factor) + 0x1p-23 * std::fabs(exact);
      const double error =
          std::fabs(static_cast<double>(math::clamped_swiglu(gate, up, shifted)) - exact);
      return larger(0, error - absolute * (1 + std::fabs(factor))) / std::max(allowed, 0x1p-200);
    };
    double largest = largest_error(-kLargest, share);
    for_each_16_bit_number(-kLargest, kLargest,
                           [&](float x) { largest = larger(largest, share(x)); });
    expect_error(("silu(" + std::to_string(alpha) + " gate), over that").c_str(), largest, 0.578);
    EXPECT_LE(largest_error(-kLargest / 8, shifted_share), 0.58) << alpha;
  }
}

TEST(Math, ClampedSwigluKeepsNanAndIsTheUsualOneByItsNumbers) {
  const SwigluNumbers usual = swiglu_numbers(kInfinity, 1, 0);
  const SwigluNumbers of_gpt_oss = swiglu_numbers(7, 1.702f, 1);
  const float numbers[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0.3f,      -0.3f,      7.5f,
                           -8.f, 1e30f, -1e30f,    kLargest,   kInfinity, -kInfinity, 1e-30f};
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  for (const float gate : numbers) {
    for (const float up : numbers) {
      const float expected = math::swiglu(gate, up), got = math::clamped_swiglu(gate, up, usual);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_EQ(bits(got), bits(expected)) << gate << ", " << up;
      }
      EXPECT_EQ(math::clamped_swiglu(gate, up, of_gpt_oss),
                math::clamped_swiglu(std::min(gate, 7.0f), std::clamp(up, -7.0f, 7.0f),
                                     swiglu_numbers(kInfinity, 1.702f, 1)));
    }
    for (const SwigluNumbers& n : {usual, of_gpt_oss}) {
      for (const float nan : {kNan, -kNan}) {
        EXPECT_TRUE(std::isnan(math::clamped_swiglu(nan, gate, n))) << gate;
        EXPECT_TRUE(std::isnan(math::clamped_swiglu(gate, nan, n))) << gate;
      }
    }
  }
}

/// What finds the largest magnitude of GELU from the largest x relies on this.
TEST(Math, ActivationsOf16BitNumbersGrow) {
  for (const Activation& f : kActivations) {
    const auto check_growth = [&](auto format) {
      float last = 0;
      for_each_number<format()>(0.0f, kLargest, [&](float x) {
        const float y = f.function(x);
        ASSERT_GE(y, last) << f.name << " of " << x;
        ASSERT_LE(y, x) << f.name;
        last = y;
      });
    };
    check_growth(std::integral_constant<Format, Format::bf16>());
    check_growth(std::integral_constant<Format, Format::f16>());
  }
}

TEST(Math, NegativeGeluStaysBelowThatOfOrderedNumbers) {
  for (const Activation& f : {kActivations[0], kActivations[1]}) {
    EXPECT_GT(f.function(0.28125f), 0.1705f) << f.name;
    const std::int64_t wrong =
        sweep_f32([&f](std::int64_t begin, std::int64_t end, std::int64_t step) {
          std::int64_t count = 0;
          for (std::int64_t i = first_multiple(begin, step); i < end; i += step) {
            const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
            if (x < 0 && !(f.function(x) <= 0 && f.function(x) > -0.1705f)) ++count;
          }
          return count;
        });
    EXPECT_EQ(wrong, 0) << f.name;
    for_each_16_bit_number(-kLargest, -0x1p-149f, [&f](float x) {
      ASSERT_LE(f.function(x), 0.0f) << f.name << " of " << x;
      ASSERT_GT(f.function(x), -0.1705f) << f.name << " of " << x;
    });
  }
}

/// Beyond the ends of their tails functions stay where they are, next to zero and to x.
TEST(Math, TailsEndNextToZero) {
  for (const Activation& f : kActivations) {
    for (const float x : {-f.end, -1.01f * f.end, -1e4f, -1e30f, -kLargest, -kInfinity}) {
      EXPECT_EQ(f.function(x), f.function(-f.end)) << f.name;
    }
    EXPECT_LT(f.function(-f.end), 0.0f) << f.name;
    EXPECT_GT(f.function(-f.end), f.negative) << f.name;
    for (const float x : {1e3f, 1e4f, 1e30f, kLargest}) EXPECT_EQ(f.function(x), x) << f.name;
  }
}

TEST(Math, SpecialValues) {
  for (const Activation& f : kActivations) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(f.function(0.0f)), 0u);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(f.function(-0.0f)), 0x80000000u);
    EXPECT_EQ(f.function(kInfinity), kInfinity);
    EXPECT_TRUE(std::isnan(f.function(kNan)));
    EXPECT_TRUE(std::isnan(f.function(-kNan)));
  }
}

TEST(Math, OperandsRoundWhereTheRulesSaySo) {
  // 1 + scale is rounded before it is multiplied; the sum is not rounded apart.
  EXPECT_EQ(math::modulate(3.0f, 0x1p-25f, 0.0f), 3.0f);
  EXPECT_EQ(math::modulate(1.0f + 0x1p-12f, 0x1p-12f, -1.0f),
            static_cast<float>((1 + 0x1p-12) * (1 + 0x1p-12) - 1));
  // x r overflows before the weight could bring it back.
  EXPECT_EQ(math::rms_norm(0x1p100f, 0x1p100f, 0x1p-100f), kInfinity);
  EXPECT_EQ(math::swiglu(-kInfinity, 1.0f), math::silu(-15.8f));
}

}  // namespace
}  // namespace blockscale
