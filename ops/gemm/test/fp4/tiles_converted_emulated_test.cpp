// Products of A in FP8, MXFP8, NVFP4 and MXFP4 by the kernels of many rows with weights in FP4, in
// the emulator: rows become bf16 in the workspace, and what is left of A's scales is the sums'. (Of
// FP8 beside mxfp4 through the door they stay in FP8: tiles_fp8_emulated_test.cpp.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/fp4/tiles_emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4TilesDivision;
using gemm_detail::Fp4TilesPlan;
using test::check_fp4_tiles;
using test::for_each_converted_pair;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;
using test::run_fp4_tiles;

constexpr auto kPath = gemm_detail::GemmPath::sm90_fp4_tiles;

TEST(EmulatedFp4TilesConverted, EveryPairLayoutAndTile) {
  std::uint64_t seed = 1;
  for_each_converted_pair([&](Recipe a, Recipe b) {
    for (const ScaleLayout layout : test::layouts_of(a)) {
      if (b == Recipe::mxfp4 && layout != ScaleLayout::row_major) continue;  // as beside NVFP4
      PlainProblem p = problem_of(a, b, 70, 40, 160);
      p.a_layout = layout;
      const int tokens = layout == ScaleLayout::row_major ? test::most_tokens_of(a) : 64;
      check_fp4_tiles(p, emulator::random_order(seed++), Fp4TilesDivision{tokens, 1});
    }
  });
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedFp4TilesConverted, ExactSums) {
  for_each_converted_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 20, 40, 224);
    p.exact = true;
    check_fp4_tiles(p, emulator::in_order(), Fp4TilesDivision{64, 1});
  });
}

/// One row and few, which have no kernels of few rows where A is in FP4, and rows that begin
/// anywhere.
TEST(EmulatedFp4TilesConverted, RowsAnywhere) {
  for_each_converted_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, b == Recipe::nvfp4 ? 1 : 19, 24, 96);
    p.a_odd_bytes = 3;
    p.batch = 2;
    p.b_shared = p.m == 1;
    check_fp4_tiles(p);
  });
}

/// Of A's blocks of K: stages that have no other, or none of the next.
TEST(EmulatedFp4TilesConverted, EdgesOfK) {
  for (const std::int64_t k : {32, 64, 128, 192, 256, 352}) {
    check_fp4_tiles(problem_of(Recipe::fp8_1x128, Recipe::nvfp4, 17, 24, k));
    check_fp4_tiles(problem_of(Recipe::fp8_1x128_ue8m0, Recipe::mxfp4, 17, 24, k));
    check_fp4_tiles(problem_of(Recipe::mxfp8_e4m3, Recipe::nvfp4, 17, 24, k));
  }
}

TEST(EmulatedFp4TilesConverted, Divisions) {
  const Fp4TilesDivision division = {64, 4};
  for (const std::uint32_t blocks : {2u, 4u}) {  // of five stages: one begins within A's block
    check_fp4_tiles(problem_of(Recipe::fp8_1x128, Recipe::nvfp4, 33, 40, 320),
                    emulator::random_order(blocks), Fp4TilesDivision{64, blocks});
  }
  check_fp4_tiles(problem_of(Recipe::fp8_row, Recipe::mxfp4, 33, 40, 352),
                  emulator::random_order(1), division);
  check_fp4_tiles(problem_of(Recipe::nvfp4, Recipe::nvfp4, 33, 40, 352), emulator::random_order(2),
                  division);
}

