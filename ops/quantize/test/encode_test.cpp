// Codes of all 65,536 bf16 and f16 numbers, and of f32 next to bf16, with common and uncommon
// factors, against the oracle's search for the nearest value, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "ops/common/float_environment.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/test/support.h"
#include "tests/oracles/quantize_oracle.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using steps::Scaling;

constexpr std::int64_t kNumbers = 1 << 16;

/// Number i of a dtype. Neighbours differ in size, so that a vector has all kinds.
std::uint32_t number(Format dtype, std::int64_t i) {
  const auto bits = static_cast<std::uint32_t>(i * 40503 % kNumbers);
  constexpr std::uint32_t kBelow[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  return dtype == Format::f32 ? bits << 16 | kBelow[i % 6] : bits;
}

struct Case {
  Format element;
  const oracle::MiniFloat* format;
  Scaling scaling;
  std::int64_t block;
  std::vector<float> factors;
};

/// The code of `x`; NaN only where the element has one.
int expected(const Case& c, float x, float factor) {
  if (factor == steps::kZeroCodes) return 0;
  if (std::isnan(x)) return c.format->nan_code;
  if (std::isinf(x)) x = std::copysign(std::numeric_limits<float>::max(), x);
  const float scaled = c.scaling == Scaling::divide ? x / factor : x * factor;
  return c.format->nearest_signed(double{scaled});
}

/// Every number meets every factor, in blocks that have different ones.
void check(const Case& c, Format dtype) {
  const auto size = static_cast<std::size_t>(format_traits(dtype).bits / 8);
  const int bits = format_traits(c.element).bits;
  std::vector<std::uint8_t> x(kNumbers * size);
  std::vector<float> values;
  for (std::int64_t i = 0; i < kNumbers; ++i) {
    std::uint32_t code = number(dtype, i);
    if (std::isnan(test::widen(dtype, code)) && c.format->nan_code < 0) code = 0;
    std::memcpy(x.data() + static_cast<std::size_t>(i) * size, &code, size);
    values.push_back(test::widen(dtype, code));
  }
  const std::int64_t blocks = (kNumbers + c.block - 1) / c.block;
  for (std::size_t turn = 0; turn < c.factors.size(); ++turn) {
    std::vector<float> factors;
    for (std::int64_t b = 0; b < blocks + steps::kArrayPadding; ++b) {
      factors.push_back(c.factors[(static_cast<std::size_t>(b) + turn) % c.factors.size()]);
    }
    const std::size_t bytes = static_cast<std::size_t>(kNumbers * bits / 8);
    std::vector<std::uint8_t> want(bytes + 64, 0);
    std::fill(want.begin() + static_cast<std::ptrdiff_t>(bytes), want.end(), std::uint8_t{0xA5});
    for (std::int64_t i = 0; i < kNumbers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const int code = expected(c, values[at], factors[static_cast<std::size_t>(i / c.block)]);
      for (int b = 0; b < bits; ++b) {
        const std::int64_t bit = i * bits + b;
        want[static_cast<std::size_t>(bit / 8)] |=
            static_cast<std::uint8_t>((code >> b & 1) << (bit % 8));
      }
    }
    for (const std::int64_t target : test::simd_targets()) {
      const test::UseSimdTarget use(target);
      const DefaultFloatEnvironment environment;
      std::vector<std::uint8_t> codes(want.size(), 0xA5);
      steps::encode_blocks(dtype, c.element, c.scaling, x.data(), kNumbers, c.block, factors.data(),
                           codes.data());
      ASSERT_EQ(codes, want) << format_traits(dtype).name << " to " << format_traits(c.element).name
                             << ", blocks of " << c.block << ", turn " << turn << ", "
                             << hwy::TargetName(target);
    }
  }
}

void check_all_dtypes(const Case& c) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    check(c, dtype);
    if (testing::Test::HasFatalFailure()) return;
  }
}

const std::vector<float> kPowersOfTwo = {1.0f,     0x1p-126f, 0x1p-40f,         0x1p-8f,
                                         0x1p3f,   0x1p99f,   0x1p20f,          0x1p100f,
                                         0x1p101f, 0x1p126f,  steps::kZeroCodes};

TEST(EncodeBlocks, PowersOfTwo) {
  const std::pair<Format, const oracle::MiniFloat*> elements[] = {{Format::e2m1, &oracle::kE2M1},
                                                                  {Format::e2m3, &oracle::kE2M3},
                                                                  {Format::e3m2, &oracle::kE3M2},
                                                                  {Format::e4m3, &oracle::kE4M3},
                                                                  {Format::e5m2, &oracle::kE5M2}};
  for (const auto& [element, format] : elements) {
    check_all_dtypes({element, format, Scaling::power_of_two, 32, kPowersOfTwo});
  }
  for (const std::int64_t block : {40, 64, 128, 200, 40000}) {
    check_all_dtypes({Format::e4m3, &oracle::kE4M3, Scaling::power_of_two, block, kPowersOfTwo});
  }
}

TEST(EncodeBlocks, Factors) {
  const std::vector<float> factors = {
      0.3f, 1.7e-5f, std::numeric_limits<float>::max(), 7.77f, 0.99f, 2.0f, steps::kZeroCodes};
  check_all_dtypes({Format::e2m1, &oracle::kE2M1, Scaling::multiply, 16, factors});
}

TEST(EncodeBlocks, Divisors) {
  const std::vector<float> divisors = {1e-3f,    0.99999994f, 1.5f,      7.0f / 448,
                                       3.3e5f,   0.1f,        0x1p-126f, 0x1.8p-81f,
                                       0x1p-80f, 1.7e38f,     1.0f,      3e-20f};
  for (const std::int64_t block : {40, 64, 128, 200, 40000}) {
    check_all_dtypes({Format::e4m3, &oracle::kE4M3, Scaling::divide, block, divisors});
    check_all_dtypes({Format::e5m2, &oracle::kE5M2, Scaling::divide, block, divisors});
  }
}

}  // namespace
}  // namespace blockscale
