// The quantizers' short cuts on CUDA against core's conversions and against division: all inputs
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
#include "device/encode/code_quotient.cuh"
#include "device/encode/codes.cuh"
#include "device/encode/scale.cuh"
#include "ops/quantize/kernels/amax.cuh"
#include "ops/quantize/kernels/tensor_scale.cuh"

namespace blockscale {
namespace {

namespace k = encoding;

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

std::uint32_t e4m3_code(float x) {
  return ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, x);
}

/// Whether numbers have the code of their quotient by s, if that is next to where rounding reaches
/// a number between codes: H / 16 for odd H, below 2^-6 what H with fewer bits makes.
bool codes_of_quotients_agree(float s) {
  const k::CodeQuotient quotient(s, 1 / s);
  for (unsigned h = 16; h < 32; ++h) {
    const int zeros = std::countr_zero(h);
    const double between = std::ldexp(h, zeros == 0 ? -4 : -10 - zeros);
    for (const double beside : {0x1p-24, h == 16 ? -0x1p-25 : -0x1p-24}) {
      const auto nearest = static_cast<float>((1 + beside * 16 / h) * between * double{s});
      for (const std::uint32_t step : {0u, 1u, 2u}) {
        const float x = bit_cast<float>(bit_cast<std::uint32_t>(nearest) - 1 + step);
        if (e4m3_code(quotient(x)) != e4m3_code(x / s)) return false;
        if (e4m3_code(quotient(-x)) != e4m3_code(-x / s)) return false;
      }
    }
  }
  return e4m3_code(quotient(0.0f)) == 0 && e4m3_code(quotient(-0.0f)) == 0x80;
}

/// Significands at even distances, and all around multiples of 2^20; both ends of the range.
TEST(CudaMath, QuotientsHaveTheCodesOfDivision) {
  int with = 0, without = 0, wrong = 0;
  for (std::uint32_t fraction = 0; fraction < 1u << 23; ++fraction) {
    if (fraction % 211 != 0 && (fraction + 300) % (1u << 20) >= 600) continue;
    for (const std::uint32_t exponent : {63u, 127u, 190u}) {
      const float s = bit_cast<float>(exponent << 23 | fraction);
      if (k::has_code_quotients(s)) {
        ++with;
        ASSERT_TRUE(codes_of_quotients_agree(s)) << s;
      } else {
        ++without;
        if (!codes_of_quotients_agree(s)) ++wrong;
      }
    }
  }
  EXPECT_GT(with, 100000);
  EXPECT_LT(without, 4000);
  EXPECT_GT(wrong, 0);
  EXPECT_FALSE(k::has_code_quotients(0x1.fffffep-65f));
  EXPECT_FALSE(k::has_code_quotients(0x1.000002p+64f));
}

/// Every significand, at both ends of the range without branches and beyond it.
TEST(CudaMath, TensorScalesOfNvfp4) {
  for (const std::uint32_t exponent : {127u, 27u, 26u, 226u, 227u, 254u, 0u}) {
    for (std::uint32_t fraction = 0; fraction < 1u << 23; ++fraction) {
      const std::uint32_t bits = exponent << 23 | fraction;
      const float expected =
          bits == 0 ? 1.0f : std::min(2688.0f / bit_cast<float>(bits), k::kLargestFinite);
      ASSERT_EQ(quantizer::nvfp4_tensor_scale(bits), expected) << bits;
    }
  }
}

/// Quotients below 2^-126 are raised to it, so that they need not be exact.
TEST(CudaMath, ScalesOfTinyMaximaAreTheSmallestNormalNumber) {
  for (std::uint32_t amax = 1; amax < 0x06000000u; amax += 977) {
    const float expected = std::max(bit_cast<float>(amax) / 448.0f, 0x1p-126f);
    ASSERT_EQ(k::fp8_scale<Format::e4m3>(amax, ScaleOptions{}), expected) << amax;
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

/// What kernels/amax.cuh rests on: of all 16-bit numbers from 0 to infinity a larger one never has
/// a smaller GELU, and from kLeastOrderedX on it exceeds that of every negative number.
template <Format kFormat>
void check_order_of_gelu(const math::GeluTail& tail) {
  constexpr std::uint32_t kInfinity = format_traits(kFormat).max_code + 1;
  const auto gelu = [&](float x) { return math::gelu<device::KernelMath>(x, tail); };
  float before = 0;
  for (std::uint32_t bits = 0; bits <= kInfinity; ++bits) {
    const float x = decode<kFormat>(bits);
    const float value = gelu(x);
    ASSERT_GE(value, before) << x;
    ASSERT_LT(std::fabs(gelu(-x)), gelu(quantizer::kLeastOrderedX)) << -x;
    before = value;
  }
}

TEST(CudaMath, GeluKeepsTheOrderOfPositiveNumbers) {
  for (const math::GeluTail& tail : {math::kGeluTanh, math::kGeluErf}) {
    check_order_of_gelu<Format::bf16>(tail);
    check_order_of_gelu<Format::f16>(tail);
  }
}

}  // namespace
}  // namespace blockscale
