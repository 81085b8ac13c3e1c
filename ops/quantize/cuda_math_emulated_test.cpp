// The quantisers' short cuts on CUDA against core's conversions and against division: all inputs
// for which they are claimed to be exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <type_traits>

#include "core/format.h"
#include "core/math.h"
#include "ops/quantize/kernel_sm90_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"

namespace blockscale {
namespace {

namespace k = quantize_sm90;

/// Every significand in one binade (quotients scale with powers of two), and the last binade whose
/// quotients are normal numbers.
template <int kDivisor>
void check_division() {
  for (const std::uint32_t exponent : {127u, 254u, 30u}) {
    for (std::uint32_t fraction = 0; fraction < 1u << 23; ++fraction) {
      const float a = bit_cast<float>(exponent << 23 | fraction);
      ASSERT_EQ(k::divide_by<kDivisor>(a), a / static_cast<float>(kDivisor)) << a;
    }
  }
}

TEST(CudaMath, DividesBySix) {
  check_division<6>();
}
TEST(CudaMath, DividesByTheLargestE4m3) {
  check_division<448>();
}
TEST(CudaMath, DividesByTheLargestE5m2) {
  check_division<57344>();
}

/// Every significand, at both ends of the range without branches and beyond it.
TEST(CudaMath, TensorScalesOfNvfp4) {
  for (const std::uint32_t exponent : {127u, 27u, 26u, 226u, 227u, 254u, 0u}) {
    for (std::uint32_t fraction = 0; fraction < 1u << 23; ++fraction) {
      const std::uint32_t bits = exponent << 23 | fraction;
      const float expected =
          bits == 0 ? 1.0f : std::min(2688.0f / bit_cast<float>(bits), k::kLargestFinite);
      ASSERT_EQ(k::nvfp4_tensor_scale(bits), expected) << bits;
    }
  }
}

/// Quotients below 2^-126 are raised to it, so that they need not be exact.
TEST(CudaMath, ScalesOfTinyMaximaAreTheSmallestNormalNumber) {
  for (std::uint32_t amax = 1; amax < 0x06000000u; amax += 977) {
    const float expected = std::max(bit_cast<float>(amax) / 448.0f, 0x1p-126f);
    ASSERT_EQ(k::fp8_scale<Format::e4m3>(amax, 0.0f, Fp8Scale::f32), expected) << amax;
  }
}

/// x / s of elements against division, for scales from the smallest that is claimed.
TEST(CudaMath, QuotientsRoundAsDivisionDoes) {
  std::uint32_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t exponent = 63 + state % 180;
    const float s = bit_cast<float>(exponent << 23 | (state * 2654435761u >> 9));
    const float ratio = bit_cast<float>((118 + (state >> 7) % 18) << 23 | (state >> 9));
    const float x = s * ratio;  // about 2^-9 to 2^9
    if (!std::isfinite(x)) continue;
    const k::Quotient quotient{s, 1.0f / s};
    ASSERT_EQ(quotient(x), x / s) << x << " / " << s;
    ASSERT_EQ(k::ExactQuotient<Format::e4m3>(s).quotient(x), x / s);
  }
  EXPECT_TRUE(std::signbit(k::Quotient{3.0f, 1.0f / 3.0f}(-0.0f)));
  EXPECT_FALSE(std::signbit(k::Quotient{3.0f, 1.0f / 3.0f}(0.0f)));
}

/// Calls check(chunk, scale, e) for chunks that hold every 16-bit finite number of either sign,
/// with each exponent e that a block with it may have and some below.
template <Format kInput, Format kElement, class Check>
void for_all_numbers(const Check& check) {
  constexpr std::uint32_t kInfinity = format_traits(kInput).max_code + 1;
  for (std::uint32_t first = 0; first < kInfinity; first += 4) {
    k::Chunk<kInput, 8> chunk;
    for (std::uint32_t j = 0; j < 4; ++j) {
      chunk.word[j] = (first + j) | (first + j) << 16 | (j % 2 == 0 ? 0x80000000u : 0x8000u);
    }
    const float largest = decode<kInput>(first + 3);
    const int exponent = largest == 0 ? 0 : std::ilogb(largest);
    // The largest element's exponent becomes that of the format's largest, as with the floor mode.
    constexpr int kMost = format_traits(kElement).max_exponent;
    for (int e = std::max(-127, exponent - kMost); e <= std::min(126, exponent + 9); ++e) {
      if (kInput == Format::f16 && (e < -24 - kMost || e > 14))
        continue;  // no f16 is so small or large
      k::BlockScale scale;
      scale.factor = std::ldexp(1.0f, -e);
      check(chunk, scale, e);
    }
  }
}

template <Format kInput, Format kElement, bool kExact>
void check_codes() {
  for_all_numbers<kInput, kElement>(
      [&](const k::Chunk<kInput, 8>& chunk, const k::BlockScale& scale, int e) {
        const auto codes = k::encode_chunk<kElement, ScaleRule::mx, kExact>(chunk, scale);
        for (int i = 0; i < 8; ++i) {
          const double scaled = std::ldexp(static_cast<double>(k::value_at(chunk, i)), -e);
          // What f32 cannot hold is far below half of the smallest code.
          const auto expected = encode<kElement>(static_cast<float>(scaled));
          constexpr int kBits = format_traits(kElement).bits;
          std::uint32_t code = 0;
          for (int b = 0; b < kBits; ++b) {
            const int bit = i * kBits + b;
            code |= (codes.word[bit / 32] >> (bit % 32) & 1u) << b;
          }
          ASSERT_EQ(code, expected) << k::value_at(chunk, i) << " * 2^" << -e;
        }
      });
}

/// Ties of e4m3 are odd multiples, up to 31, of half the distance of codes. Of the numbers next to
/// a tie times s roundings may decide on which side of the tie their quotient lies; all others are
/// far away from it. What is left out are the scales that are exceptional.
TEST(CudaMath, ShortQuotientsHaveTheCodesOfQuotients) {
  for (std::uint32_t significand = 1u << 23; significand < 1u << 24; ++significand) {
    const float s = static_cast<float>(significand);
    if (k::ShortQuotient::is_exceptional(s)) continue;
    const k::ShortQuotient quotient(s);
    ASSERT_GE(quotient.low, 0.0f) << s;
    for (std::uint32_t tie = 1; tie < 32; tie += 2) {
      const std::uint64_t product = std::uint64_t{significand} * tie;
      const int dropped = static_cast<int>(std::bit_width(product)) - 24;
      const float t = static_cast<float>(tie);
      for (int beyond = -2; beyond <= 3; ++beyond) {
        const std::uint64_t kept = (product >> dropped) + static_cast<std::uint64_t>(beyond);
        const float x = static_cast<float>(kept << dropped);
        const float exact = x / s;
        const float found = quotient(x);
        ASSERT_TRUE((exact < t) == (found < t) && (exact > t) == (found > t)) << x << " / " << s;
      }
    }
  }
}

/// Both ends of the scales that it takes, and signs of 0.
TEST(CudaMath, ShortQuotientsHaveRangeAndSigns) {
  for (const float s : {k::kSmallestExactScale, 0x1.4p-60f, 1.0f, 1.1f, 0x1.8p95f, 0x1p96f}) {
    ASSERT_FALSE(k::ShortQuotient::is_exceptional(s));
    const k::ShortQuotient quotient(s);
    ASSERT_NEAR(quotient(s * 448), 448.0f, 1e-4f);
    ASSERT_NEAR(quotient(s * -0x1p-9f), -0x1p-9f, 1e-9f);
    ASSERT_EQ(bit_cast<std::uint32_t>(quotient(0.0f)), 0u);
    ASSERT_EQ(bit_cast<std::uint32_t>(quotient(-0.0f)), 0x80000000u);
  }
  ASSERT_TRUE(k::ShortQuotient::is_exceptional(0x1p97f));
  for (const std::uint32_t bits : {0x3FFFFFFFu, 0x3FDFFFFDu, 0x3FDFFFFEu}) {
    ASSERT_TRUE(k::ShortQuotient::is_exceptional(bit_cast<float>(bits)));
  }
}

TEST(CudaMath, PackedE2m1OfEveryBf16) {
  check_codes<Format::bf16, Format::e2m1, false>();
}
TEST(CudaMath, PackedE2m1OfEveryF16) {
  check_codes<Format::f16, Format::e2m1, false>();
}
TEST(CudaMath, E2m1OfEveryBf16) {
  check_codes<Format::bf16, Format::e2m1, true>();
}
/// Magnitudes of 3 binades below the smallest tie to the largest that a block may have, all next to
/// a tie among them, with the factors of the smallest and largest scales.
TEST(CudaMath, E2m1OfF32NextToTiesAndInBetween) {
  const auto check = [](float y) {
    for (const int e : {-127, -3, 0, 126}) {
      const float x = std::ldexp(y, e);
      const k::E2m1Lines code(std::ldexp(1.0f, -e));
      ASSERT_EQ(code(x) - k::E2m1Lines::kOffset, encode<Format::e2m1>(std::ldexp(x, -e)))
          << x << " * 2^" << -e;
    }
  };
  for (std::uint32_t bits = bit_cast<std::uint32_t>(0.03125f); bits < 0x41000000u; bits += 977) {
    check(bit_cast<float>(bits));
  }
  for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    const std::uint32_t bits = bit_cast<std::uint32_t>(tie);
    for (std::uint32_t i = bits - 1000; i <= bits + 1000; ++i) check(bit_cast<float>(i));
  }
  for (const float y : {0.0f, 0x1p-149f, 0x1p-126f, 0x1p-60f}) check(y);
}
TEST(CudaMath, E2m3OfEveryBf16) {
  check_codes<Format::bf16, Format::e2m3, false>();
}
TEST(CudaMath, E3m2OfEveryBf16) {
  check_codes<Format::bf16, Format::e3m2, false>();
}
TEST(CudaMath, E2m3OfEveryF16) {
  check_codes<Format::f16, Format::e2m3, false>();
}
TEST(CudaMath, E3m2OfEveryF16) {
  check_codes<Format::f16, Format::e3m2, false>();
}

