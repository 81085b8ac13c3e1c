// Grouped products as the GPU's kernels compute them, in the emulator, under random schedules: the
// bound of each element, rows that no group has, rows that are gathered and scattered, offsets that
// are no offsets.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/gemm/cuda/plain_plan.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using grouped_gemm_detail::GroupedPlan;
using test::GroupedCase;
using test::LaunchedProblem;
using test::Random;

/// Runs a problem's plan and checks all elements that have a bound.
void check(LaunchedProblem& problem, const cuda::Chip& chip, const emulator::Options& options) {
  const GroupedGemmArguments x = problem.validated();
  const GroupedPlan plan = grouped_gemm_detail::plan_grouped(x, chip);
  ASSERT_TRUE(test::emulate(x, chip, problem.buffers(), options)) << plan.str();
  if (x.destinations != nullptr) return;
  problem.expect_others_untouched();
  const GemmCheck result = grouped_gemm_detail::check_elements(x, 1 << 20, plan.path());
  EXPECT_TRUE(result.passed()) << plan.str() << result.largest_error << " of "
                               << result.proven_error << ", " << result.of_usual << " of usual";
}

void check(const GroupedCase& of, const cuda::Chip& chip = test::chip_of(3)) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  LaunchedProblem problem(random, of);
  check(problem, chip, emulator::random_order(5));
}

TEST(EmulatedGroups, OfFp8ByEachKernel) {
  check({.rows = {21, 0, 70, 5, 64}, .k = 272});
  check({.rows = {21, 0, 170, 5}, .k = 272, .dtype = Format::f32, .alpha = true, .bias = true});
  check({.rows = {130, 0, 29}, .n = 136, .k = 272, .dtype = Format::f16});
  check({.b = Recipe::fp8_1x128, .rows = {9, 66, 1}, .n = 136, .k = 272, .bias = true});
  check({.b = Recipe::fp8_1x128, .rows = {9, 166, 1}, .n = 136, .k = 144, .alpha = true});
}

// f32 scales whose rows begin at multiples of 16 bytes are copied, where tiles have 128 rows.
TEST(EmulatedGroups, OfFp8WithEachKindOfScale) {
  const std::vector<std::int32_t> few = {21, 0, 30}, many = {70, 0, 140, 3};
  for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
    check({.a = Recipe::fp8_1x128_ue8m0,
           .b = Recipe::fp8_128x128_ue8m0,
           .rows = few,
           .k = 272,
           .layout = layout});
    check({.a = Recipe::fp8_row,
           .b = Recipe::fp8_row,
           .rows = few,
           .k = 272,
           .layout = layout,
           .bias = true});
    check({.rows = many, .n = 24, .k = 272, .layout = layout});
    check({.rows = many, .n = 24, .k = 512, .layout = layout, .behind = 3});
    check({.rows = {70, 1, 140, 3}, .n = 512, .k = 128, .layout = layout, .behind = 2});
    check({.rows = {70, 1, 141, 3}, .n = 512, .k = 128, .layout = layout, .masked = true});
  }
  check({.a = Recipe::fp8_tensor, .b = Recipe::fp8_tensor, .rows = few, .k = 272, .alpha = true});
  // A group begins within a block of A's rows.
  check({.a = Recipe::fp8_128x128, .b = Recipe::fp8_128x128, .rows = {100, 100, 3}, .k = 272});
}

TEST(EmulatedGroups, ThatHaveOtherRowsThanExpected) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    for (const std::int64_t expected : {1, 1000}) {
      Random random(3);
      LaunchedProblem problem(random, {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128,
                                       .b = b,
                                       .rows = {3, 0, 137, 20},
                                       .k = 128});
      problem.x().expected_rows = expected;
      check(problem, test::chip_of(3), emulator::random_order(2));
    }
  }
}

