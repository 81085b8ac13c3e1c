// Groups of many rows with weights in FP4, by tiles, in the emulator: each kernel, scale and
// edge against the float64 reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/fp4_plan.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using test::GroupedCase;
using test::InputFamily;
using test::LaunchedProblem;
using test::Random;

/// A problem that takes tiles of so many rows, and its elements' bound.
void check(const GroupedCase& of, int tokens, std::uint64_t order = 5) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  LaunchedProblem problem(random, of);
  problem.x().expected_rows = tokens / 2;
  const GroupedGemmArguments x = problem.validated();
  const cuda::Chip chip = test::chip_of(3);
  const auto plan = grouped_gemm_detail::plan_grouped(x, chip);
  ASSERT_EQ(plan.path(), is_plain(of.a) ? gemm_detail::GemmPath::sm90_fp4_tiles
                                        : gemm_detail::GemmPath::sm90_fp8)
      << plan.str();
  ASSERT_EQ(plan.steps.back().rows, tokens) << plan.str();
  ASSERT_TRUE(test::emulate(x, chip, problem.buffers(), emulator::random_order(order)));
  problem.expect_others_untouched();
  const GemmCheck result = grouped_gemm_detail::check_elements(x, 1 << 20, plan.path());
  EXPECT_TRUE(result.passed()) << plan.str() << result.largest_error << " of "
                               << result.proven_error << ", " << result.of_usual << " of usual";
}

TEST(EmulatedFp4GroupTiles, ByEachKernel) {
  std::uint64_t order = 1;
  for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      for (const int tokens : {64, 128, 256}) {
        check({.a = a, .b = b, .rows = {21, 0, 70, 5}, .n = 136, .k = 96, .alpha = true}, tokens,
              order++);
      }
    }
  }
}

/// FP8's tensor cores multiply rows whose scales hold for all of K.
TEST(EmulatedFp4GroupTiles, ByEachKernelInFp8) {
  for (const int tokens : {64, 128, 256}) {
    check({.a = tokens == 128 ? Recipe::fp8_tensor : Recipe::fp8_row,
           .b = Recipe::mxfp4,
           .rows = {21, 0, 70, 5},
           .n = 136,
           .k = 288,
           .dtype = tokens == 256 ? Format::f32 : Format::bf16,
           .alpha = true},
          tokens, static_cast<std::uint64_t>(tokens));
  }
}

TEST(EmulatedFp4GroupTiles, WithEachEdge) {
  using Pair = std::pair<Recipe, Recipe>;
  for (const auto& [a, b] : {Pair{Recipe::bf16, Recipe::nvfp4},
                             {Recipe::bf16, Recipe::mxfp4},
                             {Recipe::fp8_row, Recipe::mxfp4}}) {
    GroupedCase of = {.a = a, .b = b, .rows = {1, 0, 65, 16}, .n = 56, .k = 96};
    check(of, 64);
    of.dtype = Format::f16;
    of.bias = of.masked = true;
    check(of, 64);
    of.n = 50;
    of.layout = ScaleLayout::swizzled_128x4;
    of.dtype = Format::f32;
    check(of, 64);
    of.masked = false;
    of.gap = 2;
    of.gathered = true;
    check(of, 128);
    of.rows.resize(70);
    of.rows[69] = 8;
    of.gap = 0;
    check(of, 64);
  }
}

/// A row's bits do not depend on the tile that it is in, nor on who is beside it.
TEST(EmulatedFp4GroupTiles, RowsDoNotDependOnTheOthers) {
  using Pair = std::pair<Recipe, Recipe>;
  for (const auto& [a, b] : {Pair{Recipe::bf16, Recipe::nvfp4}, {Recipe::fp8_row, Recipe::mxfp4}}) {
    const auto bytes_with = [&](std::int64_t expected, bool batch_invariant) {
      Random random(7);
      LaunchedProblem problem(random, {.a = a, .b = b, .rows = {70, 29}, .k = 256});
      problem.x().expected_rows = expected;
      problem.x().batch_invariant = batch_invariant;
      EXPECT_TRUE(test::emulate(problem.validated(), test::chip_of(2), problem.buffers(),
                                emulator::random_order(3)));
      return problem.d().bytes();
    };
    const std::vector<std::uint8_t> first = bytes_with(32, false);
    EXPECT_EQ(bytes_with(128, false), first);
    EXPECT_EQ(bytes_with(32, true), first);
  }
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedFp4GroupTiles, MutantsAreRejected) {
  using Change = void (*)(Fp4TilesParams&);
  const std::pair<const char*, Change> mutants[] = {
      {"none", [](auto&) {}},
      {"a stage of K is left out", [](auto& p) { --p.k_stages; }},
      {"groups have the weights of the first", [](auto& p) { p.b_batched = false; }},
      {"groups have the scales of the first", [](auto& p) { p.scales.batch_stride = 0; }},
      {"groups have the tensor scale of the first", [](auto& p) { p.tensor_scale.stride = 0; }},
      {"groups have the bias of the first", [](auto& p) { p.epilogue.bias.batch_stride = 0; }},
      {"groups have the alpha of the first", [](auto& p) { p.epilogue.alpha_factor_stride = 0; }},
  };
  const cuda::Chip chip = test::chip_of(3);
  for (const auto& [name, change] : mutants) {
    for (const Format dtype : {Format::bf16, Format::f32}) {
      SCOPED_TRACE(name);
      Random random(3);
      LaunchedProblem problem(random, {.a = Recipe::bf16,
                                       .b = Recipe::nvfp4,
                                       .rows = {2, 33, 40},
                                       .n = 136,
                                       .k = 96,
                                       .dtype = dtype,
                                       .family = InputFamily::normal,
                                       .alpha = true,
                                       .bias = true});
      const GroupedGemmArguments x = problem.validated();
      auto step = grouped_gemm_detail::fp4_tiles_step(x, chip);
      ASSERT_TRUE(step);
      auto& p = std::get<Fp4TilesParams>(step->params);
      EXPECT_EQ(p.is_direct, dtype == Format::bf16);
      change(p);
      const emulator::Report report =
          test::report_of(*step, chip.architecture, problem.buffers(), emulator::in_order());
      EXPECT_TRUE(report.ok()) << report.text();
      const GemmCheck result = grouped_gemm_detail::check_elements(x, 1 << 20, step->path());
      EXPECT_EQ(result.passed(), std::string(name) == "none") << result.of_usual;
    }
  }
}

}  // namespace
}  // namespace blockscale
