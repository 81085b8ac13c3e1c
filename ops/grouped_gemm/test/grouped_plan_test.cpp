// Plans of grouped products: which kernels, and whether there can be no more tiles than they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
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
              ::testing::AllOf(HasSubstr("192x128_blocks_copied:"), HasSubstr("A gathered")));
  EXPECT_THAT(plan_text({.rows = many, .k = 272, .gathered = true}),
              HasSubstr("192x128_blocks_copied:"));
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
              HasSubstr("gemm_tiles_nvfp4_64x128:"));
  EXPECT_THAT(plan_text({.a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {70, 73}, .k = 64}),
              HasSubstr("gemm_tiles_mxfp4_128x128:"));
  EXPECT_THAT(
      plan_text({.a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {400}, .k = 64, .gathered = true}),
      ::testing::AllOf(HasSubstr("those of groups gathered to the workspace"),
                       HasSubstr("gemm_tiles_mxfp4_256x128:")));
  EXPECT_THAT(plan_text({.a = Recipe::fp8_row, .b = Recipe::mxfp4, .rows = {400}, .k = 256}),
              HasSubstr("gemm_tiles_mxfp4_e4m3_256x128:"));
  EXPECT_THAT(plan_text({.a = Recipe::fp8_1x128, .b = Recipe::mxfp4, .rows = {400}, .k = 256}),
              HasSubstr("grouped_gemm_plain_64x64_bf16:"));
  EXPECT_THAT(plan_text({.rows = many}, cuda::chip_named("B200")),
              HasSubstr("grouped_gemm_plain_64x64_bf16:"));
  EXPECT_THAT(plan_text({.a = Recipe::f32, .b = Recipe::f32, .rows = many, .k = 64},
                        cuda::chip_named("RTX 5090")),
              HasSubstr("grouped_gemm_plain_32x32_bf16:"));
}

// By the kernel of few rows where all gates of a block have one scale, and all ups; else by tiles
// that quantize. Gates and ups are in the workspace of neither.
TEST(GroupedPlan, FewRowsThatAreQuantized) {
  const auto plan_with = [](std::int64_t inner, const Swiglu& swiglu) {
    Random random(1);
    LaunchedProblem problem(random, {.rows = {1, 0, 2, 0}, .n = 2 * inner, .k = 512, .behind = 0});
    GroupedGemmArguments& x = problem.x();
    x.expected_rows = 1;
    x.d = {};
    MutableScaledTensorView& out = x.quantized.emplace().out;
    out.recipe = Recipe::fp8_1x128;
    out.rows = 3;
    out.k = inner;
    std::vector<std::uint8_t> values(static_cast<std::size_t>(3 * inner));
    std::vector<float> scales(static_cast<std::size_t>(3 * ceil_div(inner, std::int64_t{128})));
    out.values = values.data();
    out.scales = scales.data();
    x.quantized->options.input = swiglu;
    return plan_of(problem, cuda::chip_named("H200"));
  };
  for (const std::int64_t inner : {128, 192, 264}) {
    const GroupedPlan plan = plan_with(inner, Swiglu{});
    EXPECT_THAT(plan.str(), HasSubstr("grouped_gemm_fp8_few_rows")) << inner;
    EXPECT_THAT(plan.str(), HasSubstr("D transformed")) << inner;
    EXPECT_LT(plan.workspace_bytes, 3 * 2 * inner * 4) << inner;
  }
  EXPECT_THAT(plan_with(132, Swiglu{GateOrder::up_first, 1}).str(), HasSubstr("D transformed"));
  for (const std::int64_t inner : {100, 132, 260}) {
    const GroupedPlan plan = plan_with(inner, Swiglu{});
    EXPECT_THAT(plan.str(), HasSubstr("columns_quantized")) << inner;
    EXPECT_EQ(plan.workspace_bytes, 0) << inner;
  }
}

