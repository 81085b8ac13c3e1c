// The kernels of groups of few rows with weights in FP4, in the emulator: every pair, edges of
// rows, N and K, divisions, scales of all codes, and launches that are wrong in one place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/fp4_plan.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/grouped_gemm/test/launched_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4Division;
using grouped_gemm_detail::GroupedStep;
using test::GroupedCase;
using test::InputFamily;
using test::LaunchedProblem;
using test::Random;

constexpr Recipe kWeights[] = {Recipe::nvfp4, Recipe::mxfp4};

using Change = std::function<void(Fp4FewRowsParams&)>;

/// Runs a problem by the kernel, of which `change` may spoil the launch, and checks all elements.
GemmCheck run(LaunchedProblem& problem, std::optional<Fp4Division> division = std::nullopt,
              std::uint64_t seed = 5, const Change& change = nullptr,
              const cuda::Chip& chip = test::chip_of(3)) {
  problem.x().expected_rows = 1;  // whatever groups have
  const GroupedGemmArguments x = problem.validated();
  std::optional<GroupedStep> step = grouped_gemm_detail::fp4_few_rows_step(x, chip, division);
  if (!step) {
    ADD_FAILURE() << "no kernel of few rows";
    return {};
  }
  if (change) change(std::get<Fp4FewRowsParams>(step->params));
  const emulator::Report report =
      test::report_of(*step, chip.architecture, problem.buffers(), emulator::random_order(seed));
  EXPECT_TRUE(report.ok()) << step->str() << report.text();
  problem.expect_others_untouched();
  return grouped_gemm_detail::check_elements(x, 1 << 20, step->path());
}

void expect_passed(const GemmCheck& result) {
  EXPECT_TRUE(result.passed()) << result.largest_error << " of " << result.proven_error << ", "
                               << result.of_usual << " of usual";
}

void check(const GroupedCase& of, std::optional<Fp4Division> division = std::nullopt,
           std::uint64_t seed = 5) {
  SCOPED_TRACE(text_of(of));
  Random random(3);
  LaunchedProblem problem(random, of);
  expect_passed(run(problem, division, seed));
}

template <class Body>
void for_each_pair(const Body& body) {
  for (const Recipe b : kWeights) {
    for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_row, Recipe::fp8_1x128}) {
      body(a, b);
    }
  }
}

TEST(EmulatedFp4Groups, EveryPairAndEdge) {
  for_each_pair([](Recipe a, Recipe b) {
    check({.a = a, .b = b, .rows = {1, 0, 9, 2, 0, 8}, .n = 40, .k = 864, .alpha = true});
    check({.a = a, .b = b, .rows = {3, 0, 4}, .n = 17, .k = 32, .gap = 2, .bias = true});
    check({.a = a, .b = b, .rows = {5, 0, 7, 6}, .n = 16, .k = 96, .masked = true, .bias = true});
    check({.a = a,
           .b = b,
           .rows = {1, 0, 9, 3},
           .n = 70,
           .k = 160,
           .dtype = Format::f32,
           .alpha = true,
           .gathered = true});
  });
}

TEST(EmulatedFp4Groups, EveryNumberOfRowsLayoutAndType) {
  for (const Recipe b : kWeights) {
    for (const ScaleLayout layout : {ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      for (const Format dtype : {Format::f16, Format::f32}) {
        check({.a = dtype == Format::f16 ? Recipe::f16 : Recipe::bf16,
               .b = b,
               .rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17},
               .n = 72,
               .k = 224,
               .dtype = dtype,
               .layout = layout,
               .family = dtype == Format::f16 ? InputFamily::normal : InputFamily::adversarial});
      }
    }
  }
}

TEST(EmulatedFp4Groups, MoreGroupsThanAWarpLooksAt) {
  std::vector<std::int32_t> many(70);
  many[3] = many[40] = 1;
  many[69] = 10;
  for (const Recipe b : kWeights) check({.a = Recipe::bf16, .b = b, .rows = many, .k = 64});
  Random random(3);
  LaunchedProblem empty(random, {.a = Recipe::bf16, .b = Recipe::mxfp4, .rows = {0, 0}, .k = 64});
  EXPECT_EQ(run(empty).elements, 0);
}

/// Warps and blocks that divide K, or tiles, or both, evenly or not; blocks that have several tiles
/// of the same rows, and of others.
TEST(EmulatedFp4Groups, Divisions) {
  std::uint64_t seed = 1;
  for (const Fp4Division& division : {Fp4Division{1, 1, 1}, {1, 3, 2}, {1, 1, 7}, {2, 2, 1}}) {
    SCOPED_TRACE(std::to_string(division.blocks_k) + " blocks, " +
                 std::to_string(division.warps_k) + " warps, " +
                 std::to_string(division.block_tiles) + " tiles");
    for (const Recipe a : {Recipe::bf16, Recipe::fp8_1x128}) {
      const Recipe b = seed % 2 == 0 ? Recipe::nvfp4 : Recipe::mxfp4;
      check({.a = a, .b = b, .rows = {2, 9, 0, 1}, .n = 56, .k = 1184, .gathered = true}, division,
            seed++);
    }
  }
}