/// What kernel_sm90_gelu_maximum.cuh rests on: of all 16-bit numbers from 0 to infinity a larger
/// one never has a smaller GELU, and its bounds for negative and for larger numbers hold.
template <Format kFormat, InputTransform kTransform>
void check_order_of_gelu() {
  constexpr std::uint32_t kInfinity = format_traits(kFormat).max_code + 1;
  ASSERT_GT(k::gelu<kTransform>(k::kLeastOrderedX), k::kGeluBelowZero);
  float before = 0;
  for (std::uint32_t bits = 0; bits <= kInfinity; ++bits) {
    const float x = decode<kFormat>(bits);
    const float value = k::gelu<kTransform>(x);
    ASSERT_GE(value, before) << x;
    ASSERT_LT(std::fabs(k::gelu<kTransform>(-x)), k::kGeluBelowZero) << -x;
    before = value;
  }
}

TEST(CudaMath, GeluKeepsTheOrderOfPositiveNumbers) {
  check_order_of_gelu<Format::bf16, InputTransform::gelu_tanh>();
  check_order_of_gelu<Format::bf16, InputTransform::gelu_erf>();
  check_order_of_gelu<Format::f16, InputTransform::gelu_tanh>();
  check_order_of_gelu<Format::f16, InputTransform::gelu_erf>();
}

