// Formats against an independent oracle: every code, every f16 and bf16 input, every rounding
// boundary, random f32.
#include "core/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/format_test_oracle.h"
#include "core/sanitizer_test_share.h"

namespace blockscale {
namespace {

using oracle::bits_of;
using oracle::Definition;
using oracle::float_of;
using oracle::kInfinity;
using oracle::kSign;
using oracle::Rounding;

constexpr Overflow kOverflows[] = {Overflow::saturate, Overflow::propagate};

/// The elements and scales that have one nearest code: all formats but ue8m0 and f32.
class EveryFormat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat,
                         testing::Values(Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3,
                                         Format::e5m2, Format::ue4m3, Format::f16, Format::bf16),
                         [](const auto& format) { return format_traits(format.param).name; });

bool same_value(float actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual);
  const bool same_sign = std::signbit(actual) == std::signbit(expected);
  return static_cast<double>(actual) == expected && same_sign;
}

TEST_P(EveryFormat, TraitsFollowTheDefinition) {
  const Definition& d = oracle::definition(GetParam());
  const FormatTraits t = format_traits(GetParam());
  EXPECT_EQ(t.exponent_bits, d.exponent_bits);
  EXPECT_EQ(t.mantissa_bits, d.mantissa_bits);
  EXPECT_EQ(t.bias, (1 << (d.exponent_bits - 1)) - 1);
  EXPECT_EQ(t.max_code, oracle::finite_count(d) - 1);
  EXPECT_EQ(static_cast<double>(t.max), oracle::magnitude_value(d, t.max_code));
  EXPECT_EQ(t.max_exponent, std::ilogb(t.max));
  EXPECT_EQ(t.is_signed, d.is_signed);
  EXPECT_EQ(t.has_infinity, d.specials == oracle::Specials::infinity_and_nans);
  EXPECT_EQ(t.nan_code, d.specials == oracle::Specials::none ? 0 : d.nan);
}

TEST_P(EveryFormat, EveryCodeDecodesToItsValue) {
  const Definition& d = oracle::definition(GetParam());
  const std::uint32_t codes = 1u << format_traits(GetParam()).bits;
  for (std::uint32_t code = 0; code < codes; ++code) {
    EXPECT_TRUE(same_value(decode(GetParam(), code), oracle::value(d, code))) << code;
    const std::uint32_t above = 0xABCD0000u & ~(codes - 1);  // bits that decode ignores
    EXPECT_EQ(bits_of(decode(GetParam(), code)), bits_of(decode(GetParam(), code | above)));
  }
}

TEST_P(EveryFormat, EveryCodeRoundTrips) {
  const Definition& d = oracle::definition(GetParam());
  const std::uint32_t codes = 1u << (oracle::sign_position(d) + (d.is_signed ? 1 : 0));
  for (std::uint32_t code = 0; code < codes; ++code) {
    const float x = decode(GetParam(), code);
    const std::uint32_t expected = std::isnan(x) ? d.nan : code;
    EXPECT_EQ(encode(GetParam(), x, Overflow::propagate), expected) << code;
  }
}

TEST_P(EveryFormat, EveryBoundaryRoundsRight) {
  const Rounding rounding(GetParam());
  for (const std::uint32_t boundary : rounding.first()) {
    for (std::uint32_t magnitude = boundary < 2 ? 0 : boundary - 2; magnitude <= boundary + 2;
         ++magnitude) {
      for (const std::uint32_t bits : {magnitude, magnitude | kSign}) {
        for (const Overflow overflow : kOverflows) {
          EXPECT_EQ(encode(GetParam(), float_of(bits), overflow), rounding.encode(bits, overflow))
              << std::hex << bits;
        }
      }
    }
  }
}

TEST_P(EveryFormat, EveryHalfPrecisionInputRoundsOnce) {
  const Rounding rounding(GetParam());
  for (const Format source : {Format::f16, Format::bf16}) {
    const Definition& d = oracle::definition(source);
    for (std::uint32_t code = 0; code < 65536; ++code) {
      const double x = oracle::value(d, code);  // exact in f32
      const std::uint32_t bits = bits_of(static_cast<float>(x));
      for (const Overflow overflow : kOverflows) {
        EXPECT_EQ(encode(GetParam(), decode(source, code), overflow),
                  rounding.encode(bits, overflow))
            << code;
      }
    }
  }
}

TEST_P(EveryFormat, SpecialInputs) {
  const Definition& d = oracle::definition(GetParam());
  const FormatTraits t = format_traits(GetParam());
  for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0x7FFFFFFFu}) {
    for (const Overflow overflow : kOverflows) {
      EXPECT_EQ(encode(GetParam(), float_of(nan), overflow), d.nan);
    }
  }
  const std::uint32_t sign = t.is_signed ? 1u << oracle::sign_position(d) : 0;
  EXPECT_EQ(encode(GetParam(), -0.0f), sign);
  EXPECT_EQ(encode(GetParam(), float_of(1)), 0u);  // the smallest subnormal of f32
  EXPECT_EQ(encode(GetParam(), float_of(kInfinity)), t.max_code);
  EXPECT_EQ(encode(GetParam(), float_of(kInfinity | kSign)), t.is_signed ? sign | t.max_code : 0);
}

