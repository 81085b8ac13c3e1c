// What the tests of swizzled scales share: a reference written from the layout's description and
// the formats' definitions, apart from the library's.
#pragma once

#include <cmath>
#include <random>
#include <string>

#include "models/convert/testing.h"

namespace blockscale::test {

/// A small float of this many bits of exponent and mantissa (and a sign), of no special codes.
inline float small_float(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const float fraction = std::ldexp(static_cast<float>(mantissa), -mantissa_bits);
  const float value =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0f + fraction, exponent - bias);
  return (code >> (exponent_bits + mantissa_bits)) & 1 ? -value : value;
}

/// A checkpoint `model` in a folder, and what becomes of it.
class DialectTest : public ::testing::Test {
 protected:
  Checkpoint converted(Recipe recipe, Dialect dialect) {
    ConvertOptions options = options_for({recipe, dialect});
    options.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / "out", options);
    return Checkpoint::open(folder_ / "out");
  }

  ScratchFolder folder_;
  ConvertReport report_;
};

/// Scales [rows, columns] in tiles of 128 x 4, a tile a row of 32 times 4 x 4.
inline std::string swizzle(const std::string& scales, std::size_t rows, std::size_t columns,
                           char padding = '\x5A') {
  const std::size_t k_tiles = (columns + 3) / 4;
  std::string result((rows + 127) / 128 * k_tiles * 512, padding);
  for (std::size_t m = 0; m < rows; ++m) {
    for (std::size_t k = 0; k < columns; ++k) {
      const std::size_t tile = m / 128 * k_tiles + k / 4;
      result[tile * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4] = scales[m * columns + k];
    }
  }
  return result;
}

/// A weight of `bits`-bit codes with a byte of scale a block, and its values.
struct BlockWeight {
  std::int64_t rows, k;
  int bits, exponent_bits, block;
  bool e8m0;            // the scales; else e4m3
  float factor = 1.0f;  // of the tensor
  std::string codes = {}, scales = {};

  std::int64_t row_bytes() const { return k * bits / 8; }
  std::int64_t columns() const { return k / block; }
  std::int64_t padded_rows() const { return (rows + 127) / 128 * 128; }
  std::int64_t padded_columns() const { return (columns() + 3) / 4 * 4; }
  std::string swizzled() const {
    return swizzle(scales, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns()));
  }

  /// Codes of any bits but e4m3's NaN, scales around 1.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    codes.resize(static_cast<std::size_t>(rows * row_bytes()));
    for (char& byte : codes) byte = static_cast<char>(random() % (bits == 8 ? 0x7F : 0x100));
    scales.resize(static_cast<std::size_t>(rows * columns()));
    for (char& byte : scales) byte = static_cast<char>((e8m0 ? 120 : 0x20) + random() % 12);
  }

  std::vector<float> values() const {
    std::vector<float> result;
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t i = 0; i < k; ++i) {
        const int scale =
            static_cast<unsigned char>(scales[static_cast<std::size_t>(m * columns() + i / block)]);
        const float s = e8m0 ? std::ldexp(1.0f, scale - 127) : small_float(scale, 4, 3);
        result.push_back(small_float(code(m, i), exponent_bits, bits - 1 - exponent_bits) *
                         (s * factor));
      }
    }
    return result;
  }

 private:
  int code(std::int64_t m, std::int64_t i) const {
    int result = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const std::int64_t at = m * row_bytes() * 8 + i * bits + bit;
      const int byte = static_cast<unsigned char>(codes[static_cast<std::size_t>(at / 8)]);
      result |= ((byte >> (at % 8)) & 1) << bit;
    }
    return result;
  }
};

}  // namespace blockscale::test