/// What the driver and the kernel ask of a launch of few rows with weights in FP4.
void expect_launchable(const GroupedStep& step, const GroupedGemmArguments& x,
                       const cuda::Chip& chip) {
  const auto& p = std::get<Fp4FewRowsParams>(step.params);
  EXPECT_EQ(step.shape.grid.x, p.blocks_k);
  EXPECT_EQ(step.shape.cluster.x, p.blocks_k);
  EXPECT_LE(step.shape.grid.x * step.shape.grid.y,
            static_cast<std::uint32_t>(chip.multiprocessors));
  EXPECT_EQ(step.shape.block.x, 32 * p.warps_k * p.block_tiles);
  EXPECT_EQ(step.columns, p.block_tiles * kFp4TileRows);
  EXPECT_GE(std::int64_t{p.order.tiles_n} * step.columns, x.b.rows);
  EXPECT_EQ(p.order.band_rows, 1u);
  const Fp4GemmConfig config =
      kFp4GroupedKernels[kFp4GroupedKernels.find(x.a.recipe, x.b.recipe, false)];
  EXPECT_GE(std::int64_t{p.block_chunks} * p.blocks_k * config.chunk_k(), x.a.k);
  EXPECT_EQ(
      step.shape.dynamic_shared_bytes,
      memory_of_fp4(config, kFp4GroupedRows, p.block_chunks, p.warps_k * p.block_tiles).total +
          p.order.shared_bytes());
  EXPECT_LE(step.shape.dynamic_shared_bytes, chip.shared_bytes);
}

TEST(GroupedPlan, FewRowsOfFp4) {
  const cuda::Chip chip = cuda::chip_named("H200");
  const GroupedCase good = {
      .a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {1, 0, 0, 3, 9, 1}, .k = 32, .behind = 0};
  EXPECT_THAT(plan_text(good), HasSubstr("grouped_gemm_few_rows_mxfp4_8: at most 49 tiles"));
  const GroupedGemmArguments of_gpt_oss =
      imagined_grouped_gemm(32, 4, 5760, 2880, Recipe::bf16, Recipe::mxfp4, Format::bf16);
  EXPECT_EQ(cuda::describe_grouped_gemm(of_gpt_oss, chip),
            "grouped_gemm_few_rows_mxfp4_8: at most 132 tiles of 8 x 176, K divided among 1 "
            "warps; 132 x 352 threads, 63744 bytes shared\nworkspace 0 bytes\n");
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_row, Recipe::fp8_1x128}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      for (const std::int64_t k : {32, 2880, 7168}) {
        for (const std::int64_t groups : {1, 32, 1000}) {
          const GroupedGemmArguments x = grouped_gemm_detail::validated(
              imagined_grouped_gemm(groups, 3 * groups, 96, k, a, b, Format::bf16));
          const GroupedPlan plan = grouped_gemm_detail::plan_grouped(x, chip);
          SCOPED_TRACE(plan.str());
          EXPECT_EQ(plan.steps.at(0).path(), gemm_detail::GemmPath::fp4_few_rows);
          expect_launchable(plan.steps.at(0), x, chip);
        }
      }
    }
  }
  for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
    const cuda::Chip& of_sm120 = cuda::chip_named("RTX 5090");
    const GroupedGemmArguments x = grouped_gemm_detail::validated(
        imagined_grouped_gemm(32, 4, 5760, 2880, a, Recipe::mxfp4, Format::bf16));
    const GroupedPlan plan = grouped_gemm_detail::plan_grouped(x, of_sm120);
    EXPECT_EQ(plan.path(), gemm_detail::GemmPath::fp4_few_rows) << plan.str();
    expect_launchable(plan.steps.at(0), x, of_sm120);
  }
  const auto expect_other = [&](const char* what, const GroupedCase& of, const auto& change,
                                const char* name = "H200") {
    Random random(1);
    LaunchedProblem problem(random, of);
    change(problem.x());
    EXPECT_THAT(plan_of(problem, cuda::chip_named(name)).str(),
                ::testing::Not(HasSubstr("few_rows")))
        << what;
  };
  const auto same = [](auto&) {};
  const auto with = [&](const auto& change) {
    GroupedCase of = good;
    change(of);
    return of;
  };
  expect_other("more rows", with([](auto& of) { of.rows = {9, 9}; }), same);
  expect_other("K is no multiple", with([](auto& of) { of.b = Recipe::nvfp4, of.k = 48; }), same);
  expect_other("rows that move", with([](auto& of) { of.scattered = true; }), same);
  expect_other("scales with rows inner", with([](auto& of) { of.layout = ScaleLayout::mn_major; }),
               same);
  expect_other("A in MXFP8", with([](auto& of) { of.a = Recipe::mxfp8_e4m3; }), same);
  expect_other("B in MXFP8", with([](auto& of) { of.b = Recipe::mxfp8_e4m3; }), same);
  expect_other("more rows are expected", good, [](auto& x) { x.expected_rows = 9; });
  expect_other("rows of the same bits", good, [](auto& x) { x.batch_invariant = true; });
  expect_other("another chip", good, same, "B200");
  const GroupedGemmArguments long_rows =
      imagined_grouped_gemm(2, 4, 16, 1 << 18, Recipe::bf16, Recipe::mxfp4, Format::bf16);
  EXPECT_THAT(cuda::describe_grouped_gemm(long_rows, chip), HasSubstr("gemm_tiles_mxfp4_64x128:"));
}

