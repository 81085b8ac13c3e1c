// The kernels of few rows with weights in FP4 and MXFP8, in the emulator: every pair, layout,
// scale, edge and epilogue against the float64 reference, under random schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4Division;
using gemm_detail::Fp4GemmPlan;
using test::byte_of;
using test::for_each_few_rows_pair;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;
using test::set_a;
using test::set_a_scales;

constexpr Recipe kTokens[] = {Recipe::bf16, Recipe::f16};
constexpr ScaleLayout kLayouts[] = {ScaleLayout::row_major, ScaleLayout::swizzled_128x4,
                                    ScaleLayout::swizzled_8x4};

using Change = std::function<void(Fp4GemmParams&)>;

/// Runs a problem, whose launch `change` may spoil. False if the emulator has something to report.
bool run(PlainOperands& operands, const emulator::Options& options,
         std::optional<Fp4Division> division = std::nullopt, const Change& change = nullptr,
         const cuda::Chip& chip = test::chip_of(3)) {
  const GemmArguments x = gemm_detail::validated(operands.arguments(), {});
  const std::optional<Fp4GemmPlan> plan = gemm_detail::plan_fp4_gemm(x, chip, division);
  if (!plan) {
    ADD_FAILURE() << "no kernel of few rows";
    return false;
  }
  Fp4GemmParams params = plan->params;
  if (change) change(params);
  return test::launch_emulated(*plan, params, operands, options);
}

gemm_detail::ErrorLimit limit_of(const PlainProblem& p) {
  return test::limit_of(p, gemm_detail::GemmPath::fp4_few_rows);
}

void check(const PlainProblem& p, const emulator::Options& options = emulator::in_order(),
           std::optional<Fp4Division> division = std::nullopt) {
  test::check_emulated(p, gemm_detail::GemmPath::fp4_few_rows,
                       [&](PlainOperands& operands) { return run(operands, options, division); });
}

TEST(EmulatedFp4Gemm, EveryPairLayoutAndEdge) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    for (const ScaleLayout layout : kLayouts) {
      PlainProblem p = problem_of(a, b, 1, 40, 96);
      p.b_layout = layout;
      check(p);
      p = problem_of(a, b, 5, 17, 160);
      p.b_layout = layout;
      check(p, emulator::random_order(1));
      p = problem_of(a, b, 16, 130, 1184);
      p.b_layout = layout;
      check(p, emulator::random_order(2));
    }
  });
}

TEST(EmulatedFp4Gemm, EveryNumberOfRows) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    for (std::int64_t m = 1; m <= 16; ++m) check(problem_of(a, b, m, 33, 224));
  });
}

TEST(EmulatedFp4Gemm, EveryColumnsAndK) {
  for (const std::int64_t n : {1, 15, 16, 49, 512}) {
    for (const std::int64_t k : {32, 128, 512, 544, 1536, 2080}) {
      if (n == 512 && k > 544) continue;  // seconds, under sanitizers
      check(problem_of(Recipe::bf16, Recipe::nvfp4, 3, n, k));
      check(problem_of(Recipe::f16, Recipe::mxfp4, 2, n, k));
      check(problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, 2, n, k));
    }
  }
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedFp4Gemm, ExactSums) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    for (const std::int64_t m : {1, 11}) {
      PlainProblem p = problem_of(a, b, m, 45, 1056);
      p.exact = true;
      check(p);
    }
  });
}

/// Warps and blocks that divide K, or tiles, or both, evenly or not.
TEST(EmulatedFp4Gemm, Divisions) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    if (a == Recipe::fp8_row || b == Recipe::mxfp8_e5m2) return;  // as fp8_1x128, and e4m3
    std::uint64_t seed = 1;
    for (const Fp4Division& division : {Fp4Division{1, 1, 1},
                                        {1, 16, 1},
                                        {1, 3, 2},
                                        {1, 1, 7},
                                        {2, 1, 1},
                                        {2, 2, 3},
                                        {4, 2, 1},
                                        {8, 1, 2}}) {
      SCOPED_TRACE(std::to_string(division.blocks_k) + " blocks, " +
                   std::to_string(division.warps_k) + " warps, " +
                   std::to_string(division.block_tiles) + " tiles");
      const std::int64_t m = seed % 2 == 0 ? 2 : 13;
      check(problem_of(a, b, m, 136, 1696), emulator::random_order(seed++), division);
    }
  });
}