/// A maximum of chunks in any order: some without an x that decides, NaN and infinity among them.
TEST(CudaMath, LargestGeluIsThatOfAllValues) {
  std::uint32_t state = 1;
  for (int i = 0; i < 20'000; ++i) {
    const int chunks = 1 + i % 3;
    const std::uint32_t mask = i % 2 == 0 ? 0xBEFFBEFFu : 0xFFFFFFFFu;  // small numbers: any
    k::LargestGelu<InputTransform::gelu_tanh, Format::bf16> largest;
    k::Largest<Format::f32, false> expected;
    for (int c = 0; c < chunks; ++c) {
      k::Chunk<Format::bf16, 4> x[2];
      for (k::Chunk<Format::bf16, 4>& chunk : x) {
        for (std::uint32_t& word : chunk.word) {
          state = state * 1664525u + 1013904223u;
          word = (state ^ state >> 15) & mask;
        }
        k::Chunk<Format::f32, 4> values;
        k::gelu_chunk<InputTransform::gelu_tanh>(values, chunk);
        expected.fold(values);
      }
      largest.fold(x);
    }
    ASSERT_EQ(largest.f32_bits(), expected.f32_bits()) << i;
  }
}

/// Calls check(x, exact tail, approximate) for every finite 16-bit number.
template <Format kFormat, InputTransform kTransform, class Check>
void for_all_tails(const Check& check) {
  constexpr std::uint32_t kInfinity = format_traits(kFormat).max_code + 1;
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    if ((bits & 0x7FFFu) >= kInfinity) continue;
    const float x = decode<kFormat>(bits);
    const k::ApproximateGelu g = k::approximate_gelu<kTransform>(x);
    const float tail = kTransform == InputTransform::gelu_tanh
                           ? math::tanh_tail<math::ScalarMath>(g.magnitude)
                           : math::erf_tail<math::ScalarMath>(g.magnitude);
    check(x, tail, g);
  }
}

