// Plans of grouped products: which kernels, and whether there can be no more tiles than they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using grouped_gemm_detail::GroupedPlan;
using grouped_gemm_detail::GroupedStep;
using test::GroupedCase;
using test::LaunchedProblem;
using test::Random;
using ::testing::HasSubstr;

GroupedPlan plan_of(LaunchedProblem& problem, const cuda::Chip& chip) {
  return grouped_gemm_detail::plan_grouped(problem.validated(), chip);
}

std::string plan_text(const GroupedCase& of, const cuda::Chip& chip = cuda::chip_named("H200")) {
  Random random(1);
  LaunchedProblem problem(random, of);
  return plan_of(problem, chip).str();
}

TEST(GroupedPlan, KernelsFollowOperandsAndRows) {
  const std::vector<std::int32_t> few = {20, 9}, many = {100, 133};
  EXPECT_THAT(plan_text({.rows = few}), HasSubstr("grouped_gemm_fp8_64x128_blocks:"));
  EXPECT_THAT(plan_text({.rows = many, .k = 272}), HasSubstr("grouped_gemm_fp8_128x128_blocks:"));
  EXPECT_THAT(plan_text({.rows = many, .k = 512}), HasSubstr("192x128_blocks_copied:"));
  GroupedCase mn_major = {.rows = many, .n = 512, .k = 512, .layout = ScaleLayout::mn_major};
  for (const bool masked : {false, true}) {
    mn_major.masked = masked;
    EXPECT_THAT(plan_text(mn_major), HasSubstr("192x128_blocks_copied:"));
  }
  EXPECT_THAT(plan_text({.rows = many, .k = 512, .gathered = true}),
              ::testing::AllOf(HasSubstr("128x128_blocks:"), HasSubstr("A gathered")));
  // Where D has no row, no row goes anywhere.
  Random random(1);
  LaunchedProblem nowhere(random, {.rows = few, .scattered = true});
  nowhere.x().d.rows = 0;
  EXPECT_THAT(plan_of(nowhere, cuda::chip_named("H200")).str(), HasSubstr("nothing to do"));
  EXPECT_THAT(plan_text({.b = Recipe::fp8_1x128, .rows = few}), HasSubstr("fp8_64x96_columns:"));
  EXPECT_THAT(plan_text({.b = Recipe::fp8_1x128, .rows = many}), HasSubstr("128x128_columns:"));
  EXPECT_THAT(plan_text({.a = Recipe::fp8_row, .b = Recipe::fp8_row, .rows = few}),
              HasSubstr("scales at the end"));
  // Rows that begin anywhere, and other pairs and chips.
  EXPECT_THAT(plan_text({.rows = {9, 3}, .k = 401}), HasSubstr("grouped_gemm_plain_16x16_bf16:"));
  EXPECT_THAT(plan_text({.a = Recipe::bf16, .b = Recipe::nvfp4, .rows = many}),
              HasSubstr("grouped_gemm_plain_64x64_bf16:"));  // rows of half a piece
  EXPECT_THAT(plan_text({.a = Recipe::f16, .b = Recipe::nvfp4, .rows = few, .k = 64}),
              HasSubstr("grouped_gemm_tiles_nvfp4_f16_64x128:"));
  EXPECT_THAT(plan_text({.a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {70, 73}, .k = 64}),
              HasSubstr("grouped_gemm_tiles_mxfp4_bf16_128x128:"));
  EXPECT_THAT(
      plan_text({.a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {400}, .k = 64, .gathered = true}),
      ::testing::AllOf(HasSubstr("those of groups gathered to the workspace"),
                       HasSubstr("grouped_gemm_tiles_mxfp4_bf16_256x128:")));
  EXPECT_THAT(plan_text({.rows = many}, cuda::chip_named("B200")),
              HasSubstr("grouped_gemm_plain_64x64_bf16:"));
  EXPECT_THAT(plan_text({.a = Recipe::f32, .b = Recipe::f32, .rows = many, .k = 64},
                        cuda::chip_named("RTX 5090")),
              HasSubstr("grouped_gemm_plain_32x32_bf16:"));
}

TEST(GroupedPlan, TilesAreThoseOfTheRowsThatAreExpected) {
  Random random(1);
  for (const bool masked : {false, true}) {
    LaunchedProblem problem(random, {.rows = {100, 0, 133, 90}, .k = 272, .masked = masked});
    const auto text_with = [&](std::int64_t expected) {
      problem.x().expected_rows = expected;
      return plan_of(problem, cuda::chip_named("H200")).str();
    };
    EXPECT_THAT(text_with(0), HasSubstr("fp8_128x128_blocks"));
    EXPECT_THAT(text_with(64), HasSubstr("fp8_64x128_blocks"));
    EXPECT_THAT(text_with(65), HasSubstr("fp8_128x128_blocks"));
  }
}

TEST(GroupedPlan, HasNoMoreTilesThanItSays) {
  Random random(2);
  for (const test::Spread spread : test::kSpreads) {
    for (const std::int64_t average : {1, 9, 63, 64, 65, 130}) {
      const std::int64_t groups = test::uniform(random, 1, 40);
      GroupedCase of = {.rows = test::random_lengths(random, spread, groups, groups * average),
                        .n = 8,
                        .k = 128,
                        .masked = average == 9};
      LaunchedProblem problem(random, of);
      const GroupedPlan plan = plan_of(problem, test::chip_of(132));
      const GroupedStep& step = plan.steps.at(0);
      std::int64_t tiles = 0;
      for (const std::int32_t rows : of.rows) tiles += ceil_div(std::int64_t{rows}, step.rows);
      EXPECT_LE(tiles * ceil_div(of.n, step.columns), step.most_tiles);
      EXPECT_LE(step.shape.grid.x, step.most_tiles);
      EXPECT_LE(step.shape.dynamic_shared_bytes, test::chip_of(132).shared_bytes);
    }
  }
}

TEST(GroupedPlan, RefusesMoreTilesThanKernelsCount) {
  const std::vector<std::int32_t> offsets(3, 0);
  GroupedGemmArguments x;
  x.a = {Recipe::bf16, (std::int64_t{1} << 31) - 1, 8, 1, &offsets};
  x.b = {Recipe::bf16, std::int64_t{1} << 26, 8, 2, &offsets};
  x.d = {const_cast<std::int32_t*>(offsets.data()), Format::f32, x.a.rows, x.b.rows};
  x.offsets = offsets.data();
  x.rows = x.a.rows;
  test::expect_error(ErrorCode::unsupported, "d", "at most 2^30",
                     [&] { (void)grouped_gemm_detail::plan_grouped(x, test::chip_of(132)); });
}

TEST(GroupedPlan, SharedMemoryHoldsThePlacesOfManyGroups) {
  Random random(2);
  LaunchedProblem few(random, {.rows = std::vector<std::int32_t>(32, 1), .n = 8, .k = 128});
  LaunchedProblem many(random, {.rows = std::vector<std::int32_t>(3000, 1), .n = 8, .k = 128});
  const auto bytes = [](LaunchedProblem& problem) {
    const GroupedPlan plan = plan_of(problem, test::chip_of(132));
    return std::get<Fp8GroupedParams>(plan.steps.at(0).params).order.shared_bytes();
  };
  EXPECT_EQ(bytes(few), 0u);
  EXPECT_EQ(bytes(many), 4u * (94 + 1));
}

}  // namespace
}  // namespace blockscale
