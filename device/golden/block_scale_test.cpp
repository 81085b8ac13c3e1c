// What the emulator's mma.sync of SM120 gives for drawn tiles is what a public model of the cards
// gives: data/block_scale.golden, which record_block_scale.py wrote. The draws are its draws.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>

#include "device/emulator/meaning/convert.h"
#include "device/emulator/meaning/scaled_mma.h"

namespace blockscale::emulator::meaning {
namespace {

constexpr uint32_t kRows = 16, kColumns = 8;

/// splitmix64.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

struct Tile {
  uint32_t scales;
  Format a, b, d;
  uint32_t mode;
  uint64_t seed;
};

/// NaN or infinite.
bool is_special(Format element, uint32_t code) {
  if (element == Format::e4m3) return (code & 0x7Fu) == 0x7F;
  return element == Format::e5m2 && (code & 0x7Cu) == 0x7C;
}

uint32_t draw_element(Draws& draws, Format element, uint32_t mode) {
  const uint64_t draw = draws();
  uint32_t code = static_cast<uint32_t>(draw) & ((1u << format_traits(element).bits) - 1);
  if ((mode == 1 || mode == 5) && (draw >> 32) % 4 != 0) code = 0;
  const bool keeps = mode == 2 && (draw >> 32) % 64 == 0;
  return is_special(element, code) && !keeps ? 1 : code;
}

uint32_t draw_ue8m0(Draws& draws, uint32_t mode, bool of_b) {
  const uint64_t draw = draws();
  if (mode == 2 && (draw >> 32) % 64 == 0) return 0xFF;
  switch (mode) {
    case 0: return 120 + static_cast<uint32_t>(draw % 16);
    case 1: return 100 + static_cast<uint32_t>(draw % 60);
    case 2: return 123 + static_cast<uint32_t>(draw % 8);
    case 3: return of_b ? 40 + static_cast<uint32_t>(draw % 70) : static_cast<uint32_t>(draw % 41);
    case 5: return of_b ? 96 + static_cast<uint32_t>(draw % 24) : static_cast<uint32_t>(draw % 16);
    default: return (of_b ? 195 : 180) + static_cast<uint32_t>(draw % 20);
  }
}

uint32_t draw_ue4m3(Draws& draws, uint32_t mode) {
  const uint64_t draw = draws();
  uint32_t code = draw & 0xFFu;
  if (mode == 1 && (draw >> 32) % 2 == 0) code &= 0x80u;
  if (mode == 3 || mode == 5) code &= 0x87u;
  if (mode == 4) code |= 0x70u;
  const bool keeps = mode == 2 && (draw >> 32) % 4 == 0;
  return (code & 0x7Fu) == 0x7F && !keeps ? code ^ 1u : code;
}

float draw_old(Draws& draws, Format d, uint32_t mode) {
  static constexpr uint32_t kFirst[] = {118, 100, 0, 0, 240}, kCount[] = {24, 50, 256, 20, 15};
  static constexpr uint32_t kFirst16[] = {11, 6, 0, 0, 26}, kCount16[] = {8, 16, 32, 4, 5};
  const uint64_t draw = draws();
  if (mode == 5 || (mode == 1 && (draw >> 40) % 2 == 0)) return 0;
  if (d == Format::f16) {
    const uint32_t field = kFirst16[mode] + static_cast<uint32_t>((draw >> 32) % kCount16[mode]);
    return decode<Format::f16>((static_cast<uint32_t>(draw) & 0x83FFu) | field << 10);
  }
  const uint32_t field = kFirst[mode] + static_cast<uint32_t>((draw >> 32) % kCount[mode]);
  return bit_cast<float>((static_cast<uint32_t>(draw) & 0x807FFFFFu) | field << 23);
}

/// Puts element k of a row into the words of a fragment, by the formulas of the PTX ISA.
template <uint32_t kWords>
void put(uint32_t (&words)[32][kWords], Format element, bool packed, bool of_a, uint32_t row,
         uint32_t k, uint32_t code) {
  const uint32_t half = packed ? 32 : 16, in_word = packed ? 8 : 4;
  const uint32_t lane = row % 8 * 4 + k % half / in_word;
  const uint32_t word = of_a ? row / 8 + 2 * (k / half) : k / half;
  const uint32_t shift = k % in_word * (packed ? 4 : 8) + (!packed && element == Format::e2m1) * 2;
  words[lane][word] |= code << shift;
}

/// The scales of `rows` rows. `lane_of_row` is where their words lie.
template <class LaneOfRow>
void draw_scales(Draws& draws, const Tile& tile, uint32_t rows, bool of_b, uint32_t (&words)[32],
                 const LaneOfRow& lane_of_row) {
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < tile.scales; ++i) {
      const uint32_t code =
          tile.scales == 4 ? draw_ue4m3(draws, tile.mode) : draw_ue8m0(draws, tile.mode, of_b);
      words[lane_of_row(row)] |= code << 8 * i;
    }
  }
}

