// The CPU's grouped products: each group's rows have the bits of gemm, and nothing else is written.
#include "blockscale/grouped_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/grouped_gemm/test/grouped_problem.h"
#include "tests/expect_error.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::GroupedProblem;
using test::InputFamily;
using test::offsets_of;
using test::OperandOptions;
using test::Random;
using test::Spread;
using test::TestMatrix;

class GroupedGemmTest : public test::OnSimdTarget {};

/// Runs `x` with a new D of `dtype` and compares all of D's memory.
void expect_bits_of_gemm(GroupedGemmArguments x, Format dtype, int threads = 2) {
  const bool is_masked = x.offsets == nullptr;
  const std::int64_t rows = x.a.rows;
  const std::int64_t columns =
      std::holds_alternative<Swiglu>(x.transform) ? x.b.rows / 2 : x.b.rows;
  const std::int64_t batch = is_masked ? x.b.batch : 1;
  TestMatrix d(dtype, rows, columns, batch, 3, 2), expected(dtype, rows, columns, batch, 3, 2);
  x.d = expected.view();
  test::multiply_groups(x);
  x.d = d.view();
  grouped_gemm(x, {threads});
  EXPECT_EQ(d.bytes(), expected.bytes())
      << recipe_traits(x.a.recipe).name << " x " << recipe_traits(x.b.recipe).name << ", "
      << x.b.batch << " groups, " << rows << " x " << columns << " x " << x.a.k;
}

struct Pair {
  Recipe a, b;
  ScaleLayout layout_a = ScaleLayout::row_major;
  ScaleLayout layout_b = ScaleLayout::row_major;
};

constexpr ScaleLayout kRows = ScaleLayout::row_major, kColumns = ScaleLayout::mn_major,
                      kTiles = ScaleLayout::swizzled_128x4, kSmallTiles = ScaleLayout::swizzled_8x4;
constexpr Pair kPairs[] = {
    {Recipe::f32, Recipe::f32},
    {Recipe::bf16, Recipe::bf16},
    {Recipe::bf16, Recipe::nvfp4, kRows, kTiles},
    {Recipe::bf16, Recipe::mxfp6_e2m3, kRows, kColumns},
    {Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2},
    {Recipe::fp8_row, Recipe::fp8_row, kColumns, kRows},
    {Recipe::fp8_1x128, Recipe::fp8_128x128, kRows, kColumns},
    {Recipe::fp8_1x128, Recipe::fp8_128x128, kColumns, kRows},
    {Recipe::fp8_1x128_pow2, Recipe::fp8_128x128_pow2, kColumns, kColumns},
    {Recipe::fp8_1x128_ue8m0, Recipe::fp8_128x128_ue8m0, kTiles, kRows},
    {Recipe::fp8_32x128, Recipe::fp8_1x128, kRows, kRows},
    {Recipe::fp8_128x128_ue8m0, Recipe::mxfp4, kColumns, kTiles},
    {Recipe::fp8_row, Recipe::nvfp4, kRows, kColumns},
    {Recipe::mxfp8_e5m2, Recipe::mxfp8_e5m2, kTiles, kSmallTiles},
    {Recipe::mxfp8_e4m3, Recipe::mxfp4, kRows, kTiles},
    {Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3, kColumns, kRows},
    {Recipe::mxfp4, Recipe::mxfp4, kTiles, kTiles},
    {Recipe::nvfp4, Recipe::nvfp4, kTiles, kSmallTiles},
    {Recipe::nvfp4, Recipe::nvfp4, kColumns, kRows},
};

OperandOptions with_layout(Random& random, Recipe recipe, ScaleLayout layout) {
  OperandOptions options;
  options.layout = layout;
  options.extra_row_bytes = 4 * test::uniform(random, 0, 2);
  options.extra_leading = test::uniform(random, 0, 2);
  options.extra_batch = 4 * test::uniform(random, 0, 1);
  options.tensor_scale = recipe_traits(recipe).tensor_scale;
  return options;
}