/// By the kernels of dense products, or by plain ones, which have what those lack.
TEST(GroupedPlan, BlockScaledOnSm120) {
  const cuda::Chip& chip = cuda::chip_named("RTX 5090");
  const auto text = [&](std::int64_t groups, std::int64_t rows, Recipe a, Recipe b) {
    return cuda::describe_grouped_gemm(
        imagined_grouped_gemm(groups, rows, 4096, 2048, a, b, Format::bf16), chip);
  };
  EXPECT_EQ(text(8, 4096, Recipe::nvfp4, Recipe::nvfp4),
            "gemm_block_scaled_nvfp4_nvfp4_128x128: at most 1280 tiles of 128 x 128, 16 rows of "
            "them in a band, 16 stages of 128 of K; A's scales by words, B's by words; 4 stages, "
            "stored as boxes but for last rows; 170 x 288 threads, 91136 bytes shared; 55.0 us by "
            "public figures, never measured\n"
            "workspace 0 bytes\n"
            "kernels for compute capability 12.0: compiled and emulated, never run on silicon\n");
  using R = Recipe;
  for (const auto& [a, b] : {std::pair{R::mxfp4, R::mxfp4},
                             {R::mxfp8_e4m3, R::mxfp8_e4m3},
                             {R::mxfp8_e4m3, R::mxfp6_e3m2},
                             {R::fp8_row, R::fp8_row}}) {
    EXPECT_THAT(text(65535, 65536, a, b), HasSubstr("_32x128: at most"));
  }
  GroupedCase of = {.rows = {40, 0, 9}, .k = 256, .gathered = true};
  EXPECT_THAT(plan_text(of, chip),
              ::testing::AllOf(HasSubstr("those of groups gathered to the workspace"),
                               HasSubstr("gemm_block_scaled_fp8_fp8_32x128:")));
  const auto expect_plain = [&](const GroupedCase& other) {
    EXPECT_THAT(plan_text(other, chip), HasSubstr("grouped_gemm_plain_"));
  };
  of.a = R::fp8_32x128;  // rows share scales
  expect_plain(of);
  of.gathered = false;
  EXPECT_THAT(plan_text(of, chip), HasSubstr("gemm_block_scaled_fp8_fp8_32x128:"));
  of.b = R::fp8_64x128;
  expect_plain(of);
  of.a = of.b = R::nvfp4;
  of.k = 96;  // scales that lie by no four
  expect_plain(of);
  of.layout = ScaleLayout::mn_major;
  of.k = 256;
  expect_plain(of);
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