uint64_t product(const Tile& tile) {
  Draws draws(tile.seed);
  const bool packed = tile.scales > 1;
  const uint32_t k_end = packed ? 64 : 32;
  ScaledMmaFragments f = {};
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t k = 0; k < k_end; ++k) {
      put(f.values.a, tile.a, packed, true, row, k, draw_element(draws, tile.a, tile.mode));
    }
  }
  for (uint32_t row = 0; row < kColumns; ++row) {
    for (uint32_t k = 0; k < k_end; ++k) {
      put(f.values.b, tile.b, packed, false, row, k, draw_element(draws, tile.b, tile.mode));
    }
  }
  draw_scales(draws, tile, kRows, false, f.scales_a,
              [](uint32_t row) { return row % 8 * 4 + row / 8; });
  draw_scales(draws, tile, kColumns, true, f.scales_b, [](uint32_t row) { return row * 4; });
  const auto value = [&](uint32_t row, uint32_t column) -> float& {
    return f.values.d[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2];
  };
  for (uint32_t i = 0; i < kRows * kColumns; ++i) {
    value(i / kColumns, i % kColumns) = draw_old(draws, tile.d, tile.mode);
  }
  scaled_mma({.a = tile.a, .b = tile.b, .scales = tile.scales, .d = tile.d}, f);
  uint64_t hash = 0xCBF29CE484222325;
  for (uint32_t i = 0; i < kRows * kColumns; ++i) {
    const float sum = value(i / kColumns, i % kColumns);
    const uint32_t code = tile.d == Format::f16 ? to_16<Format::f16>(sum) : bit_cast<uint32_t>(sum);
    hash = (hash ^ code) * 0x100000001B3;
  }
  return hash;
}

/// 2^-149, in blocks 0 and 1 of a row, and in blocks 2 and 3 so many halves of -2^-174, as packed
/// elements: below them the terms of 0 that are there as well end to count.
float sum_beside_zeros(uint32_t halves) {
  ScaledMmaFragments f = {};
  constexpr uint32_t kOne = 2, kMinus = 8;
  put(f.values.a, Format::e2m1, true, true, 0, 0, kOne);
  put(f.values.b, Format::e2m1, true, false, 0, 0, kOne);
  put(f.values.a, Format::e2m1, true, true, 0, 32, kOne);
  put(f.values.b, Format::e2m1, true, false, 0, 32, kMinus | halves);
  f.scales_a[0] = 0;  // 2^-127 each
  f.scales_b[0] = (127 - 22) | (127 - 47) << 8;
  scaled_mma({.a = Format::e2m1, .b = Format::e2m1, .scales = 2}, f);
  return f.values.d[0][0];
}

TEST(BlockScaleGolden, TermsOfZeroHaveAnExponent) {
  EXPECT_EQ(sum_beside_zeros(0), 0x1p-149f);
  EXPECT_EQ(sum_beside_zeros(1), 0x1p-149f);  // is cut off
  EXPECT_EQ(sum_beside_zeros(2), 0.0f);       // is not
}

TEST(BlockScaleGolden, SumsAreThoseOfTheModel) {
  const std::map<std::string, Format> formats = {{"e2m1", Format::e2m1}, {"e2m3", Format::e2m3},
                                                 {"e3m2", Format::e3m2}, {"e4m3", Format::e4m3},
                                                 {"e5m2", Format::e5m2}, {"f16", Format::f16},
                                                 {"f32", Format::f32}};
  std::ifstream file(BLOCKSCALE_SOURCE_DIR "/device/golden/data/block_scale.golden");
  std::string a, b, d;
  uint64_t hash = 0;
  std::set<std::string> forms;
  for (Tile tile = {}; file >> tile.scales >> a >> b >> d >> tile.mode >> tile.seed >> std::hex >>
                       hash >> std::dec;) {
    tile.a = formats.at(a);
    tile.b = formats.at(b);
    tile.d = formats.at(d);
    EXPECT_EQ(product(tile), hash) << tile.scales << " scales, " << a << " x " << b << " in " << d
                                   << ", mode " << tile.mode << ", seed " << tile.seed;
    forms.insert(std::to_string(tile.scales) + a + b + d);
  }
  EXPECT_EQ(forms.size(), 25u + 25u + 2u + 25u);
}

}  // namespace
}  // namespace blockscale::emulator::meaning
