// Groups of rows by the kernels of products that take scales, of sm_120f, in the emulator: every
// pair, kind of groups and epilogue against the float64 reference, under random schedules. Rows
// that no group has are NaN, and lie in tiles beside those that are stored.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/test/block_scaled/problem.h"
#include "ops/gemm/test/product_emulation.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using grouped_gemm_detail::GroupedPlan;
using test::for_each_block_scaled_pair;
using test::GroupedCase;
using test::InputFamily;
using test::kAtoms;
using test::LaunchedProblem;
using test::Random;

constexpr auto kPath = gemm_detail::GemmPath::sm120_block_scaled;

using Change = std::function<void(BlockScaledParams&)>;

/// Gives rows of A that no group has scales that are NaN.
void spoil_other_rows(LaunchedProblem& problem) {
  const GroupedGemmArguments x = problem.validated();
  if (x.offsets == nullptr || x.index != nullptr) return;
  std::vector<bool> has_group(static_cast<std::size_t>(x.rows));
  for (std::int64_t g = 0; g < x.b.batch; ++g) {
    const GroupRows rows = grouped_gemm_detail::rows_of_group(x, g);
    std::fill(has_group.begin() + rows.begin, has_group.begin() + rows.end, true);
  }
  const std::int64_t blocks = scale_grid(x.a.recipe, x.rows, x.a.k).columns;
  const std::uint32_t nan = test::has_f32_scales(x.a.recipe) ? 0x7FC00000 : 0xFF;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    if (has_group[static_cast<std::size_t>(row)]) continue;
    for (std::int64_t block = 0; block < blocks; ++block) problem.a().set_scale(row, block, nan);
  }
}

/// Runs a problem by tiles of so many rows, whose launch `change` may spoil, and checks all
/// elements that have a bound.
GemmCheck run(LaunchedProblem& problem, int rows, std::uint64_t seed,
              const Change& change = nullptr) {
  problem.x().expected_rows = rows;
  spoil_other_rows(problem);
  const GroupedGemmArguments x = problem.validated();
  const cuda::Chip chip = test::sm120_of(rows == 32 ? 2 : 1);  // more would have smaller tiles
  std::vector<std::uint8_t> workspace(
      static_cast<std::size_t>(grouped_gemm_detail::plan_grouped(x, chip).workspace_bytes));
  GroupedPlan plan = grouped_gemm_detail::plan_grouped(x, chip, workspace.data());
  EXPECT_EQ(plan.path(), kPath) << plan.str();
  EXPECT_EQ(plan.steps.back().rows, rows) << plan.str();
  if (change) change(std::get<BlockScaledParams>(plan.steps.back().params));
  std::vector<emulator::Buffer> buffers = problem.buffers();
  if (!workspace.empty()) buffers.push_back(emulator::in_out("workspace", workspace));
  EXPECT_TRUE(test::emulate(plan, buffers, emulator::random_order(seed))) << plan.str();
  if (x.destinations != nullptr) return {};
  problem.expect_others_untouched();
  return grouped_gemm_detail::check_elements(x, 1 << 20, kPath);
}

void check(const GroupedCase& of, int rows, std::uint64_t seed = 5) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  LaunchedProblem problem(random, of);
  const GemmCheck result = run(problem, rows, seed);
  EXPECT_TRUE(result.passed()) << result.largest_error << " of " << result.proven_error << ", "
                               << result.of_usual << " of usual";
}

/// Tiles of 32 rows begin anywhere in an atom of scales; K ends within a stage where a pair takes
/// that. Those of 128 rows have whole stages, and atoms where groups are matrices.
TEST(EmulatedBlockScaledGroups, EveryPairAndTile) {
  std::uint64_t seed = 1;
  for_each_block_scaled_pair([&](Recipe a, Recipe b, std::int64_t ragged_k) {
    GroupedCase of = {
        .a = a, .b = b, .rows = {1, 0, 33, 5}, .n = 136, .k = ragged_k, .layout = kAtoms};
    of.alpha = of.bias = true;
    check(of, 32, seed++);
    of = {.a = a, .b = b, .rows = {129, 0, 1}, .n = 40, .k = 256, .dtype = Format::f32};
    of.masked = seed % 4 == 0;  // of every other pair
    if (of.masked) of.layout = kAtoms;
    of.gap = of.masked ? 0 : 2;
    check(of, 128, seed++);
  });
}