GroupedProblem problem_of(Random& random, const Pair& pair, const GroupedProblem::Shape& shape,
                          InputFamily family) {
  return {random,
          pair.a,
          pair.b,
          shape,
          family,
          with_layout(random, pair.a, pair.layout_a),
          with_layout(random, pair.b, pair.layout_b)};
}

/// Groups begin anywhere: in blocks of 128 rows that share a scale, in tiles of swizzled scales.
TEST_P(GroupedGemmTest, EveryPairHasTheBitsOfGemm) {
  Random random(1);
  const Format dtypes[] = {Format::f32, Format::bf16, Format::f16};
  int next = 0;
  for (const Pair& pair : kPairs) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
      if (!tries_all() && !test::chance(random, 0.4)) continue;
      const std::int64_t k = next % 3 == 0 ? 64 : next % 3 == 1 ? 160 : 288;
      GroupedProblem problem = problem_of(random, pair, {5, 150, 70, k}, family);
      const Spread spread = next % 2 == 0 ? Spread::uniform : Spread::zipf;
      problem.set_offsets(offsets_of(test::random_lengths(random, spread, 5, 150)));
      if (next % 2 == 0) problem.use_factors();
      if (next % 3 == 0) problem.use_bias();
      expect_bits_of_gemm(problem.x(), dtypes[next % 3]);
      ++next;
    }
  }
}

TEST_P(GroupedGemmTest, EverySpreadOfRows) {
  Random random(2);
  const Pair pairs[] = {{Recipe::nvfp4, Recipe::nvfp4, kTiles, kTiles},
                        {Recipe::fp8_1x128, Recipe::fp8_128x128, kColumns, kRows}};
  for (const Pair& pair : pairs) {
    for (const Spread spread : test::kSpreads) {
      for (const std::int64_t groups : {1, 4, 300}) {
        const GroupedProblem::Shape shape{groups, groups == 300 ? 333 : 90, 33, 80};
        GroupedProblem problem = problem_of(random, pair, shape, InputFamily::normal);
        problem.set_offsets(offsets_of(test::random_lengths(random, spread, groups, shape.rows)));
        problem.use_bias();
        expect_bits_of_gemm(problem.x(), Format::bf16);
      }
    }
  }
}

TEST_P(GroupedGemmTest, AverageGroupsOf65To96And129To144Rows) {
  Random random(3);
  for (const auto& [least, most] : {std::pair{65, 96}, std::pair{129, 144}}) {
    std::vector<std::int32_t> lengths;
    for (int g = 0; g < 3; ++g) {
      lengths.push_back(static_cast<std::int32_t>(test::uniform(random, least, most)));
    }
    const std::vector<std::int32_t> offsets = offsets_of(lengths);
    for (const Pair& pair : {kPairs[7], kPairs[16]}) {
      GroupedProblem problem =
          problem_of(random, pair, {3, offsets.back(), 40, 192}, InputFamily::normal);
      problem.set_offsets(offsets);
      expect_bits_of_gemm(problem.x(), Format::bf16);
    }
  }
}

/// A D whose rows between groups stay as they are.
TEST_P(GroupedGemmTest, LengthsLeaveGaps) {
  Random random(4);
  for (const Pair& pair : {kPairs[2], kPairs[6], kPairs[16]}) {
    GroupedProblem problem = problem_of(random, pair, {5, 100, 48, 96}, InputFamily::normal);
    problem.set_offsets({64, 0, 17, 40, 90});  // in any order, and no more than groups
    problem.set_lengths({20, 3, 0, 16, 10});
    expect_bits_of_gemm(problem.x(), Format::f32);
    EXPECT_NO_THROW({
      TestMatrix d(Format::f32, 100, 48);
      problem.x().d = d.view();
      check_groups(problem.x());
    });
  }
}