/// encode<F> against the oracle for random bits: every exponent is as likely.
template <Format F>
std::int64_t count_random_errors(int inputs) {
  const Rounding rounding(F);
  std::mt19937 random(20261121u + static_cast<unsigned>(F));
  std::int64_t errors = 0;
  for (int i = 0; i < inputs; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    const Overflow overflow = kOverflows[i % 2];
    errors += encode<F>(float_of(bits), overflow) != rounding.encode(bits, overflow);
  }
  return errors;
}

TEST(Encode, TenMillionRandomInputs) {
  constexpr auto kInputs = static_cast<int>(test::cases_of(10'000'000));
  EXPECT_EQ(count_random_errors<Format::e2m1>(kInputs), 0);
  EXPECT_EQ(count_random_errors<Format::e2m3>(kInputs), 0);
  EXPECT_EQ(count_random_errors<Format::e3m2>(kInputs), 0);
  EXPECT_EQ(count_random_errors<Format::e4m3>(kInputs), 0);
  EXPECT_EQ(count_random_errors<Format::e5m2>(kInputs), 0);
  EXPECT_EQ(count_random_errors<Format::ue4m3>(kInputs), 0);
}

TEST(Encode, IsConstexpr) {
  static_assert(encode<Format::e2m1>(-0.1f) == 0x8);
  static_assert(encode<Format::e2m1>(2.5f) == 0x4);  // a tie, to even
  static_assert(encode<Format::e2m1>(5.0f) == 0x6);
  static_assert(encode<Format::e4m3>(464.0f, Overflow::propagate) == 0x7E);
  static_assert(encode<Format::e4m3>(-465.0f, Overflow::propagate) == 0xFF);
  static_assert(decode<Format::e5m2>(0x01) == 0x1p-16f);
  static_assert(convert<Format::e4m3, Format::bf16>(0x3F80) == 0x38);
  static_assert(f32_to_bf16(f16_to_f32(f32_to_f16(1.5f))) == 0x3FC0);
  static_assert(f32_to_f16(65520.0f) == 0x7C00);
}

TEST(Encode, F32IsItself) {
  for (const std::uint32_t bits : {0u, 1u, kSign, 0x3F800000u, kInfinity, 0xFF7FFFFFu}) {
    EXPECT_EQ(encode(Format::f32, float_of(bits)), bits);
    EXPECT_EQ(bits_of(decode(Format::f32, bits)), bits);
  }
}

TEST(Ue8m0, EveryCodeIsItsPowerOfTwo) {
  for (std::uint32_t code = 0; code < 255; ++code) {
    const float expected = std::ldexp(1.0f, static_cast<int>(code) - 127);
    EXPECT_EQ(decode(Format::ue8m0, code), expected);
    EXPECT_EQ(encode_ue8m0(expected, ScaleRounding::up), code);
    EXPECT_EQ(encode_ue8m0(-expected, ScaleRounding::toward_zero), code);
  }
  EXPECT_TRUE(std::isnan(decode(Format::ue8m0, 0xFF)));
  EXPECT_EQ(bits_of(decode(Format::ue8m0, 0)), 0x00400000u);
  EXPECT_EQ(encode(Format::ue8m0, 1.0f), 0xFFu);  // never a silent power of two: encode_ue8m0
  const FormatTraits t = format_traits(Format::ue8m0);
  EXPECT_EQ(decode(Format::ue8m0, t.max_code), t.max);
  EXPECT_EQ(std::ilogb(t.max), t.max_exponent);
}

TEST(Ue8m0, RoundsAsDirected) {
  const auto check = [](std::uint32_t bits) {
    for (const Overflow overflow : kOverflows) {
      EXPECT_EQ(encode_ue8m0(float_of(bits), ScaleRounding::up, overflow),
                oracle::encode_ue8m0(bits, true, overflow))
          << std::hex << bits;
      EXPECT_EQ(encode_ue8m0(float_of(bits), ScaleRounding::toward_zero, overflow),
                oracle::encode_ue8m0(bits, false, overflow))
          << std::hex << bits;
    }
  };
  for (std::uint32_t code = 0; code < 65536; ++code) {
    check(code << 16);  // every bf16
    check(bits_of(static_cast<float>(oracle::value(oracle::definition(Format::f16), code))));
  }
  for (std::uint32_t field = 0; field < 512; ++field) {  // about every power of two, both signs
    for (std::uint32_t near = 0; near < 5; ++near) check((field << 23) + near - 2);
  }
  for (int shift = 0; shift < 23; ++shift) {  // and the subnormal ones
    for (std::uint32_t near = 0; near < 5; ++near) check((1u << shift) + near - 2);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 1'000'000; ++i) check(static_cast<std::uint32_t>(random()));
}

}  // namespace
}  // namespace blockscale
