// Bytes of converted NVFP4 weights against the oracle of docs/numerics.md, which shares no code
// with the library: the tensor scale that is stored, and codes and block scales that follow from
// it.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"
#include "tests/oracles/quantize_oracle.h"

namespace blockscale {
namespace {

using test::part;
using test::part_f32;

constexpr std::int64_t kRows = 4;
constexpr std::int64_t kColumns = 64;

/// S that codes are made with: the divisor that is stored, or 1 / t of a multiplier.
float divisor_of(float stored, Dialect dialect) {
  return dialect == Dialect::modelopt ? std::min(1.0f / stored, oracle::kLargest) : stored;
}

/// The multiplier of this amax: amax / 2688, or 1 / S where S is at its largest.
float multiplier_of(float amax) {
  const float s = oracle::nvfp4_scale(amax);
  return s == oracle::kLargest ? 1.0f / s : amax == 0 ? 1.0f : amax / 2688.0f;
}

/// Largest magnitude of a block whose scale is another code with S than with `other`, or 0.
float telling_block(float s, float other, float amax) {
  for (std::size_t code = 0x08; code < 0x70; ++code) {
    const double tie = (oracle::kE4M3.values[code] + oracle::kE4M3.values[code + 1]) / 2;
    float block = static_cast<float>(6 * tie / static_cast<double>(s));
    for (int i = 0; i < 8; ++i) block = std::nextafter(block, 0.0f);
    for (int i = 0; i < 16; ++i, block = std::nextafter(block, INFINITY)) {
      const float sixth = block / 6.0f;
      if (block < amax &&
          oracle::kE4M3.nearest(sixth * s) != oracle::kE4M3.nearest(sixth * other)) {
        return block;
      }
    }
  }
  return 0;
}

/// Weights of this largest magnitude; the first block shows which S was taken, if one can.
std::vector<float> weights_of(float amax, float telling) {
  std::vector<float> values = test::normal_values(kRows * kColumns, 7);
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  for (float& value : values) value = value / largest * amax;
  for (int i = 0; i < 16; ++i) values[static_cast<std::size_t>(i)] = 0;
  values[3] = -telling;
  values[5] = telling / 3;
  values[40] = amax;
  return values;
}

std::string packed(const std::vector<std::uint8_t>& codes) {
  std::string bytes(codes.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
  return bytes;
}

TEST(ConvertOracle, Nvfp4IsWhatTheStoredTensorScaleGives) {
  const test::ScratchFolder folder;
  // Usual ones, the smallest, those at which S is clamped, the largest.
  std::vector<float> maxima = {0.0f,   1.0f,   3.0f,     0.0123f,         2688.0f,
                               1e-45f, 1e-40f, 7.9e-36f, 7.8e-36f,        0x1p-126f,
                               1e-30f, 1e30f,  3.4e38f,  oracle::kLargest};
  for (const float x : test::normal_values(24, 11)) maxima.push_back(std::fabs(x));
  int told = 0;
  for (const float amax : maxima) {
    SCOPED_TRACE("amax " + std::to_string(amax));
    const float by_division = oracle::nvfp4_scale(amax);
    const float by_reciprocal = std::min(1.0f / multiplier_of(amax), oracle::kLargest);
    const float telling =
        by_division == by_reciprocal ? 0.0f : telling_block(by_division, by_reciprocal, amax);
    told += telling != 0 ? 1 : 0;
    const std::vector<float> values = weights_of(amax, telling);
    test::write_checkpoint(folder / "plain",
                           {{"a.weight", DType::F32, {kRows, kColumns}, test::floats(values)}});
    for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
      SCOPED_TRACE(dialect_name(dialect));
      ConvertOptions options = test::options_for({Recipe::nvfp4, dialect});
      options.overwrite = true;
      convert(folder / "plain", folder / "out", options);
      const Checkpoint result = Checkpoint::open(folder / "out");
      const bool modelopt = dialect == Dialect::modelopt;
      const float stored =
          part_f32(result, modelopt ? "a.weight_scale_2" : "a.weight_global_scale");
      EXPECT_EQ(stored, modelopt ? multiplier_of(amax) : by_division);
      oracle::Options given;
      given.given = {divisor_of(stored, dialect)};
      const oracle::Result expected =
          oracle::quantize(values, kRows, kColumns, oracle::rules_of("nvfp4"), given);
      EXPECT_TRUE(part(result, modelopt ? "a.weight" : "a.weight_packed") ==
                  packed(expected.codes));
      EXPECT_TRUE(part(result, "a.weight_scale") ==
                  std::string(expected.scales.begin(), expected.scales.end()));
    }
  }
  EXPECT_GT(told, 10);  // S = 2688 / amax would have been seen
}

}  // namespace
}  // namespace blockscale