/// Scales of B that have no factors, in some stages or in all, beside A with scales of blocks.
TEST(EmulatedFp4TilesConverted, ScalesFarApart) {
  for (const Recipe a : {Recipe::fp8_1x128, Recipe::mxfp8_e5m2}) {
    for (const std::int64_t every : {1, 3, 5, 9}) {
      const std::uint32_t other = every == 3 ? 150 : 129;
      PlainProblem p = problem_of(a, Recipe::mxfp4, 20, 36, 544);
      p.family = InputFamily::normal;
      PlainOperands operands(p);
      for (std::int64_t block = 0; block < p.k / 32; block += every) {
        operands.b().set_scale(block % p.n, block, other);
      }
      SCOPED_TRACE(p.str() + " " + std::to_string(other) + " in every " + std::to_string(every));
      ASSERT_TRUE(run_fp4_tiles(operands, emulator::random_order(4),
                                Fp4TilesDivision{every == 5 ? 128 : 64, 1}));
      EXPECT_LE(test::compare(operands.arguments(), test::limit_of(p, kPath)).largest_share, 1);
    }
  }
}

TEST(EmulatedFp4TilesConverted, Epilogues) {
  test::for_each_epilogue(24, [](PlainProblem p) {
    p.m = 20;
    p.k = 64;
    const bool multiplies = p.sense == TensorScaleSense::multiplier;
    p.a = multiplies ? Recipe::fp8_row : Recipe::nvfp4;
    check_fp4_tiles(p);
    if (multiplies) return;
    p.a = Recipe::fp8_1x128;
    check_fp4_tiles(p);
  });
}

/// Tensor scales whose product alone is a number that sums can have.
TEST(EmulatedFp4TilesConverted, LargeAndSmallTensorScales) {
  for (const auto& [of_a, of_b] : {std::pair{100, -100}, {-100, 100}, {-50, -40}, {50, 40}}) {
    for (const TensorScaleSense sense : {TensorScaleSense::multiplier, TensorScaleSense::divisor}) {
      PlainProblem p = problem_of(Recipe::nvfp4, Recipe::nvfp4, 20, 24, 64);
      p.exact = true;
      p.sense = sense;
      PlainOperands operands(p);
      operands.set_tensor_scales(std::ldexp(1.0f, of_a), std::ldexp(1.0f, of_b));
      ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order()));
      EXPECT_EQ(test::compare(operands.arguments(), {}).violations, 0) << of_a << " " << of_b;
    }
  }
}

/// Each scale of MX in a row of A of its own, of sums that are exact.
void check_every_scale_of(Recipe a) {
  PlainProblem p = problem_of(a, Recipe::mxfp4, 256, 3, 64);
  SCOPED_TRACE(p.str());
  p.exact = true;
  PlainOperands operands(p);
  std::uint8_t* const codes = operands.a_values().at();
  const std::int64_t row_bytes = operands.arguments().a.value_row_stride;
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t block = 0; block < p.k / 32; ++block) {
      operands.a().set_scale(row, block, static_cast<std::uint32_t>(row));
      for (std::int64_t column = 0; column < p.n; ++column) {
        operands.b().set_scale(column, block, 127 - 12);
      }
    }
    // Elements are f32 numbers: half of 2^125, 2^126 and 2^127.
    for (std::int64_t i = 0; row >= 252 && i < row_bytes; ++i) {
      codes[row * row_bytes + i] = i % 3 == 0 ? test::byte_of(p.a, 0.5f) : std::uint8_t{0};
    }
  }
  ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order()));
  const GemmArguments& x = operands.arguments();
  EXPECT_EQ(test::compare(x, {}).violations, 0);
  for (std::int64_t i = 0; i < p.m * p.n; ++i) {
    EXPECT_EQ(std::isnan(static_cast<const float*>(x.d.data)[i]), i / p.n == 255) << i;
  }
}

TEST(EmulatedFp4TilesConverted, EveryScaleOfMx) {
  for (const Recipe a : {Recipe::mxfp4, Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2}) {
    check_every_scale_of(a);
  }
}

