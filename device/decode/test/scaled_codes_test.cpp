// Every code of four and of eight bits, in every place, times every scale that has a factor.
#include "device/decode/scaled_codes.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace blockscale {
namespace {

using decoding::spread_e2m1;

/// visit(the scaled number of a code, the code) for each code in each place.
template <Format kForm, class Visit>
void for_each_code(std::uint32_t factor, const Visit& visit) {
  for (std::uint32_t code = 0; code < 16; ++code) {
    for (std::uint32_t place = 0; place < 8; ++place) {
      // The other codes are the same one, its complement, or zeros.
      const std::uint32_t others[] = {0x11111111u * code, 0x11111111u * (15 - code), 0};
      for (const std::uint32_t other : others) {
        std::uint32_t pairs[4];
        spread_e2m1<kForm>(pairs, (other & ~(15u << 4 * place)) | code << 4 * place);
        const std::uint32_t pair = decoding::multiply_pair<kForm>(pairs[place % 4], factor);
        visit(decode<kForm>(static_cast<std::uint16_t>(pair >> (place < 4 ? 0 : 16))),
              static_cast<std::uint8_t>(code));
      }
    }
  }
}

/// The same number, a zero of the same sign included; any NaN for a NaN.
void expect_same(float number, double expected, std::uint32_t code, std::uint32_t scale) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(number)) << "code " << code << ", scale " << scale;
    return;
  }
  EXPECT_EQ(double{number}, expected) << "code " << code << ", scale " << scale;
  EXPECT_EQ(std::signbit(number), std::signbit(expected));
}

template <Format kForm>
void check_every_code_and_scale() {
  for_each_code<kForm>(decoding::kPlainFactor<kForm>, [](float number, std::uint8_t code) {
    expect_same(number, double{decode<Format::e2m1>(code)}, code, 0);
  });
  for (std::uint32_t scale = 0; scale < 256; ++scale) {
    for (const std::uint32_t other : {0u, 0x7Fu, 0xFFu - scale}) {
      for (const bool is_second : {false, true}) {
        std::uint32_t factors[2];
        decoding::ue4m3_factors<kForm>(factors,
                                       is_second ? scale << 8 | other : other << 8 | scale);
        for_each_code<kForm>(factors[is_second], [&](float number, std::uint8_t code) {
          // The sign of a scale counts for nothing.
          const auto magnitude = static_cast<std::uint8_t>(scale & 0x7F);
          const double value =
              double{decode<Format::e2m1>(code)} * double{decode<Format::ue4m3>(magnitude)};
          expect_same(number, value / double{decoding::kUe4m3Left}, code, scale);
        });
      }
    }
    if (!decoding::has_ue8m0_factor<kForm>(scale)) continue;
    for_each_code<kForm>(
        decoding::ue8m0_factor<kForm>(scale), [&](float number, std::uint8_t code) {
          const double value = double{decode<Format::e2m1>(code)} *
                               double{decode<Format::ue8m0>(static_cast<std::uint8_t>(scale))};
          expect_same(number, value, code, scale);
        });
  }
}

/// The same of eight bits.
template <Format kForm, Format kElement>
void check_every_code_of_eight_bits() {
  constexpr double kLeft = double{decoding::kUe8m0Factors<kForm, kElement>.left};
  const auto pairs_of = [](std::uint32_t(&pairs)[4], std::uint32_t code, std::uint32_t place) {
    decoding::Codes<kElement, 8> codes = {{0x11223344u, 0x55667700u}};
    std::uint32_t& word = codes.word[place / 4];
    word = (word & ~(0xFFu << 8 * (place % 4))) | code << 8 * (place % 4);
    decoding::spread<kForm>(pairs, codes);
  };
  for (std::uint32_t code = 0; code < 256; ++code) {
    const double value = double{decode<kElement>(static_cast<std::uint8_t>(code))};
    for (std::uint32_t place = 0; place < 8; ++place) {
      std::uint32_t pairs[4];
      pairs_of(pairs, code, place);
      const auto number_of = [&](std::uint32_t factor) {
        const std::uint32_t pair = decoding::multiply_pair<kForm>(pairs[place / 2], factor);
        return decode<kForm>(static_cast<std::uint16_t>(pair >> (16 * (place % 2))));
      };
      expect_same(number_of(decoding::kPlainFactor<kForm, kElement>), value, code, 0);
      for (std::uint32_t scale = 0; scale < 255; ++scale) {
        if (!decoding::has_ue8m0_factor<kForm, kElement>(scale)) continue;
        const double power = double{decode<Format::ue8m0>(static_cast<std::uint8_t>(scale))};
        expect_same(number_of(decoding::ue8m0_factor<kForm, kElement>(scale)),
                    value * power / kLeft, code, scale);
      }
    }
  }
  EXPECT_FALSE((decoding::has_ue8m0_factor<kForm, kElement>(255)));
}

TEST(ScaledCodes, AreExactInBf16) {
  check_every_code_and_scale<Format::bf16>();
}

TEST(ScaledCodes, AreExactInF16) {
  check_every_code_and_scale<Format::f16>();
}

TEST(ScaledCodes, OfEightBitsAreExact) {
  check_every_code_of_eight_bits<Format::bf16, Format::e4m3>();
  check_every_code_of_eight_bits<Format::bf16, Format::e5m2>();
  check_every_code_of_eight_bits<Format::f16, Format::e4m3>();
  check_every_code_of_eight_bits<Format::f16, Format::e5m2>();
}

TEST(ScaledCodes, Ue8m0ValuesAreThoseOfTheFormat) {
  for (std::uint32_t scale = 0; scale < 255; ++scale) {
    EXPECT_EQ(decoding::ue8m0_value(scale), std::ldexp(1.0f, static_cast<int>(scale) - 127));
  }
  EXPECT_TRUE(std::isnan(decoding::ue8m0_value(255)));
}

/// What trained weights have: those of bf16 are all but the largest, of f16 those near 1.
TEST(ScaledCodes, ScalesThatHaveAFactor) {
  for (std::uint32_t scale = 0; scale < 256; ++scale) {
    EXPECT_EQ(decoding::has_ue8m0_factor<Format::bf16>(scale), scale <= 128);
    EXPECT_EQ(decoding::has_ue8m0_factor<Format::f16>(scale), scale >= 104 && scale <= 128);
    const auto is_in = [&](int least, int most) {  // exponents
      return static_cast<int>(scale) - 127 >= least && static_cast<int>(scale) - 127 <= most;
    };
    using enum Format;
    EXPECT_EQ((decoding::has_ue8m0_factor<bf16, e4m3>(scale)), is_in(-110, 112));
    EXPECT_EQ((decoding::has_ue8m0_factor<bf16, e5m2>(scale)), is_in(-110, 112));
    EXPECT_EQ((decoding::has_ue8m0_factor<f16, e4m3>(scale)), is_in(-24, -3));
    EXPECT_EQ((decoding::has_ue8m0_factor<f16, e5m2>(scale)), is_in(-26, -18));
  }
}

}  // namespace
}  // namespace blockscale
