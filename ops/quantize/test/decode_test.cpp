// SIMD decoding against core's `decode`, on every instruction set of this machine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/test/decode_test.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include "ops/common/simd/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {
void decode_for_test(Format format, const std::uint8_t* row, std::int64_t begin, std::int64_t count,
                     float* out) {
  decode_run(format, row, begin, count, out);
}
}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "tests/simd_targets.h"

namespace blockscale {
HWY_EXPORT(decode_for_test);
namespace {

constexpr Format kElements[] = {Format::e2m1, Format::e2m3, Format::e3m2,
                                Format::e4m3, Format::e5m2, Format::ue4m3,
                                Format::f16,  Format::bf16, Format::f32};

/// Puts `code` into bits [index * bits, (index + 1) * bits) of `row`, bit by bit.
void put_code(std::vector<std::uint8_t>& row, std::int64_t index, int bits, std::uint32_t code) {
  for (int b = 0; b < bits; ++b) {
    const std::int64_t bit = index * bits + b;
    const auto mask = static_cast<std::uint8_t>(1u << (bit % 8));
    auto& byte = row[static_cast<std::size_t>(bit / 8)];
    byte = static_cast<std::uint8_t>((code >> b & 1u) != 0 ? byte | mask : byte & ~mask);
  }
}

void expect_same_value(float got, float want) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got));
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want));
  }
}

class DecodeTest : public testing::TestWithParam<std::int64_t> {
 private:
  test::UseSimdTarget use_{GetParam()};
};

TEST_P(DecodeTest, EveryCodeAtEveryLengthAndStart) {
  for (const Format format : kElements) {
    const FormatTraits t = format_traits(format);
    const int begin_step = t.bits == 4 ? 2 : t.bits == 6 ? 4 : 1;
    const std::int64_t period = std::int64_t{1} << std::min(t.bits, 16);
    for (std::int64_t count = 0; count <= 70; ++count) {
      for (std::int64_t begin : {0, begin_step, 8 * begin_step}) {
        // Exactly the bytes of begin + count codes, so that ASan sees a read beyond them.
        const std::int64_t total = begin + count;
        std::vector<std::uint8_t> row(static_cast<std::size_t>((total * t.bits + 7) / 8));
        std::vector<std::uint32_t> codes(static_cast<std::size_t>(total));
        for (std::int64_t i = 0; i < total; ++i) {
          std::uint64_t code = static_cast<std::uint64_t>(i * 5 + count * 71 + begin);
          if (t.bits == 32) code *= 0x9E3779B9u;
          codes[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(
              t.bits == 32 ? code & 0xFFFFFFFFu : code % static_cast<std::uint64_t>(period));
          put_code(row, i, t.bits, codes[static_cast<std::size_t>(i)]);
        }
        std::vector<float> out(static_cast<std::size_t>(count) + 1, 12345.0f);
        HWY_DYNAMIC_DISPATCH(decode_for_test)(format, row.data(), begin, count, out.data());
        for (std::int64_t i = 0; i < count; ++i) {
          const std::uint32_t code = codes[static_cast<std::size_t>(begin + i)];
          expect_same_value(out[static_cast<std::size_t>(i)], decode(format, code));
        }
        ASSERT_EQ(out.back(), 12345.0f);
        ASSERT_FALSE(HasFailure()) << t.name << " count " << count << " begin " << begin;
      }
    }
  }
}

TEST_P(DecodeTest, AllCodesOfEveryFormat) {
  for (const Format format : kElements) {
    const FormatTraits t = format_traits(format);
    if (t.bits > 16) continue;
    const std::int64_t count = std::int64_t{1} << t.bits;
    std::vector<std::uint8_t> row(static_cast<std::size_t>(count * t.bits / 8));
    for (std::int64_t i = 0; i < count; ++i) {
      put_code(row, i, t.bits, static_cast<std::uint32_t>(i));
    }
    std::vector<float> out(static_cast<std::size_t>(count));
    HWY_DYNAMIC_DISPATCH(decode_for_test)(format, row.data(), 0, count, out.data());
    for (std::int64_t i = 0; i < count; ++i) {
      expect_same_value(out[static_cast<std::size_t>(i)],
                        decode(format, static_cast<std::uint32_t>(i)));
    }
    ASSERT_FALSE(HasFailure()) << t.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, DecodeTest, testing::ValuesIn(test::simd_targets()),
                         [](const auto& param_info) {
                           return std::string(hwy::TargetName(param_info.param));
                         });

}  // namespace
}  // namespace blockscale

#endif  // HWY_ONCE
