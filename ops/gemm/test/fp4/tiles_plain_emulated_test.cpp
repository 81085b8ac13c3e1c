// The kernels of many rows with weights in 16 bits, in the emulator: as they lie, and in MXFP6 and
// MXFP8, which become bf16 in the workspace.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/fp4/tiles_emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4TilesDivision;
using gemm_detail::Fp4TilesPlan;
using test::for_each_16_bit_tiles_pair;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;
using test::run_fp4_tiles;

constexpr auto kPath = gemm_detail::GemmPath::sm90_fp4_tiles;

void check(const PlainProblem& p, const emulator::Options& options = emulator::in_order(),
           const Fp4TilesDivision& division = {128, 1}) {
  test::check_fp4_tiles(p, options, division);
}

TEST(EmulatedFp4TilesPlain, EveryPairLayoutAndTile) {
  std::uint64_t seed = 1;
  for_each_16_bit_tiles_pair([&](Recipe a, Recipe b) {
    for (const ScaleLayout layout : test::layouts_of(b)) {
      const bool is_first = layout == ScaleLayout::row_major;
      PlainProblem p = problem_of(a, b, is_first ? 150 : 20, is_first ? 136 : 40, 224);
      p.b_layout = layout;
      check(p, emulator::random_order(seed++), {is_first ? 256 : 128, 1});
    }
  });
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedFp4TilesPlain, ExactSums) {
  for_each_16_bit_tiles_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 130, 72, 320);
    p.exact = true;
    check(p);
  });
}

/// K of any number, where rows begin at multiples of 16 bytes.
TEST(EmulatedFp4TilesPlain, EdgesOfRowsColumnsAndK) {
  for (const auto& [m, n, k] :
       {std::tuple{1, 1, 8}, {17, 8, 64}, {64, 129, 72}, {129, 65, 136}, {65, 128, 256}}) {
    check(problem_of(Recipe::bf16, Recipe::bf16, m, n, k));
    check(problem_of(Recipe::f16, Recipe::f16, m, n, k));
    check(problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, m, n, (k + 31) / 32 * 32));
  }
  for (const std::int64_t k : {1, 61, 67}) {
    PlainProblem p = problem_of(Recipe::bf16, Recipe::bf16, 20, 24, k);
    p.extra_bytes = 16 - 2 * k % 16;
    check(p);
  }
}

/// Blocks of a cluster that divide K, evenly or not, or have none of it.
TEST(EmulatedFp4TilesPlain, Divisions) {
  std::uint64_t seed = 1;
  for (const auto& [tokens, blocks, k] :
       {std::tuple{128, 2u, 192}, {128, 3u, 480}, {256, 4u, 96}}) {
    check(problem_of(Recipe::f16, Recipe::f16, 70, 40, k), emulator::random_order(seed++),
          {tokens, blocks});
  }
  check(problem_of(Recipe::bf16, Recipe::mxfp6_e3m2, 33, 130, 320), emulator::random_order(seed++),
        {128, 2});
}

TEST(EmulatedFp4TilesPlain, Epilogues) {
  test::for_each_epilogue(40, [](PlainProblem p) {
    p.m = 70;
    p.k = 96;
    const bool multiplies = p.sense == TensorScaleSense::multiplier;
    p.a = multiplies ? Recipe::fp8_row : Recipe::f16;
    p.b = multiplies ? Recipe::mxfp8_e4m3 : Recipe::f16;
    check(p);
  });
}

/// Numbers of 16 bits that nothing is added to: no sums are exchanged.
TEST(EmulatedFp4TilesPlain, StoresDirectly) {
  for_each_16_bit_tiles_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 85, 136, 128);
    p.d = a == Recipe::f16 ? Format::f16 : Format::bf16;
    p.batch = 2;
    p.bias = p.gate = p.alpha_factor = true;
    p.alpha = -0.5f;
    test::check_emulated(p, kPath, [](PlainOperands& operands) {
      return run_fp4_tiles(operands, emulator::random_order(3), Fp4TilesDivision{128, 1},
                           [](Fp4TilesPlan& plan) { EXPECT_TRUE(plan.params.is_direct); });
    });
  });
}