/// What is no row is cut off: nothing outside of a buffer is read or written.
TEST_P(GroupedGemmTest, OffsetsThatAreNoRowsAreCut) {
  Random random(5);
  GroupedProblem problem = problem_of(random, kPairs[16], {5, 40, 48, 64}, InputFamily::normal);
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::vector<std::int32_t>& offsets : {std::vector<std::int32_t>{-7, 5, 5, 9, 30, 41},
                                                   {0, 20, 10, 10, 40, 40},
                                                   {kLeast, kLeast, 3, kMost, kMost, kMost},
                                                   {40, 39, 38, 37, 36, 35},
                                                   {50, 60, 70, 80, 90, 7},
                                                   {kMost, kLeast, kMost, kLeast, kMost, kLeast}}) {
    problem.set_offsets(offsets);
    expect_bits_of_gemm(problem.x(), Format::f32);
  }
  problem.set_offsets({-5, 30, kMost, kLeast, 0});
  problem.set_lengths({10, kMost, kMost, 3, -3});
  expect_bits_of_gemm(problem.x(), Format::f32);
}

TEST_P(GroupedGemmTest, OfGroupsThatShareRowsTheLastIsStored) {
  Random random(6);
  GroupedProblem problem = problem_of(random, kPairs[6], {4, 60, 70, 96}, InputFamily::normal);
  problem.set_offsets({0, 20, 10, 55});
  problem.set_lengths({30, 30, 5, 5});
  expect_bits_of_gemm(problem.x(), Format::bf16);
}

TEST_P(GroupedGemmTest, MaskedGroups) {
  Random random(7);
  for (const Pair& pair : {kPairs[2], kPairs[6], kPairs[9], kPairs[16]}) {
    OperandOptions of_a = with_layout(random, pair.a, pair.layout_a);
    of_a.batch = 4;
    GroupedProblem problem(random, pair.a, pair.b, {4, 37, 50, 128}, InputFamily::normal, of_a,
                           with_layout(random, pair.b, pair.layout_b));
    problem.set_lengths({37, 0, 5, 16});
    problem.use_factors();
    problem.use_bias();
    expect_bits_of_gemm(problem.x(), Format::bf16);
    problem.set_lengths({38, -1, std::numeric_limits<std::int32_t>::max(), 1});
    expect_bits_of_gemm(problem.x(), Format::f32);
  }
}

TEST_P(GroupedGemmTest, TransformsBeforeItRounds) {
  Random random(8);
  GroupedProblem problem = problem_of(random, kPairs[14], {3, 50, 128, 96}, InputFamily::normal);
  problem.set_offsets({3, 21, 21, 44});
  problem.use_bias();
  for (const QuantizeInput& transform :
       {QuantizeInput{Gelu{}}, QuantizeInput{Swiglu{}}, QuantizeInput{Swiglu{{}, 64}}}) {
    problem.x().transform = transform;
    for (const Format dtype : {Format::f32, Format::bf16}) {
      expect_bits_of_gemm(problem.x(), dtype);
    }
  }
}

TEST_P(GroupedGemmTest, SameBitsForAnyNumberOfThreads) {
  Random random(9);
  for (const Pair& pair : {kPairs[6], kPairs[16]}) {
    GroupedProblem problem = problem_of(random, pair, {9, 200, 130, 128}, InputFamily::adversarial);
    problem.set_offsets(offsets_of(test::random_lengths(random, Spread::zipf, 9, 200)));
    for (const int threads : {1, 2, 5, 0}) {
      expect_bits_of_gemm(problem.x(), Format::f32, threads);
    }
  }
}