/// The tails that approximations may give: with the largest error either way, and without.
std::array<float, 3> tails_around(float tail) {
  return {tail * (1 - k::kTailError), tail, tail * (1 + k::kTailError)};
}

template <class Check>
void for_both_functions(const Check& check) {
  check(std::integral_constant<InputTransform, InputTransform::gelu_tanh>());
  check(std::integral_constant<InputTransform, InputTransform::gelu_erf>());
}

/// cuda_math_gpu_test.cpp has the same of the device's exponentials and reciprocals.
TEST(CudaMath, ApproximateTailsAreAsNearAsIsSaid) {
  for_both_functions([](auto transform) {
    const auto check = [](float x, float tail, const k::ApproximateGelu& g) {
      ASSERT_LE(std::fabs(g.tail - tail), k::kTailError * tail) << x;
    };
    for_all_tails<Format::bf16, transform()>(check);
    for_all_tails<Format::f16, transform()>(check);
  });
}

/// Codes of a value and of what its tail's error makes of it, for the exponents of all blocks whose
/// largest magnitude is at least 2^least_amax.
template <Format kFormat, Format kElement, InputTransform kTransform>
void check_sure_codes(int least_amax) {
  constexpr FormatTraits kTraits = format_traits(kElement);
  ASSERT_TRUE(k::has_sure_codes<kElement>(bit_cast<std::uint32_t>(std::ldexp(1.0f, least_amax))));
  ASSERT_FALSE(k::has_sure_codes<kElement>(bit_cast<std::uint32_t>(std::ldexp(0.99f, least_amax))));
  // Half of what rounds to the smallest code.
  const float least = std::ldexp(0.25f, 1 - kTraits.bias - kTraits.mantissa_bits);
  for_all_tails<kFormat, kTransform>([&](float x, float tail, k::ApproximateGelu g) {
    const float exact = k::gelu<kTransform>(x);
    for (int e = least_amax - kTraits.max_exponent; std::ldexp(std::fabs(exact), -e) >= least;
         ++e) {
      const float scaled = std::ldexp(exact, -e);
      if (std::fabs(scaled) >= std::ldexp(2.0f, kTraits.max_exponent)) continue;
      for (const float near : tails_around(tail)) {
        g.tail = near;
        ASSERT_EQ(encode<kElement>(std::ldexp(g.value(), -e)), encode<kElement>(scaled))
            << x << " * 2^" << -e;
      }
    }
  });
}

TEST(CudaMath, NoGeluIsNextToATieOfItsBlock) {
  for_both_functions([](auto transform) {
    check_sure_codes<Format::bf16, Format::e2m1, transform()>(-8);
    check_sure_codes<Format::bf16, Format::e2m3, transform()>(-8);
    check_sure_codes<Format::bf16, Format::e3m2, transform()>(-8);
    check_sure_codes<Format::bf16, Format::e4m3, transform()>(-2);
    check_sure_codes<Format::f16, Format::e2m1, transform()>(-8);
    check_sure_codes<Format::f16, Format::e2m3, transform()>(-8);
    check_sure_codes<Format::f16, Format::e3m2, transform()>(-8);
    check_sure_codes<Format::f16, Format::e4m3, transform()>(-2);
  });
}