// B is read by the rows of 16 that warps multiply with as many as 8 of A.
TEST(EmulatedGroups, OfFewRows) {
  const cuda::Chip chip = test::chip_of(3);
  const auto check_few = [&](const GroupedCase& of) {
    SCOPED_TRACE(text_of(of));
    Random random(3);
    LaunchedProblem problem(random, of);
    problem.x().expected_rows = 1;
    const GroupedPlan plan = grouped_gemm_detail::plan_grouped(problem.validated(), chip);
    ASSERT_TRUE(std::holds_alternative<Fp8FewRowsParams>(plan.steps.at(0).params)) << plan.str();
    check(problem, chip, emulator::random_order(5));
  };
  for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
    check_few({.rows = {1, 0, 2, 0}, .n = 136, .k = 1040, .layout = layout, .alpha = true});
    check_few({.rows = {1, 0, 9, 0, 3, 0, 0}, .n = 40, .k = 272, .layout = layout, .bias = true});
    check_few({.a = Recipe::fp8_1x128_ue8m0,
               .b = Recipe::fp8_128x128_ue8m0,
               .rows = {2},
               .n = 264,
               .k = 256,
               .dtype = Format::f16,
               .layout = layout});
  }
  check_few({.rows = {1, 0, 9, 0, 0, 0, 3, 0}, .n = 40, .k = 400, .gathered = true});
  check_few({.a = Recipe::fp8_1x128_pow2,
             .b = Recipe::fp8_tensor,
             .rows = {1, 2},
             .n = 40,
             .k = 2064,
             .dtype = Format::f32});
  check_few({.rows = {3, 0, 1, 0, 2, 0, 0, 0, 1, 0, 1, 0}, .k = 400, .gap = 1, .behind = 2});
  check_few({.rows = {2, 0, 1, 2}, .k = 400, .masked = true});
  std::vector<std::int32_t> many(70);
  many[3] = many[40] = 1;
  many[69] = 8;
  check_few({.rows = many, .n = 24, .k = 256});
}

// Tiles of 192 rows, whose warpgroups take turns: those that have no row of a group pass theirs.
TEST(EmulatedGroups, OfManyRows) {
  for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
    Random random(4);
    LaunchedProblem problem(random, {.rows = {201, 1, 0, 70, 137}, .k = 660, .layout = layout});
    problem.x().expected_rows = 1000;
    check(problem, test::chip_of(3), emulator::random_order(3));
  }
}

TEST(EmulatedGroups, MaskedAndWithGaps) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    const Recipe a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128;
    const std::int64_t k = b == Recipe::mxfp4 ? 96 : 400;
    check({.a = a, .b = b, .rows = {3, 0, 70, 33}, .k = k, .masked = true});
    check({.a = a, .b = b, .rows = {3, 0, 70, 33}, .k = k, .gap = 9, .alpha = true, .bias = true});
    check({.a = a, .b = b, .rows = {17}, .k = k, .behind = 0});
    check({.a = a, .b = b, .rows = {0, 0, 0}, .k = k});
  }
  check({.rows = {3, 0, 70, 33}, .layout = ScaleLayout::mn_major, .masked = true});
}