/// 2^-136 in A, which bf16 lacks: the product behind has it, unless nobody tells it.
TEST(EmulatedFp4TilesConverted, FallsBackWhereALacksANumber) {
  for (const bool is_told : {true, false}) {
    PlainProblem p = problem_of(Recipe::mxfp8_e4m3, Recipe::mxfp4, 20, 18, 64);
    p.exact = true;
    PlainOperands operands(p);
    std::memset(operands.a_values().at(), 0, operands.a_values().bytes());
    operands.a_values().at()[3 * operands.arguments().a.value_row_stride] = 1;  // 2^-9
    operands.a().set_scale(3, 0, 0);
    for (std::int64_t i = 0; i < p.n; ++i) operands.b().set_scale(i, 0, 127 + 20);
    ASSERT_TRUE(run_fp4_tiles(operands, emulator::in_order(), std::nullopt, [&](auto& plan) {
      if (!is_told) plan.conversion->params.loss = nullptr;
    }));
    EXPECT_EQ(test::compare(operands.arguments(), {}).violations == 0, is_told);
  }
}

/// A row's bits do not depend on the others, nor on the tile that it is in.
TEST(EmulatedFp4TilesConverted, RowsDoNotDependOnTheOthers) {
  for (const Recipe a : {Recipe::fp8_row, Recipe::fp8_1x128, Recipe::nvfp4}) {
    PlainProblem p = problem_of(a, Recipe::nvfp4, 70, 30, 160);
    p.family = InputFamily::normal;
    p.batch_invariant = true;
    PlainOperands all(p);
    ASSERT_TRUE(run_fp4_tiles(all, emulator::in_order(), Fp4TilesDivision{128, 1}));
    PlainOperands some(p);
    some.set_rows(1);
    ASSERT_TRUE(run_fp4_tiles(some, emulator::random_order(9)));
    test::expect_same_rows(some, all);
  }
}

/// What launches that are wrong in one place give.
TEST(EmulatedFp4TilesConverted, MutantsAreRejected) {
  const auto reject = [](const test::Mutant<Fp4TilesPlan>& mutant, Recipe a, Recipe b) {
    test::expect_rejected(mutant, problem_of(a, b, 20, 18, 512), kPath,
                          [](PlainOperands& operands, const auto& change) {
                            return run_fp4_tiles(operands, emulator::in_order(),
                                                 Fp4TilesDivision{64, 1}, change);
                          });
  };
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    reject({"rows have the scale of the first one",
            [](Fp4TilesPlan& plan) { plan.params.epilogue.row_scales.stride = 0; }},
           Recipe::fp8_row, b);
    reject({"rows have no scale", [](Fp4TilesPlan& plan) { plan.params.epilogue.row_scales = {}; }},
           Recipe::fp8_tensor, b);
    reject({"rows are scaled twice",
            [](Fp4TilesPlan& plan) {
              plan.conversion->params.scales =
                  reinterpret_cast<const std::uint8_t*>(plan.params.epilogue.row_scales.data);
            }},
           Recipe::fp8_row, b);
    reject({"blocks have the scales of others",
            [](Fp4TilesPlan& plan) { plan.conversion->params.block_k = Divisor(64); }},
           b, b);
    for (const Recipe a : {Recipe::fp8_1x128_ue8m0, Recipe::mxfp8_e4m3}) {
      reject({"blocks have no scales",
              [](Fp4TilesPlan& plan) { plan.conversion->params.scales = nullptr; }},
             a, b);
    }
    reject({"blocks have the scale of the first one",
            [](Fp4TilesPlan& plan) {
              plan.params.a_scales.k_stride = plan.params.a_scales.k_stride_4 = 0;
            }},
           Recipe::fp8_1x128, b);
    reject({"rows have the scales of the first one",
            [](Fp4TilesPlan& plan) { plan.params.a_scales.row_stride = 0; }},
           Recipe::fp8_1x128, b);
  }
  reject({"A's tensor scale is inverted",
          [](Fp4TilesPlan& plan) {
            bool& divides = plan.params.a_tensor_scale.divides;
            divides = !divides;
          }},
         Recipe::nvfp4, Recipe::nvfp4);
  reject({"A has no tensor scale", [](Fp4TilesPlan& plan) { plan.params.a_tensor_scale = {}; }},
         Recipe::nvfp4, Recipe::nvfp4);
}

}  // namespace
}  // namespace blockscale