/// Quotients of every number with scales of every kind lie between the products that stand for
/// them.
TEST(CudaMath, QuotientsOfGeluLieWithinTheirBounds) {
  for_both_functions([](auto transform) {
    std::uint32_t state = 1;
    for (const float power : {0x1p-64f, 0x1p-20f, 0x1p-6f, 1.0f, 0x1p100f}) {
      for (int i = 0; i < 4; ++i) {
        state = state * 1664525u + 1013904223u;
        k::BlockScale scale;
        scale.factor =
            i == 0 ? power : bit_cast<float>(bit_cast<std::uint32_t>(power) | state >> 9);
        scale.reciprocal = 1.0f / scale.factor;
        const k::Bounds factors = k::factor_bounds<Format::e4m3, ScaleRule::fp8>(scale, 0);
        ASSERT_LT(factors.low, factors.high);
        for_all_tails<Format::f16, transform()>([&](float x, float tail, k::ApproximateGelu g) {
          const float quotient = k::gelu<transform()>(x) / scale.factor;
          if (std::fabs(quotient) < 0x1p-100f) return;
          for (const float near : tails_around(tail)) {
            g.tail = near;
            const float low = g.value() * factors.low;
            const float high = g.value() * factors.high;
            ASSERT_LE(std::min(low, high), quotient) << x << " / " << scale.factor;
            ASSERT_GE(std::max(low, high), quotient) << x << " / " << scale.factor;
          }
        });
      }
    }
  });
}

/// Magnitudes from short tails, with what a device's exponential (and reciprocal) may be off by.
template <Format kFormat, InputTransform kTransform>
void check_magnitudes() {
  constexpr float kError = k::kShortTailError<kTransform> + 0x1p-23f;  // and two roundings
  constexpr std::uint32_t kInfinity = format_traits(kFormat).max_code + 1;
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const float x = decode<kFormat>(bits);
    if ((bits & 0x7FFFu) >= kInfinity) {
      ASSERT_FALSE(std::isfinite(k::gelu_magnitude<kTransform>(x))) << bits;
      continue;
    }
    const float exact = k::gelu<kTransform>(x);
    ASSERT_EQ(std::signbit(exact), std::signbit(x)) << x;
    if (x < k::kLeastShortX) continue;
    const float tail = k::short_tail<kTransform>(x);
    ASSERT_EQ(k::gelu_magnitude<kTransform>(x), std::fma(-x, tail, std::max(x, 0.0f))) << x;
    const float allowed = kError * std::max(std::fabs(exact), k::kLeastShort<kTransform>);
    for (const float near : {tail * (1 - 0x1p-22f), tail, tail * (1 + 0x1p-22f)}) {
      const float magnitude = std::fma(-x, near, std::max(x, 0.0f));
      ASSERT_LE(std::fabs(magnitude - std::fabs(exact)), allowed) << x;
    }
  }
}

TEST(CudaMath, MagnitudesOfGeluAreAsNearAsIsSaid) {
  for_both_functions([](auto transform) {
    check_magnitudes<Format::bf16, transform()>();
    check_magnitudes<Format::f16, transform()>();
  });
}

/// Numbers around ties and in between, with the largest error either way, as a part of them, or
/// where they may be far below the block's largest one as a part of what that allows: whoever has
/// another code than the exact one is doubtful, as few are.
template <InputTransform kTransform>
void check_likely_e2m1() {
  using Likely = k::LikelyE2m1<kTransform>;
  int doubtful = 0, all = 0;
  const auto check = [&](float y) {
    const std::uint32_t expected = encode<Format::e2m1>(y);
    const auto check_near = [&](float near, float factor) {
      const std::uint32_t likely = Likely(factor).code(near / factor);
      ++all;
      if ((likely & 0xFFFFFu) < Likely::kDoubtful) {
        ++doubtful;
      } else {
        ASSERT_EQ((likely >> 20 & 7u) ^ 4u, expected) << y;
      }
    };
    const float part = y < 2.25f ? 2.25f : y;
    for (const float error : {-Likely::kError, 0.0f, Likely::kError}) {
      check_near(std::max(0.0f, y + part * error), 1.0f);
      check_near(y + y * error, 0x1p-9f);
    }
  };
  for (std::uint32_t bits = 0; bits < bit_cast<std::uint32_t>(7.9f); bits += 977) {
    check(bit_cast<float>(bits));
  }
  EXPECT_LT(doubtful, all / 5000);
  for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    const std::uint32_t bits = bit_cast<std::uint32_t>(tie);
    for (std::uint32_t i = bits - 2000; i <= bits + 2000; ++i) check(bit_cast<float>(i));
  }
}

