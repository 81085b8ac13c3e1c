// Matrices with every 16-bit number in every position of a block, for tests that run on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/format.h"

namespace blockscale::test {

inline constexpr std::int64_t kNumbers = 1 << 16;
inline constexpr std::int64_t kLongestBlock = 128;

/// Three times 128 rows of all 65,536 numbers, packed. Row r of the 128 holds at i the number
/// (i + r) step: each number moves through 128 neighbouring places. Steps are odd, so that none is
/// left out: with the first a block holds neighbours, with the second 16 numbers span four powers
/// of two, with the third all sizes mix.
inline std::vector<std::uint16_t> every_number(Format dtype) {
  const int fraction_bits = dtype == Format::bf16 ? 7 : 10;
  const std::array<std::int64_t, 3> steps = {1, (1 << (fraction_bits - 2)) + 1, 40503};
  std::vector<std::uint16_t> x;
  x.reserve(static_cast<std::size_t>(steps.size() * kLongestBlock * kNumbers));
  for (const std::int64_t step : steps) {
    for (std::int64_t r = 0; r < kLongestBlock; ++r) {
      for (std::int64_t i = 0; i < kNumbers; ++i) {
        x.push_back(static_cast<std::uint16_t>((i + r) * step));
      }
    }
  }
  return x;
}

/// Of each of the three: every number is in every position of blocks of `block` along rows, and of
/// those along columns.
inline void expect_every_number(const std::vector<std::uint16_t>& x, std::int64_t block) {
  constexpr std::int64_t kElements = kLongestBlock * kNumbers;
  ASSERT_EQ(x.size() % static_cast<std::size_t>(kElements), 0u);
  for (auto from = x.begin(); from != x.end(); from += kElements) {
    std::vector<bool> along(static_cast<std::size_t>(kNumbers * block));
    std::vector<bool> down(along.size());
    for (std::int64_t i = 0; i < kElements; ++i) {
      const std::int64_t number = from[i];
      along[static_cast<std::size_t>(number * block + i % kNumbers % block)] = true;
      down[static_cast<std::size_t>(number * block + i / kNumbers % block)] = true;
    }
    EXPECT_EQ(std::count(along.begin(), along.end(), true), kNumbers * block) << block;
    EXPECT_EQ(std::count(down.begin(), down.end(), true), kNumbers * block) << block;
  }
}

inline void expect_every_number(const std::vector<std::uint16_t>& x) {
  for (const std::int64_t block : {16, 32, 128}) expect_every_number(x, block);
}

}  // namespace blockscale::test
