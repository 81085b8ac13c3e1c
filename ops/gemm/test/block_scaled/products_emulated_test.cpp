// The kernels of products that take scales, of sm_120f, in the emulator: every pair, layout of
// scales, edge and epilogue against the float64 reference, under random schedules. Each block of
// each row has a scale of its own, and NaNs lie where none is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "blockscale/device.h"
#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/test/block_scaled/problem.h"
#include "ops/gemm/test/plain_emulation.h"

namespace blockscale {
namespace {

using gemm_detail::BlockScaledPlan;
using gemm_detail::plan_block_scaled;
using test::for_each_block_scaled_pair;
using test::has_f32_scales;
using test::in_atoms;
using test::InputFamily;
using test::kAtoms;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;

constexpr auto kPath = gemm_detail::GemmPath::sm120_block_scaled;

using Change = std::function<void(BlockScaledParams&)>;

cuda::Chip chip_of_two() {
  cuda::Chip chip = cuda::chip_named("RTX 5090");
  chip.multiprocessors = 2;
  return chip;
}

/// Runs a problem, whose launch `change` may spoil. False if the emulator has something to report.
bool run(PlainOperands& operands, const emulator::Options& options,
         std::optional<int> rows = std::nullopt, const Change& change = nullptr) {
  const GemmArguments x = gemm_detail::validated(operands.arguments(), {});
  std::optional<BlockScaledPlan> plan = plan_block_scaled(x, chip_of_two(), rows);
  if (!plan) {
    ADD_FAILURE() << "no kernel";
    return false;
  }
  gemm_detail::resolve_tensor_maps(plan->maps, emulator::encode_tensor_map, plan->params);
  if (change) change(plan->params);
  return launch_emulated(*plan, plan->params, operands, options);
}

void check(const PlainProblem& p, const emulator::Options& options = emulator::in_order(),
           std::optional<int> rows = std::nullopt) {
  test::check_emulated(p, kPath,
                       [&](PlainOperands& operands) { return run(operands, options, rows); });
}

/// A K that ends within a stage, and scales that are copied word by word from other layouts.
TEST(EmulatedBlockScaled, EveryPairLayoutAndTile) {
  std::uint64_t seed = 1;
  for_each_block_scaled_pair([&](Recipe a, Recipe b, std::int64_t ragged_k) {
    for (const int rows : kBlockScaledRows) {
      PlainProblem p = in_atoms(a, b, rows + 9, 150, ragged_k);
      check(p, emulator::random_order(seed++), rows);
      p = in_atoms(a, b, rows, 36, 256);
      if (rows == 32) {
        p.a_layout = ScaleLayout::row_major;
        if (has_f32_scales(a)) p.b_layout = ScaleLayout::mn_major;
      } else {
        if (!has_f32_scales(a)) p.a_layout = ScaleLayout::swizzled_8x4;
        p.b_layout = ScaleLayout::row_major;
      }
      check(p, emulator::random_order(seed++), rows);
    }
  });
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedBlockScaled, ExactSums) {
  for_each_block_scaled_pair([](Recipe a, Recipe b, std::int64_t) {
    for (const int rows : kBlockScaledRows) {
      PlainProblem p = in_atoms(a, b, 30, 130, 256);
      p.exact = true;
      check(p, emulator::random_order(5), rows);
    }
  });
}

TEST(EmulatedBlockScaled, EdgesOfRowsColumnsAndK) {
  for (const std::int64_t m : {1, 33}) {
    for (const std::int64_t n : {1, 8, 129}) {
      check(in_atoms(Recipe::nvfp4, Recipe::nvfp4, m, n, 32));
      check(in_atoms(Recipe::mxfp4, Recipe::mxfp4, m, n, 192));
      check(in_atoms(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, m, n, 160));
      check(in_atoms(Recipe::fp8_1x128, Recipe::fp8_128x128, m, n, 16));
    }
  }
}

/// Scales in f32 that hold for all of K, or for other rows than a tile's.
TEST(EmulatedBlockScaled, OtherScalesInF32) {
  using R = Recipe;
  for (const auto& [a, b] : {std::pair{R::fp8_row, R::fp8_row},
                             {R::fp8_tensor, R::fp8_tensor},
                             {R::fp8_1x128_pow2, R::fp8_tensor},
                             {R::fp8_32x128, R::fp8_128x128}}) {
    PlainProblem p = problem_of(a, b, 140, 136, 272);
    check(p);
    p.m = 20;
    check(p);
  }
}

TEST(EmulatedBlockScaled, Epilogues) {
  test::for_each_epilogue(40, [](PlainProblem p) {
    p.k = 160;
    if (p.sense == TensorScaleSense::multiplier || p.d == Format::f16) {
      p.a = p.b = Recipe::nvfp4;
      p.a_layout = p.b_layout = kAtoms;
      p.m = 20;
    } else {
      p.a = Recipe::fp8_1x128;
      p.b = Recipe::fp8_128x128;
      p.m = 40;
    }
    check(p);
  });
}

TEST(EmulatedBlockScaled, RowsFarApart) {
  for_each_block_scaled_pair([](Recipe a, Recipe b, std::int64_t ragged_k) {
    PlainProblem p = in_atoms(a, b, 40, 50, ragged_k);
    p.extra_bytes = 64;
    p.batch = 3;
    check(p);
  });
}

/// Each code of a scale, for a row of B of its own: NaN is, in rows that are stored, and no other.
TEST(EmulatedBlockScaled, EveryScale) {
  for (const Recipe both : {Recipe::nvfp4, Recipe::mxfp8_e4m3}) {
    const bool is_mx = both != Recipe::nvfp4;
    PlainProblem p = in_atoms(both, both, 3, 256, 64);
    p.exact = true;
    PlainOperands operands(p);
    const std::int64_t blocks = p.k / recipe_traits(both).block_k;
    for (std::int64_t row = 0; row < p.n; ++row) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        operands.b().set_scale(row, block, static_cast<std::uint32_t>(row));
        // 2^-20, so that sums are numbers with the largest scales, and with the smallest.
        if (is_mx && row < p.m) operands.a().set_scale(row, block, 107);
      }
    }
    const std::int64_t row_bytes = operands.arguments().b.value_row_stride;
    for (std::int64_t i = 252 * row_bytes; is_mx && i < 255 * row_bytes; ++i) {
      // f32 numbers, as the reference has elements: half of 2^125, 2^126 and 2^127.
      operands.b_values().at()[i] = i % 3 == 0 ? test::byte_of(both, 0.5f) : std::uint8_t{0};
    }
    ASSERT_TRUE(run(operands, emulator::in_order()));
    const GemmArguments& x = operands.arguments();
    EXPECT_EQ(test::compare(x, {}).violations, 0);
    const auto* const d = static_cast<const float*>(x.d.data);
    for (std::int64_t row = 0; row < p.n; ++row) {
      EXPECT_EQ(std::isnan(d[row]), is_mx ? row == 255 : row % 128 == 127) << row;
    }
  }
}