/// Rows of plain operands far apart; of those that become bf16, at any byte, and one B for all.
TEST(EmulatedFp4TilesPlain, RowsFarApartAndAnywhere) {
  PlainProblem p = problem_of(Recipe::bf16, Recipe::bf16, 67, 50, 104);
  p.extra_bytes = 48;
  p.batch = 3;
  check(p);
  p = problem_of(Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3, 67, 50, 96);
  p.odd_bytes = 1;
  p.a_odd_bytes = 3;
  p.batch = 2;
  check(p);
  p.b_shared = true;
  check(p);
}

TEST(EmulatedFp4TilesPlain, EveryScale) {
  for (const Recipe b : {Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3}) {
    test::check_every_scale(Recipe::bf16, b, [](PlainOperands& operands) {
      return run_fp4_tiles(operands, emulator::in_order(), Fp4TilesDivision{128, 1});
    });
  }
}

/// Of MXFP8 what bf16 does not hold is rounded to a multiple of 2^-133.
TEST(EmulatedFp4TilesPlain, SmallestElements) {
  PlainProblem p = problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, 1, 8, 32);
  p.exact = true;
  PlainOperands operands(p);
  for (std::int64_t k = 0; k < p.k; ++k) {
    test::set_a(operands, 0, k, k == 0 ? 0x1p100f : 0.0f);
    for (std::int64_t row = 0; row < p.n; ++row) {
      operands.b_values().at()[row * p.k + k] = static_cast<std::uint8_t>(2 + row);
    }
  }
  for (std::int64_t row = 0; row < p.n; ++row) operands.b().set_scale(row, 0, 1);  // 2^-126
  ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order(), Fp4TilesDivision{128, 1}));
  const auto* const d = static_cast<const float*>(operands.arguments().d.data);
  for (std::int64_t row = 0; row < p.n; ++row) {
    const double code = decode(Format::e4m3, static_cast<std::uint32_t>(2 + row));
    const double element = std::ldexp(std::nearbyint(std::ldexp(code, 133 - 126)), -133);
    EXPECT_EQ(d[row], std::ldexp(element, 100)) << row;
  }
}

/// What launches that are wrong in one place give.
TEST(EmulatedFp4TilesPlain, MutantsAreRejected) {
  const auto reject = [](const test::Mutant<Fp4TilesPlan>& mutant, Recipe a, Recipe b) {
    test::expect_rejected(mutant, problem_of(a, b, 20, 18, 320), kPath,
                          [](PlainOperands& operands, const auto& change) {
                            return run_fp4_tiles(operands, emulator::in_order(),
                                                 Fp4TilesDivision{128, 1}, change);
                          });
  };
  for (const Recipe b : {Recipe::bf16, Recipe::mxfp6_e2m3}) {
    reject({"a stage of K is left out",
            [](Fp4TilesPlan& plan) { --plan.params.k_stages, --plan.params.block_stages; }},
           Recipe::bf16, b);
  }
  reject({"blocks of B have the scales of others",
          [](Fp4TilesPlan& plan) { plan.b_conversion->params.block_k = Divisor(64); }},
         Recipe::bf16, Recipe::mxfp8_e5m2);
  reject(
      {"B has no scales", [](Fp4TilesPlan& plan) { plan.b_conversion->params.scales = nullptr; }},
      Recipe::bf16, Recipe::mxfp6_e3m2);
  reject(
      {"rows of A have no scale", [](Fp4TilesPlan& plan) { plan.params.epilogue.row_scales = {}; }},
      Recipe::fp8_tensor, Recipe::mxfp8_e4m3);
}

}  // namespace
}  // namespace blockscale