/// The kernels that SM120 has, with what it has of shared memory and instructions; A in shared
/// memory, and in parts, as many as a smaller one holds, or of two chunks for two warps.
TEST(EmulatedFp4Gemm, OnSm120) {
  cuda::Chip chip = test::sm120_of(3);
  std::optional<Fp4Division> division;
  const auto check_on_sm120 = [&](const PlainProblem& p, std::uint64_t seed) {
    test::check_emulated(p, gemm_detail::GemmPath::fp4_few_rows, [&](PlainOperands& operands) {
      return run(operands, emulator::random_order(seed), division, nullptr, chip);
    });
  };
  test::for_each_fp4_pair([&](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 3, 40, 96);
    p.exact = true;
    check_on_sm120(p, 1);
    p = problem_of(a, b, 13, 50, 1184);
    p.b_layout = ScaleLayout::swizzled_128x4;
    p.bias = true;
    check_on_sm120(p, 2);
    chip.shared_bytes = 24 << 10;
    check_on_sm120(p, 3);
    chip = test::sm120_of(3);
    division = Fp4Division{.warps_k = 2, .block_tiles = 2, .part_chunks = 2};
    check_on_sm120(p, 4);
    division.reset();
  });
}

TEST(EmulatedFp4Gemm, EveryScale) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    test::check_every_scale(
        a, b, [](PlainOperands& operands) { return run(operands, emulator::in_order()); });
  });
}

/// Scales far apart within a step, which have no factors in f16, and in bf16 if they are large,
/// with codes of eight bits at both ends.
TEST(EmulatedFp4Gemm, ScalesFarApart) {
  const auto check_with = [](Recipe a, Recipe b, std::initializer_list<std::uint32_t> others) {
    for (const std::uint32_t other : others) {
      PlainProblem p = problem_of(a, b, 4, 20, 416);
      p.family = InputFamily::normal;
      PlainOperands operands(p);
      for (std::int64_t row = 0; row < p.n; ++row) {
        for (std::int64_t block = row % 3; block < p.k / 32; block += 3) {
          operands.b().set_scale(row, block, other);
        }
      }
      SCOPED_TRACE(p.str() + ", " + std::to_string(other));
      ASSERT_TRUE(run(operands, emulator::random_order(4)));
      EXPECT_LE(test::compare(operands.arguments(), limit_of(p)).largest_share, 1);
    }
  };
  for (const Recipe a : kTokens) {
    check_with(a, Recipe::mxfp4, {0, 90, 103, 104, 128, 129, 150});
    check_with(a, Recipe::mxfp8_e4m3, {8, 16, 17, 102, 103, 124, 125, 239, 240});
    check_with(a, Recipe::mxfp8_e5m2, {16, 17, 100, 101, 109, 110, 235});
  }
}

TEST(EmulatedFp4Gemm, Epilogues) {
  test::for_each_epilogue(40, [](PlainProblem p) {
    p.m = 4;
    p.k = 224;
    check(p);
    p.a = Recipe::f16;
    p.b = Recipe::mxfp4;
    p.m = 10;
    check(p);
    p.a = Recipe::fp8_row;
    p.b = Recipe::nvfp4;
    check(p);
    p.a = Recipe::bf16;
    p.b = Recipe::mxfp8_e4m3;
    check(p);
  });
}

TEST(EmulatedFp4Gemm, RowsFarApart) {
  for_each_few_rows_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 9, 50, 320);
    p.extra_bytes = 48;
    p.batch = 3;
    check(p);
  });
}

