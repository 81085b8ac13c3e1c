// The kernels of many rows with weights in 16 bits, in the emulator: as they lie, and in MXFP6 and
// MXFP8, which become bf16 in the workspace.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "device/conversion_loss.h"
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

/// B's element (0, 0) alone is not 0: its code and scale, and whether bf16 lacks it.
struct OneElement {
  Recipe b;
  std::uint32_t code, scale;
  bool is_lost;
};

/// What numbers make the fallback compute D: its alpha is another one than the product's.
TEST(EmulatedFp4TilesPlain, FallsBackWhereBf16LacksANumber) {
  using enum Recipe;
  constexpr OneElement kCases[] = {
      {mxfp8_e4m3, 0x01, 3, false},   {mxfp8_e4m3, 0x01, 2, true},     // 2^-133, 2^-134
      {mxfp8_e4m3, 0x8F, 3, false},   {mxfp8_e4m3, 0x0F, 2, true},     // 15 times these
      {mxfp8_e4m3, 0x7E, 246, false}, {mxfp8_e4m3, 0xFE, 247, true},   // 1.75 times 2^127, 2^128
      {mxfp8_e4m3, 0x7F, 0, false},   {mxfp8_e4m3, 0x00, 0, false},    // NaN, 0
      {mxfp8_e4m3, 0x01, 255, false}, {mxfp8_e5m2, 0x7C, 254, false},  // NaN, infinity
      {mxfp8_e5m2, 0x01, 10, false},  {mxfp8_e5m2, 0x03, 9, true},     // 2^-133, 1.5 times it
      {mxfp6_e3m2, 0x01, 0, false},   {mxfp6_e3m2, 0x1F, 250, false},  // 2^-131, 1.75 2^127
      {mxfp6_e3m2, 0x1F, 251, true},  {mxfp6_e2m3, 0x1F, 253, true},   // 1.75, 1.875 times 2^128
  };
  for (const OneElement& one : kCases) {
    PlainProblem p = problem_of(Recipe::bf16, one.b, 1, 8, 32);
    SCOPED_TRACE(p.str() + " " + std::to_string(one.code) + " " + std::to_string(one.scale));
    p.exact = true;
    p.alpha = 2;
    PlainOperands operands(p);
    std::memset(operands.b_values().at(), 0, operands.b_values().bytes());
    operands.b_values().at()[0] = static_cast<std::uint8_t>(one.code);
    for (std::int64_t row = 0; row < p.n; ++row) operands.b().set_scale(row, 0, one.scale);
    const float a = one.scale > 127 ? 0x1p-20f : 0x1p20f;
    for (std::int64_t k = 0; k < p.k; ++k) test::set_a(operands, 0, k, a);
    ASSERT_TRUE(
        run_fp4_tiles(operands, emulator::in_order(), Fp4TilesDivision{128, 1},
                      [](Fp4TilesPlan& plan) { plan.fallback->params.epilogue.alpha = 4; }));
    const Format element = recipe_traits(one.b).element;
    const double scale =
        one.scale == 255 ? NAN : std::ldexp(1.0, static_cast<int>(one.scale) - 127);
    const auto expected = static_cast<float>(double{decode(element, one.code)} * scale * double{a} *
                                             (one.is_lost ? 4 : 2));
    const float d = *static_cast<const float*>(operands.arguments().d.data);
    EXPECT_TRUE(d == expected || (std::isnan(d) && std::isnan(expected))) << d << " " << expected;
  }
}

/// Runs a problem of MXFP8 whose sums are exact.
void check_exact(PlainProblem p, bool has_lost, const std::function<void(Fp4TilesPlan&)>& change) {
  p.exact = true;
  PlainOperands operands(p);
  if (has_lost) test::lose_a_row(operands, p.n / 2);
  ASSERT_TRUE(run_fp4_tiles(operands, emulator::random_order(5), Fp4TilesDivision{128, 2}, change));
  EXPECT_EQ(test::compare(operands.arguments_before(), {}).violations, 0);
}

void spoil(Fp4TilesParams& of_product) {
  of_product.epilogue.alpha = 3;
  of_product.epilogue.keeps_sums = false;
}

/// Whichever product D is left to, the other one has no part in it, C in its place or not: of a
/// word that is anything, or a token that nobody wrote, which is taken back.
TEST(EmulatedFp4TilesPlain, OneOfTwoProductsComputesD) {
  PlainProblem p = problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, 40, 100, 192);
  for (const bool in_place : {false, true}) {
    p.in_place = in_place;
    p.beta = in_place ? 0.5f : 0;
    check_exact(p, false, [](Fp4TilesPlan& plan) { plan.fallback->params.epilogue.alpha = 3; });
    check_exact(p, true, [](Fp4TilesPlan& plan) { spoil(plan.params); });
    check_exact(p, false, [](Fp4TilesPlan& plan) {
      spoil(plan.params);
      plan.params.loss->found = ConversionLoss::kToken;
    });
    // Passed on by no one but this product.
    check_exact(p, false, [](Fp4TilesPlan& plan) {
      plan.fallback->params.epilogue.alpha = 3;
      plan.params.loss->passed_on = ConversionLoss::kToken;
    });
  }
}

/// Numbers that A's rows lose, which have the scales of their blocks.
TEST(EmulatedFp4TilesPlain, FallsBackWhereALacksANumber) {
  PlainProblem p = problem_of(Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3, 3, 8, 32);
  p.exact = true;
  PlainOperands operands(p);
  std::memset(operands.a_values().at(), 0xFF, operands.a_values().bytes());  // -7.5
  std::memset(operands.b_values().at(), 0, operands.b_values().bytes());
  operands.a().set_scale(1, 0, 253);
  for (std::int64_t row = 0; row < p.n; ++row) {
    operands.b_values().at()[row * operands.arguments().b.value_row_stride] = 1;  // 1/8
    operands.b().set_scale(row, 0, 127 - 40);
  }
  ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order(), Fp4TilesDivision{128, 1}));
  const auto* const d = static_cast<const float*>(operands.arguments().d.data);
  for (std::int64_t i = 0; i < p.n; ++i) EXPECT_EQ(d[p.n + i], -7.5f / 8 * 0x1p86f) << i;
}

TEST(EmulatedFp4TilesPlain, LostNumbersAreFound) {
  const auto reject = [](const char* name, const std::function<void(Fp4TilesPlan&)>& change) {
    SCOPED_TRACE(name);
    PlainProblem p = problem_of(Recipe::bf16, Recipe::mxfp8_e4m3, 20, 18, 64);
    p.exact = true;
    PlainOperands operands(p);
    test::lose_a_row(operands, 17);
    ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order(), Fp4TilesDivision{128, 1}, change));
    EXPECT_GT(test::compare(operands.arguments(), {}).violations, 10);
  };
  reject("the conversion reports nothing",
         [](Fp4TilesPlan& plan) { plan.b_conversion->params.loss = nullptr; });
  reject("the product passes nothing on", [](Fp4TilesPlan& plan) { plan.params.loss = nullptr; });
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
