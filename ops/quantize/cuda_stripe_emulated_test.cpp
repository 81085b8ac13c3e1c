// Stripes, rms_norm with blocks of several rows from one read, in the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "ops/quantize/cuda_test_cases.h"
#include "ops/quantize/cuda_test_quotients.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::Data;
using test::fused_case;

/// rms_norm with blocks of several rows, by thread blocks that wait for each other.
class Stripes : public testing::TestWithParam<Recipe> {
 protected:
  /// A team has as many thread blocks as a row has tiles, and a device of so many teams' thread
  /// blocks room for four.
  static void check_with_teams(Case c, int teams) {
    c.data = c.data == Data::mixed ? Data::normal : c.data;
    c.options.input.transform = InputTransform::rms_norm;
    const std::int64_t columns = kStripeRowBytes / (c.dtype == Format::f32 ? 4 : 2);
    const auto mates = static_cast<int>(ceil_div(c.k, columns));
    c.multiprocessors = std::max(4, teams) * mates;
    c.large = quantize_detail::Choice::always;
    check(c);
  }
};

TEST_P(Stripes, HaveAnyShape) {
  int i = 0;
  for (const std::int64_t rows : {1, 100, 300}) {
    for (const std::int64_t k : {8, 131, 392}) {
      Case c{GetParam(), detail::kQuantizeInputs[i++ % 3]};
      c.rows = rows;
      c.k = k;
      c.batch = rows == 100 ? 2 : 1;
      c.operand_dtype = detail::kQuantizeInputs[i % 3];
      c.x_padding = (8 - k % 8) % 8;  // rows begin at multiples of 16 bytes
      c.value_padding = rows % 3;
      c.layout = k == 392 ? ScaleLayout::mn_major : ScaleLayout::row_major;
      check_with_teams(c, 4);
    }
  }
}

TEST_P(Stripes, TakeEveryKindOfData) {
  for (const Data data : test::kAllData) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      Case c{GetParam(), dtype, 140};
      c.data = data;
      c.operand_dtype = dtype;
      check_with_teams(c, 4);
    }
  }
}

/// Of so many stripes each that slots are filled again, at last all of them twice.
TEST_P(Stripes, FollowEachOtherInTheirTeams) {
  for (std::uint64_t seed = 0; seed <= 3; ++seed) {
    Case c{GetParam(), seed % 2 == 0 ? Format::f32 : Format::bf16, 7 * 128 + 5};
    c.k = seed % 2 == 0 ? 132 : 264;
    c.batch = seed == 3 ? 4 : 2;
    c.seed = seed;
    check_with_teams(c, 4);
    // And of two each, which have two slots.
    c.rows = 6 * 128 + 5;
    c.batch = 1;
    check_with_teams(c, 4);
  }
}

/// Of numbers that are all 1 rms_norm leaves the weight.
TEST_P(Stripes, DivideByScalesThatAreDoubtful) {
  for (const std::uint32_t scale : test::kDoubtfulScales) {
    const test::DoubtfulQuotients doubtful(scale);
    Case c{GetParam(), Format::bf16, 128};
    c.value_of = [](auto...) { return 1.0f; };
    c.weight_of = [&](auto, std::int64_t column) {
      return column == 0 ? doubtful.amax : doubtful.number(column);
    };
    c.options.input.epsilon = 1e-30f;
    check_with_teams(c, 4);
  }
}

/// Where mates do not run beside each other: warps add up what they miss themselves.
TEST_P(Stripes, EndWhereMatesDoNotRun) {
  for (const std::uint32_t at_once : {1u, 2u}) {
    Case c{GetParam(), at_once == 1 ? Format::bf16 : Format::f32, 5 * 128 + 3};
    c.k = at_once == 1 ? 2 * 256 + 40 : 3 * 128;
    c.seed = at_once - 1;
    c.batch = 2;
    c.most_at_once = at_once;
    check_with_teams(c, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Stripes,
                         testing::Values(Recipe::fp8_32x128, Recipe::fp8_64x128_ue8m0,
                                         Recipe::fp8_128x128),
                         [](const auto& p) { return recipe_traits(p.param).name; });

TEST(CudaStripes, AddUpThoseOfManyMates) {
  for (const std::int64_t k : {8192, 5000}) {
    Case c = fused_case(Recipe::fp8_128x128, InputTransform::rms_norm);
    c.operand_dtype = Format::f32;
    c.rows = 3;
    c.k = k;
    c.multiprocessors = 132;
    c.large = quantize_detail::Choice::always;
    c.seed = 1;  // copies come among polls, not after all of them
    check(c);
  }
}

}  // namespace
}  // namespace blockscale