TEST(CudaMath, LikelyE2m1KnowsWhatItDoesNotKnow) {
  check_likely_e2m1<InputTransform::gelu_tanh>();
  check_likely_e2m1<InputTransform::gelu_erf>();
}

/// Unless it is exceptional the scale of an approximate largest magnitude is that of the exact one,
/// for magnitudes next to those where it changes too.
TEST(CudaMath, ScalesOfApproximateMaximaAreThoseOfExactOnes) {
  using Likely = k::LikelyE2m1<InputTransform::gelu_erf>;
  constexpr float kLeast = 0x1p-10f;
  std::uint32_t state = 1;
  int exceptional = 0, all = 0;
  const auto check = [&](float exact, float tensor_scale) {
    const k::BlockScale expected =
        k::nvfp4_scale<true>(bit_cast<std::uint32_t>(exact), tensor_scale);
    for (const float error : {-Likely::kError, 0.0f, Likely::kError}) {
      const float near = exact + exact * error;
      const k::BlockScale scale = k::nvfp4_scale_near(near, Likely::kError, kLeast, tensor_scale);
      ++all;
      exceptional += scale.exceptional ? 1 : 0;
      if (scale.exceptional) continue;
      ASSERT_EQ(scale.stored, expected.stored) << exact << " " << tensor_scale;
      ASSERT_EQ(scale.factor, expected.factor) << exact << " " << tensor_scale;
      ASSERT_EQ(scale.keep, expected.keep) << exact << " " << tensor_scale;
    }
  };
  for (int i = 0; i < 200'000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float tensor_scale = 2688.0f / std::ldexp(1 + static_cast<float>(state >> 9) * 0x1p-23f,
                                                    static_cast<int>(state % 12) - 4);
    state = state * 1664525u + 1013904223u;
    check(std::ldexp(1 + static_cast<float>(state >> 9) * 0x1p-23f,
                     static_cast<int>(state % 14) - 10),
          tensor_scale);
    const std::uint32_t code = 1 + state % 125;
    const float tie = (decode<Format::e4m3>(code) + decode<Format::e4m3>(code + 1)) / 2;
    const std::uint32_t at = bit_cast<std::uint32_t>(6 * tie / tensor_scale);
    if (bit_cast<float>(at) > 2 * kLeast)
      check(bit_cast<float>(at + state % 64 - 32), tensor_scale);
  }
  EXPECT_LT(exceptional, all * 3 / 4);
  for (const float amax : {0x1p-11f, INFINITY, NAN}) {
    EXPECT_TRUE(k::nvfp4_scale_near(amax, Likely::kError, kLeast, 1.0f).exceptional) << amax;
  }
  const k::BlockScale of_zero = k::nvfp4_scale_near(0, Likely::kError, kLeast, 1.0f);
  EXPECT_FALSE(of_zero.exceptional);
  EXPECT_EQ(of_zero.keep, 0u);
}

/// Where codes are sure there is one factor.
TEST(CudaMath, SureCodesComeFromOneFactor) {
  k::BlockScale scale;
  scale.factor = 0x1p-3f;
  scale.reciprocal = 0x1p3f;
  const auto e4m3 = k::factor_bounds<Format::e4m3, ScaleRule::fp8>(scale, 0x3F800000u);
  EXPECT_EQ(e4m3.low, scale.reciprocal);
  EXPECT_EQ(e4m3.high, scale.reciprocal);
  const auto mx = k::factor_bounds<Format::e4m3, ScaleRule::mx>(scale, 0x3F800000u);
  EXPECT_EQ(mx.low, scale.factor);
  const auto e5m2 = k::factor_bounds<Format::e5m2, ScaleRule::mx>(scale, 0x3F800000u);
  EXPECT_LT(e5m2.low, e5m2.high);
}

}  // namespace
}  // namespace blockscale