/// The kernels that SM120 has, with what it has of shared memory and instructions.
TEST(EmulatedFp4Groups, OnSm120) {
  for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
    for (const Recipe b : kWeights) {
      const GroupedCase of = {.a = a,
                              .b = b,
                              .rows = {1, 0, 9, 2},
                              .n = 40,
                              .k = 864,
                              .layout = ScaleLayout::swizzled_128x4,
                              .alpha = true,
                              .bias = true,
                              .gathered = true};
      SCOPED_TRACE(text_of(of));
      Random random(3);
      LaunchedProblem problem(random, of);
      expect_passed(run(problem, std::nullopt, 1, nullptr, test::sm120_of(3)));
    }
  }
}

/// Each scale that there is, in a row of B of its own, but for those whose sums f32 does not hold.
TEST(EmulatedFp4Groups, EveryScale) {
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_1x128}) {
    for (const Recipe b : kWeights) {
      SCOPED_TRACE(recipe_traits(b).name);
      Random random(7);
      LaunchedProblem problem(random, {.a = a,
                                       .b = b,
                                       .rows = {3, 0, 1},
                                       .n = 256,
                                       .k = 96,
                                       .dtype = Format::f32,
                                       .family = InputFamily::normal,
                                       .behind = 0});
      const bool is_mx = b == Recipe::mxfp4;
      const auto code_of = [&](std::int64_t row) {
        return static_cast<std::uint32_t>(!is_mx ? row % 128 : row < 241 || row == 255 ? row : 0);
      };
      for (std::int64_t row = 0; row < 256; ++row) {
        for (std::int64_t block = 0; block < 96 / recipe_traits(b).block_k; ++block) {
          problem.b().set_scale(row, block, code_of(row));
        }
      }
      expect_passed(run(problem));
      const auto* const d = static_cast<const float*>(problem.x().d.data);
      for (std::int64_t row = 0; row < 256; ++row) {
        EXPECT_EQ(std::isnan(d[row]), code_of(row) == (is_mx ? 255 : 127)) << row;
      }
    }
  }
}

/// Scales far apart within a step of a group's weights, which have no factors.
TEST(EmulatedFp4Groups, ScalesFarApart) {
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::fp8_row}) {
    for (const std::uint32_t other : {0u, 104u, 129u, 150u}) {
      Random random(7);
      LaunchedProblem problem(
          random,
          {.a = a, .b = Recipe::mxfp4, .rows = {4, 9}, .k = 416, .family = InputFamily::normal});
      for (std::int64_t row = 0; row < 104; ++row) {
        for (std::int64_t block = row % 3; block < 13; block += 3) {
          problem.b().set_scale(row, block, other);
        }
      }
      SCOPED_TRACE(other);
      expect_passed(run(problem));
    }
  }
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedFp4Groups, MutantsAreRejected) {
  const std::pair<const char*, Change> mutants[] = {
      {"a block of K is left out", [](auto& p) { --p.pieces; }},
      {"groups have the weights of the first", [](auto& p) { p.b_batch_stride = 0; }},
      {"groups have the scales of the first", [](auto& p) { p.scales.batch_stride = 0; }},
      {"groups have the tensor scale of the first", [](auto& p) { p.tensor_scale.stride = 0; }},
      {"groups have the bias of the first", [](auto& p) { p.epilogue.bias.batch_stride = 0; }},
      {"groups have the alpha of the first", [](auto& p) { p.epilogue.alpha_factor_stride = 0; }},
      {"rows are not gathered", [](auto& p) { p.source.index = nullptr; }},
      {"rows that are none are rows", [](auto& p) { p.source.rows = 0; }},
  };
  for (const auto& [name, change] : mutants) {
    Random random(3);
    LaunchedProblem problem(random, {.a = Recipe::bf16,
                                     .b = Recipe::nvfp4,
                                     .rows = {2, 17, 4},
                                     .n = 136,
                                     .k = 96,
                                     .family = InputFamily::normal,
                                     .alpha = true,
                                     .bias = true,
                                     .gathered = true});
    SCOPED_TRACE(name);
    EXPECT_FALSE(run(problem, Fp4Division{1, 1, 1}, 5, change).passed());
  }
}

}  // namespace
}  // namespace blockscale