TEST(EmulatedBlockScaledGroups, GroupsOfEveryKind) {
  const Recipe a = Recipe::nvfp4, b = Recipe::nvfp4;
  check({.a = a, .b = b, .rows = {7, 0, 40}, .n = 50, .k = 64, .masked = true, .bias = true}, 32);
  check({.a = a, .b = b, .rows = {7, 0, 40}, .n = 72, .k = 256, .gathered = true}, 32);
  check({.a = Recipe::fp8_row, .b = Recipe::fp8_row, .rows = {30, 7}, .n = 72, .k = 96}, 32);
  check({.rows = {30, 7}, .n = 72, .k = 256, .layout = ScaleLayout::mn_major, .gathered = true},
        32);
  check({.a = Recipe::mxfp8_e4m3,
         .b = Recipe::mxfp4,
         .rows = {30, 7},
         .n = 72,
         .k = 128,
         .layout = kAtoms,
         .gathered = true},
        32);
  std::vector<std::int32_t> many(70);  // more than a warp looks at
  many[3] = many[40] = 1;
  many[69] = 34;
  check({.a = a, .b = b, .rows = many, .n = 24, .k = 64}, 32);
  Random random(3);
  LaunchedProblem empty(random, {.a = a, .b = b, .rows = {0, 0}, .k = 64});
  EXPECT_EQ(run(empty, 32, 5).elements, 0);
}

TEST(EmulatedBlockScaledGroups, RowsThatMoveOrAreAdded) {
  const GroupedCase of = {.a = Recipe::nvfp4,
                          .b = Recipe::nvfp4,
                          .rows = {3, 0, 37, 20},
                          .k = 128,
                          .dtype = Format::f32};
  for (const int rows : {32, 128}) {
    test::expect_scattered(of, [&](LaunchedProblem& problem) { (void)run(problem, rows, 2); });
  }
}

/// Offsets that are none are cut: nothing outside of a buffer is touched.
TEST(EmulatedBlockScaledGroups, OffsetsThatAreNone) {
  for (std::size_t i = 0; i + 1 < test::kNoOffsets.size(); ++i) {
    Random random(4);
    LaunchedProblem problem(random, {.a = Recipe::nvfp4, .b = Recipe::nvfp4, .k = 64});
    problem.set_offsets(test::kNoOffsets[i]);
    (void)run(problem, 32, 6);
  }
}

/// A row's bits do not depend on the tile that it is in, and are those of its group alone.
TEST(EmulatedBlockScaledGroups, RowsAreThoseOfTheirGroupAlone) {
  for (const auto& [a, b] : {std::pair{Recipe::nvfp4, Recipe::nvfp4},
                             {Recipe::mxfp8_e4m3, Recipe::mxfp4},
                             {Recipe::fp8_1x128, Recipe::fp8_128x128}}) {
    SCOPED_TRACE(recipe_traits(b).name);
    const GroupedCase of = {
        .a = a, .b = b, .rows = {21, 29}, .n = 40, .k = 256, .dtype = Format::f32, .behind = 0};
    std::vector<std::uint8_t> bytes[2];
    for (const int rows : {32, 128}) {
      Random random(7);
      LaunchedProblem problem(random, of);
      run(problem, rows, 3);
      bytes[rows / 128] = problem.d().bytes();
    }
    EXPECT_EQ(bytes[0], bytes[1]);
    Random random(7);
    LaunchedProblem problem(random, of);
    GroupedGemmArguments x = problem.validated();
    GemmArguments first = grouped_gemm_detail::product_of_rows(x);
    first.a.rows = first.d.rows = of.rows[0];
    first.b.batch = 1;
    auto plan = gemm_detail::plan_product(gemm_detail::validated(first, {}), test::sm120_of(2));
    ASSERT_EQ(plan.path(), kPath);
    ASSERT_TRUE(test::emulate(plan, problem.buffers(), emulator::random_order(3)));
    const auto end = test::TestMatrix::kGuard + of.rows[0] * of.n * 4;
    EXPECT_TRUE(std::equal(bytes[0].begin(), bytes[0].begin() + end, problem.d().bytes().begin()));
  }
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedBlockScaledGroups, MutantsAreRejected) {
  const std::pair<const char*, Change> mutants[] = {
      {"none", nullptr},
      {"a stage of K is left out", [](auto& p) { --p.k_stages, --p.whole_stages; }},
      {"groups have the weights of the first", [](auto& p) { p.b_batched = false; }},
      {"groups have the scales of the first", [](auto& p) { p.b_scales.at.batch_stride = 0; }},
      {"groups have the tensor scale of the first", [](auto& p) { p.b_tensor_scale.stride = 0; }},
      {"groups have the bias of the first", [](auto& p) { p.epilogue.bias.batch_stride = 0; }},
      {"groups have the alpha of the first", [](auto& p) { p.epilogue.alpha_factor_stride = 0; }},
      {"rows begin where atoms of scales do", [](auto& p) { p.a_scales.atoms = true; }},
  };
  for (const auto& [name, change] : mutants) {
    SCOPED_TRACE(name);
    Random random(3);
    LaunchedProblem problem(random, {.a = Recipe::nvfp4,
                                     .b = Recipe::nvfp4,
                                     .rows = {2, 110, 40},
                                     .n = 40,
                                     .k = 256,
                                     .layout = kAtoms,
                                     .family = InputFamily::normal,
                                     .alpha = true,
                                     .bias = true});
    EXPECT_EQ(run(problem, 128, 5, change).passed(), change == nullptr);
  }
}

}  // namespace
}  // namespace blockscale