TEST_P(GroupedGemmTest, BatchInvariantRows) {
  constexpr std::int64_t kM = 40, kN = 77;
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::fp8_128x128}) {
    Random random(17);
    const Recipe of_a = recipe == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128;
    GroupedProblem problem(random, of_a, recipe, {3, kM, kN, 512}, InputFamily::adversarial);
    problem.x().batch_invariant = true;
    // Groups end elsewhere, and a row of each stays in it.
    std::vector<std::vector<std::uint8_t>> results;
    for (const std::vector<std::int32_t>& offsets :
         {std::vector<std::int32_t>{0, 1, 2, 40}, {0, 1, 20, 40}}) {
      problem.set_offsets(offsets);
      TestMatrix d(Format::f32, kM, kN);
      problem.x().d = d.view();
      grouped_gemm(problem.x());
      results.push_back(d.bytes());
    }
    const auto row = [&](std::size_t result, std::int64_t r) {
      const auto begin = results[result].begin() + TestMatrix::kGuard + r * kN * 4;
      return std::vector<std::uint8_t>(begin, begin + kN * 4);
    };
    for (const std::int64_t r : {0, 1, 20, 39}) EXPECT_EQ(row(0, r), row(1, r)) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GroupedGemmTest, testing::ValuesIn(test::product_targets()),
                         [](const auto& param_info) {
                           return test::target_name(param_info.param);
                         });

/// An operand of codes and scales that are cheap to draw, of more than a wave's packed memory.
TEST(GroupedGemm, PacksMoreThanFitsAtOnceInWaves) {
  constexpr std::int64_t kGroups = 7, kM = 520, kN = 9, kK = 16384;
  ScaledTensor a(Recipe::mxfp4, kM, kK), b(Recipe::mxfp4, kN, kK, kRows, kGroups);
  Random random(10);
  for (ScaledTensor* const x : {&a, &b}) {
    const MutableScaledTensorView view = x->view();
    auto* const values = static_cast<std::uint8_t*>(view.values);
    std::generate_n(values, value_bytes(view.recipe, view.rows, kK, view.batch),
                    [&] { return static_cast<std::uint8_t>(random()); });
    auto* const scales = static_cast<std::uint8_t*>(view.scales);
    std::generate_n(scales, scale_bytes(view.recipe, kRows, view.rows, kK, view.batch),
                    [&] { return static_cast<std::uint8_t>(120 + random() % 16); });
  }
  const std::vector<std::int32_t> offsets = {0, 100, 101, 101, 400, 402, 460, 520};
  GroupedGemmArguments x;
  x.a = resolved(ScaledTensorView(a.view()), "a");
  x.b = resolved(ScaledTensorView(b.view()), "b");
  x.offsets = offsets.data();
  expect_bits_of_gemm(x, Format::f32);
}

TEST(GroupedGemm, OfNothingWritesNothing) {
  Random random(11);
  GroupedProblem problem = problem_of(random, kPairs[1], {2, 0, 8, 16}, InputFamily::normal);
  problem.set_offsets({0, 0, 0});
  expect_bits_of_gemm(problem.x(), Format::f32);
  TestMatrix d(Format::f32, 0, 8);
  problem.x().d = d.view();
  EXPECT_EQ(describe_grouped_gemm(problem.x()), "nothing to do\n");
}

TEST(GroupedGemm, OfNoKIsTheBias) {
  Random random(12);
  GroupedProblem problem = problem_of(random, kPairs[1], {2, 9, 8, 0}, InputFamily::normal);
  problem.set_offsets({0, 4, 8});
  problem.use_bias();
  expect_bits_of_gemm(problem.x(), Format::f32);
}

TEST(GroupedGemm, PlansSayHowEachGroupIsMultiplied) {
  Random random(13);
  GroupedProblem problem = problem_of(random, kPairs[16], {3, 200, 128, 96}, InputFamily::normal);
  TestMatrix d(Format::bf16, 200, 64);
  problem.x().d = d.view();
  problem.x().offsets = reinterpret_cast<const std::int32_t*>(16);  // not read
  problem.x().transform = Swiglu{};
  EXPECT_THAT(describe_grouped_gemm(problem.x()),
              testing::AllOf(testing::StartsWith("3 groups of up to 200 rows"),
                             testing::HasSubstr(", then swiglu\n1"), testing::HasSubstr("\nfrom "),
                             testing::HasSubstr(" rows on: ")));
}

}  // namespace
}  // namespace blockscale