/// Tensor scales and alphas that f32 holds, but not their product with a sum in any order.
TEST(EmulatedFp4Gemm, LargeTensorScales) {
  for (const float scale : {0x1p100f, 0x1p-100f}) {
    for (const TensorScaleSense sense : {TensorScaleSense::multiplier, TensorScaleSense::divisor}) {
      PlainProblem p = problem_of(Recipe::bf16, Recipe::nvfp4, 3, 20, 160);
      p.family = InputFamily::normal;
      p.sense = sense;
      p.alpha = (scale > 1) == (sense == TensorScaleSense::multiplier) ? 0x1p-99f : 0x1p99f;
      PlainOperands operands(p);
      *const_cast<float*>(operands.arguments().b.tensor_scale) = scale;
      ASSERT_TRUE(run(operands, emulator::in_order()));
      EXPECT_LE(test::compare(operands.arguments(), limit_of(p)).largest_share, 1);
    }
  }
}

TEST(EmulatedFp4Gemm, InfinitiesAndNanOfAStayInTheirRows) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for_each_few_rows_pair([&](Recipe a, Recipe b) {
    for (const std::uint32_t scale : {120u, 140u, 240u}) {  // of MX: with a factor and without
      PlainProblem p = problem_of(a, b, 5, 18, 256);
      p.exact = true;
      PlainOperands operands(p);
      const bool has_infinity = format_traits(recipe_traits(a).element).has_infinity;
      const std::uint8_t ones = byte_of(b, 1);
      std::fill_n(operands.b_values().at(), operands.b_values().bytes(), ones);
      const bool is_fp4 = recipe_traits(b).element == Format::e2m1;
      operands.b_values().at()[is_fp4 ? 50 : 100] = is_fp4 ? ones & 0xF0 : 0;  // row 0, k = 100
      for (std::int64_t row = 0; row < p.n && b != Recipe::nvfp4; ++row) {
        operands.b().set_scale(row, 3, scale);
      }
      set_a(operands, 1, 100, kInf);
      set_a(operands, 3, 7, std::numeric_limits<float>::quiet_NaN());
      ASSERT_TRUE(run(operands, emulator::in_order()));
      const auto* const d = static_cast<const float*>(operands.arguments().d.data);
      for (std::int64_t i = 0; i < p.m * p.n; ++i) {
        const bool is_of_infinity = has_infinity && i / p.n == 1 && i != p.n;  // there times 0
        EXPECT_EQ(std::isnan(d[i]), i / p.n == 3 || (i / p.n == 1 && !is_of_infinity)) << i;
        EXPECT_EQ(std::isinf(d[i]), is_of_infinity) << i;
      }
    }
  });
}

/// A row's bits do not depend on the others, as long as K is divided alike.
TEST(EmulatedFp4Gemm, RowsDoNotDependOnTheOthers) {
  for (const Recipe a : {Recipe::bf16, Recipe::fp8_1x128}) {
    PlainProblem p = problem_of(a, Recipe::mxfp4, 16, 30, 1120);
    p.family = InputFamily::normal;
    const Fp4Division division = {1, 2, 2};
    PlainOperands all(p);
    ASSERT_TRUE(run(all, emulator::in_order(), division));
    for (const std::int64_t m : {1, 8, 11}) {
      PlainOperands some(p);
      some.set_rows(m);
      ASSERT_TRUE(run(some, emulator::random_order(9), division));
      test::expect_same_rows(some, all);
    }
  }
}

/// A's scales of every recipe of e4m3, in every layout, far apart and some of them 0; K divided
/// among blocks of a cluster, too, the last of which has no whole step.
TEST(EmulatedFp4Gemm, EveryKindOfTokenScales) {
  std::uint64_t seed = 1;
  for (const RecipeTraits& a : kRecipes) {
    if (a.family != Family::fp8 || a.element != Format::e4m3) continue;
    for (const ScaleLayout layout : test::layouts_of(a.recipe)) {
      for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
        PlainProblem p = problem_of(a.recipe, b, 5, 18, 800);
        p.a_layout = layout;
        p.batch = 2;
        check(p, emulator::random_order(seed++));
        p.m = 15;
        check(p, emulator::random_order(seed++), Fp4Division{2, 1, 2});
      }
    }
  }
}