/// A row's bits do not depend on the others, nor on the tile that it is in.
TEST(EmulatedBlockScaled, RowsDoNotDependOnTheOthers) {
  for_each_block_scaled_pair([](Recipe a, Recipe b, std::int64_t ragged_k) {
    PlainProblem p = in_atoms(a, b, 90, 30, ragged_k);
    p.family = InputFamily::normal;
    p.batch_invariant = true;
    PlainOperands all(p);
    ASSERT_TRUE(run(all, emulator::in_order()));
    for (const std::int64_t m : {1, 40}) {
      PlainOperands some(p);
      some.set_rows(m);
      ASSERT_TRUE(run(some, emulator::random_order(9), m == 1 ? 32 : 128));
      test::expect_same_rows(some, all);
    }
  });
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedBlockScaled, MutantsAreRejected) {
  const test::Mutant<BlockScaledParams> mutants[] = {
      {"a stage of K is left out",
       [](BlockScaledParams& p) { --p.k_stages, p.whole_stages = p.k_stages; }},
      {"blocks have the scales of others",
       [](BlockScaledParams& p) { p.a_scales.at.k_stride_4 = p.a_scales.at.k_stride = 0; }},
      {"a row has another one's scales",
       [](BlockScaledParams& p) { p.a_scales.at.row_stride = 0; }},
      {"columns have the scales of others", [](BlockScaledParams& p) {
         GemmScales& b = p.b_scales.at;
         if (b.bytes) {
           b.row_stride /= 2;
         } else {
           b.k_stride = b.k_stride_4 = 0;
         }
       }}};
  for (const auto& mutant : mutants) {
    for_each_block_scaled_pair([&](Recipe a, Recipe b, std::int64_t) {
      PlainProblem p = problem_of(a, b, 20, 18, 512);
      test::expect_rejected(mutant, p, kPath, [&](PlainOperands& operands, const Change& change) {
        return run(operands, emulator::in_order(), std::nullopt, change);
      });
    });
  }
}

}  // namespace
}  // namespace blockscale
