// Numbers whose codes ShortQuotient would get wrong, for tests of kernels that take it: without
// its is_exceptional they fail.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/format.h"
#include "ops/quantize/kernel_sm90_scale.cuh"

namespace blockscale::test {

/// Scales in [1, 2) by which short quotients have other codes.
inline constexpr std::array<std::uint32_t, 2> kDoubtfulScales = {0x3FFFFFFFu, 0x3FDFFFFDu};

/// A largest magnitude with such a scale, and smaller numbers that have another code if they are
/// divided by it the short way.
struct DoubtfulQuotients {
  float amax = 0;
  std::vector<float> numbers;

  explicit DoubtfulQuotients(std::uint32_t scale_bits) {
    const float s = bit_cast<float>(scale_bits);
    const auto nearest = bit_cast<std::uint32_t>(448.0f * s);
    for (std::uint32_t bits = nearest - 2; bits <= nearest + 2; ++bits) {
      if (bit_cast<float>(bits) / 448.0f == s) amax = bit_cast<float>(bits);
    }
    EXPECT_NE(amax, 0.0f) << s;
    const quantize_sm90::ShortQuotient quotient(s);
    for (int tie = 1; tie < 32; tie += 2) {
      const auto next_to = bit_cast<std::uint32_t>(static_cast<float>(tie) * 0x1p-10f * s);
      for (std::uint32_t bits = next_to - 3; bits <= next_to + 3; ++bits) {
        const float x = bit_cast<float>(bits);
        if (encode<Format::e4m3>(x / s) != encode<Format::e4m3>(quotient(x))) numbers.push_back(x);
      }
    }
    EXPECT_FALSE(numbers.empty()) << s;
  }

  float number(std::int64_t i) const {
    return numbers[static_cast<std::size_t>(i) % numbers.size()];
  }
};

}  // namespace blockscale::test
