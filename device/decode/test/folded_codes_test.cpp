// Every code in every place, times every four scales that differ in one block, as e4m3.
#include "device/decode/folded_codes.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace blockscale {
namespace {

using decoding::fold_scales;
using decoding::FoldedScales;
using decoding::kFoldedBlocks;
using decoding::ScaleRange;

/// All codes of a block in each place of eight, times what is left to sums, are what they and the
/// scale are.
void check_block(const FoldedScales& folded, std::uint32_t block, std::uint32_t scale) {
  const float value_of_scale = decode<Format::ue8m0>(static_cast<std::uint8_t>(scale));
  for (std::uint32_t code = 0; code < 16; ++code) {
    for (std::uint32_t place = 0; place < 8; ++place) {
      for (const std::uint32_t other : {0x11111111u * code, 0x11111111u * (15 - code), 0u}) {
        std::uint32_t words[2];
        const std::uint32_t codes = (other & ~(15u << 4 * place)) | code << 4 * place;
        decoding::fold_e2m1(words, codes, folded.tables[block]);
        const auto byte = static_cast<std::uint8_t>(words[place / 4] >> 8 * (place % 4));
        const double number = double{decode<Format::e4m3>(byte)};
        const double expected =
            double{decode<Format::e2m1>(static_cast<std::uint8_t>(code))} * double{value_of_scale};
        const double product = number * double{folded.factors[block]};
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(product)) << scale;
        } else {
          ASSERT_EQ(product, expected) << "code " << code << ", scale " << scale;
          ASSERT_EQ(std::signbit(number), code >= 8);
        }
      }
    }
  }
}

TEST(FoldedCodes, EveryCodeAndScale) {
  for (std::uint32_t scale = 0; scale < 256; ++scale) {
    for (int difference = -13; difference <= 13; ++difference) {
      const int other = static_cast<int>(scale) + difference;
      if (other < 0 || other > 255) continue;
      const auto of_others = static_cast<std::uint32_t>(other);
      const std::uint32_t block = scale % kFoldedBlocks;
      std::uint32_t scales[kFoldedBlocks];
      for (std::uint32_t& s : scales) s = of_others;
      scales[block] = scale;
      const ScaleRange range(scales);
      const FoldedScales folded = fold_scales(scales, range.least);
      EXPECT_EQ(folded.fit, std::abs(difference) <= 11 && std::max(scale, of_others) < 255 &&
                                std::min(scale, of_others) + 5 < 255);
      if (folded.fit) {
        for (const float factor : folded.factors) EXPECT_EQ(factor, folded.factors[0]);
      }
      for (std::uint32_t i = 0; i < kFoldedBlocks; ++i) check_block(folded, i, scales[i]);
      // With room on both sides they fit as they did, and so do others.
      const std::uint32_t first = range.first_of_middle();
      EXPECT_TRUE(range.fits(first) || !folded.fit);
      const FoldedScales of_middle = fold_scales(scales, first);
      for (std::uint32_t i = 0; i < kFoldedBlocks; ++i) check_block(of_middle, i, scales[i]);
      if (difference == 0 && scale >= 5 && scale < 249) {
        for (const int apart : {-5, 6}) {
          scales[0] = static_cast<std::uint32_t>(other + apart);
          EXPECT_TRUE(fold_scales(scales, first).fit);
          check_block(fold_scales(scales, first), 0, scales[0]);
          scales[0] += apart < 0 ? -1u : 1u;
          EXPECT_FALSE(fold_scales(scales, first).fit);
        }
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace blockscale