/// NaN, 0 and numbers at both ends among A's scales stay in their rows.
TEST(EmulatedFp4Gemm, TokenScalesStayInTheirRows) {
  for (const Recipe a : {Recipe::fp8_row, Recipe::fp8_1x128}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      for (const std::uint32_t scale : {120u, 140u}) {  // of MX: with a factor and without
        PlainProblem p = problem_of(a, b, 9, 20, 288);
        p.family = InputFamily::normal;
        PlainOperands operands(p);
        for (std::int64_t row = 0; row < p.n && b == Recipe::mxfp4; ++row) {
          operands.b().set_scale(row, 3, scale);
        }
        set_a_scales(operands, 1, std::numeric_limits<float>::quiet_NaN());
        set_a_scales(operands, 2, 0);
        set_a_scales(operands, 4, 0x1p+100f);
        set_a_scales(operands, 8, 0x1p-100f);
        SCOPED_TRACE(p.str());
        ASSERT_TRUE(run(operands, emulator::in_order()));
        EXPECT_LE(test::compare(operands.arguments(), limit_of(p)).largest_share, 1);
        const auto* const d = static_cast<const float*>(operands.arguments().d.data);
        for (std::int64_t i = 0; i < p.m * p.n; ++i) {
          EXPECT_EQ(std::isnan(d[i]), i / p.n == 1) << i;
          EXPECT_EQ(d[i] == 0, i / p.n == 2) << i;
        }
      }
    }
  }
}

/// A scale of all of A that f32 holds, and alpha that brings sums back.
TEST(EmulatedFp4Gemm, LargeScalesOfAllTokens) {
  for (const float scale : {0x1p100f, 0x1p-100f}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      PlainProblem p = problem_of(Recipe::fp8_tensor, b, 3, 20, 416);
      p.family = InputFamily::normal;
      p.alpha = scale > 1 ? 0x1p-99f : 0x1p99f;
      PlainOperands operands(p);
      set_a_scales(operands, 0, scale);
      ASSERT_TRUE(run(operands, emulator::in_order()));
      EXPECT_LE(test::compare(operands.arguments(), limit_of(p)).largest_share, 1);
    }
  }
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedFp4Gemm, MutantsAreRejected) {
  constexpr auto kPath = gemm_detail::GemmPath::fp4_few_rows;
  const auto run_changed = [](PlainOperands& operands, const Change& change) {
    return run(operands, emulator::in_order(), std::nullopt, change);
  };
  std::vector<test::Mutant<Fp4GemmParams>> mutants = test::scale_mutants<Fp4GemmParams>();
  mutants.push_back({"a block of K is left out", [](Fp4GemmParams& p) { --p.pieces; }});
  const test::Mutant<Fp4GemmParams> of_rows = {"a row of A has another one's scales",
                                               [](Fp4GemmParams& p) { p.a_scales.row_stride = 0; }};
  const test::Mutant<Fp4GemmParams> of_steps = {"a step has A's scales of another",
                                                [](Fp4GemmParams& p) { p.a_scales.k_stride = 0; }};
  for_each_few_rows_pair([&](Recipe a, Recipe b) {
    const PlainProblem p = problem_of(a, b, 6, 18, 512);
    for (const auto& mutant : mutants) test::expect_rejected(mutant, p, kPath, run_changed);
    if (!is_plain(a)) test::expect_rejected(of_rows, p, kPath, run_changed);
    if (recipe_traits(a).block_k == kFp8BlockK) {
      test::expect_rejected(of_steps, p, kPath, run_changed);
    }
  });
}

}  // namespace
}  // namespace blockscale