TEST(EmulatedGroups, OfEveryOtherPair) {
  const std::vector<std::pair<Recipe, Recipe>> pairs = {
      {Recipe::nvfp4, Recipe::nvfp4},
      {Recipe::bf16, Recipe::nvfp4},
      {Recipe::f16, Recipe::mxfp4},
      {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
      {Recipe::fp8_1x128, Recipe::mxfp4},
      {Recipe::f32, Recipe::f32},
      {Recipe::fp8_tensor_e5m2, Recipe::fp8_tensor_e5m2}};
  for (const auto& [a, b] : pairs) {
    check({.a = a, .b = b, .rows = {5, 0, 40}, .n = 40, .k = 192, .alpha = true, .bias = true});
    check({.a = a, .b = b, .rows = {2, 0, 7}, .n = 40, .k = 192, .gap = 2});
  }
  for (const cuda::Chip& chip : test::chips_of_every_architecture()) {
    cuda::Chip small = chip;
    small.multiprocessors = 3;
    check({.a = Recipe::nvfp4, .b = Recipe::nvfp4, .rows = {33, 1}, .n = 24, .k = 64}, small);
  }
}

TEST(EmulatedGroups, ManyMoreThanAWarpLooksAt) {
  Random random(9);
  for (const test::Spread spread : test::kSpreads) {
    check({.rows = test::random_lengths(random, spread, 300, 300), .n = 16, .k = 128});
    check({.a = Recipe::bf16,
           .b = Recipe::mxfp8_e4m3,
           .rows = test::random_lengths(random, spread, 70, 140),
           .n = 16,
           .k = 64});
  }
}

TEST(EmulatedGroups, OffsetsThatAreNone) {
  // Of tiles, of the plain kernels, and of few rows.
  const std::pair<Recipe, int> cases[] = {
      {Recipe::fp8_128x128, 0}, {Recipe::mxfp4, 0}, {Recipe::mxfp4, 1}};
  for (const auto& [b, expected_rows] : cases) {
    for (const std::vector<std::int32_t>& list : test::kNoOffsets) {
      Random random(4);
      LaunchedProblem problem(
          random, {.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128, .b = b, .k = 128});
      problem.set_offsets(list);
      problem.x().expected_rows = expected_rows;
      GroupedPlan plan = grouped_gemm_detail::plan_grouped(problem.validated(), test::chip_of(3));
      const bool share_rows = &list == &test::kNoOffsets.back();
      const emulator::Report report = test::report_of(plan.steps.at(0), plan.architecture,
                                                      problem.buffers(), emulator::random_order(6));
      for (const emulator::Finding& finding : report.findings) {
        EXPECT_TRUE(share_rows && finding.kind == emulator::FindingKind::race) << report.text();
      }
      problem.expect_others_untouched();
    }
  }
}

TEST(EmulatedGroups, GatheredAndScattered) {
  check({.rows = {3, 0, 37, 20}, .k = 400, .gathered = true});
  check({.a = Recipe::fp8_1x128_ue8m0, .rows = {3, 0, 137, 20}, .k = 1040, .gathered = true});
  check({.b = Recipe::fp8_1x128, .rows = {3, 0, 37}, .k = 136, .gathered = true});
  check({.b = Recipe::fp8_1x128, .rows = {137, 5}, .k = 272, .gathered = true});
  // Tiles of 192 rows, whose scales no tensor copy brings then.
  check({.rows = {150, 0, 200}, .k = 272, .layout = ScaleLayout::mn_major, .gathered = true});
  check({.a = Recipe::fp8_1x128_ue8m0,
         .b = Recipe::fp8_128x128_ue8m0,
         .rows = {150, 0, 200},
         .k = 144,
         .gathered = true});
  check({.a = Recipe::fp8_1x128_ue8m0, .rows = {193, 5}, .k = 400, .gathered = true});
  check(
      {.a = Recipe::fp8_tensor, .b = Recipe::fp8_tensor, .rows = {150}, .k = 96, .gathered = true});
  check({.a = Recipe::bf16, .b = Recipe::nvfp4, .rows = {3, 0, 7}, .k = 64, .gathered = true});
  check(
      {.a = Recipe::bf16, .b = Recipe::nvfp4, .rows = {1}, .k = 48, .behind = 0, .gathered = true});
  check({.rows = {1}, .k = 128, .behind = 0, .gathered = true});
  check({.a = Recipe::fp8_row, .b = Recipe::fp8_row, .rows = {30, 7}, .k = 96, .gathered = true});
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::mxfp4}) {
    test::expect_scattered({.a = b == Recipe::mxfp4 ? Recipe::bf16 : Recipe::fp8_1x128,
                            .b = b,
                            .rows = {3, 0, 37, 20},
                            .k = 128,
                            .dtype = Format::f32},
                           [](LaunchedProblem& problem) {
                             check(problem, test::chip_of(3), emulator::random_order(2));
                           });
  }
  // One row, to rows of D that begin anywhere.
  for (const std::int64_t k : {48, 96, 128, 144}) {
    test::expect_scattered(
        {.rows = {1}, .k = k, .dtype = Format::f32, .behind = 0, .extra_columns = 1},
        [](LaunchedProblem& problem) { check(problem, test::chip_of(3), emulator::in_order()); });
  }
}

}  // namespace
}  // namespace blockscale
