// The kernels of many rows in FP8 with weights in mxfp4, on FP8's tensor cores, in the emulator:
// scales that fold into e4m3 and those that do not, edges and epilogues against the float64
// reference and FP8's bound.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
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
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;
using test::run_fp4_tiles;

constexpr auto kPath = gemm_detail::GemmPath::sm90_fp8;
constexpr auto kFastPath = gemm_detail::GemmPath::sm90_fp8_fast;

Fp4TilesDivision in_fp8(int tokens, std::uint32_t blocks_k = 1) {
  return {tokens, blocks_k, true};
}

TEST(EmulatedFp8Tiles, EveryPairLayoutAndTile) {
  std::uint64_t seed = 1;
  for (const auto& [a, layout, tokens] : {std::tuple{Recipe::fp8_row, ScaleLayout::row_major, 64},
                                          {Recipe::fp8_row, ScaleLayout::swizzled_128x4, 128},
                                          {Recipe::fp8_tensor, ScaleLayout::swizzled_8x4, 256}}) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
      PlainProblem p = problem_of(a, Recipe::mxfp4, 150, 136, 352);
      p.b_layout = layout;
      p.family = family;
      check_fp4_tiles(p, emulator::random_order(seed++), in_fp8(tokens));
    }
  }
}

/// Scales of a row's blocks `difference` apart, of which all fold that are 11 or less: sums of few
/// bits, which are exact. A stage that does not fold stands alone, between others, or ends K.
TEST(EmulatedFp8Tiles, ExactSums) {
  for (const int difference : {0, 1, 11, 12}) {
    for (const std::int64_t every : {1, 3, 9}) {
      PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 66, 36, 544);
      p.exact = true;
      PlainOperands operands(p);
      for (std::int64_t row = 0; row < p.n; ++row) {
        for (std::int64_t block = 0; block < p.k / 32; ++block) {
          const bool is_far = block % every == row % every;
          operands.b().set_scale(row, block,
                                 static_cast<std::uint32_t>(is_far ? 120 + difference : 120));
          if (difference <= 1 || is_far) continue;
          // Products of those that are far alone: the tensor cores keep few bits.
          std::uint8_t* const codes =
              operands.b_values().at() + row * operands.arguments().b.value_row_stride + block * 16;
          for (int i = 0; i < 16; ++i) codes[i] = 0;
        }
      }
      SCOPED_TRACE(std::to_string(difference) + " in every " + std::to_string(every));
      ASSERT_TRUE(
          run_fp4_tiles(operands, emulator::random_order(4), in_fp8(every == 3 ? 256 : 64)));
      EXPECT_EQ(test::compare(operands.arguments(), {}).violations, 0);
    }
  }
}

/// Scales that fold to either side, and those that do not.
TEST(EmulatedFp8Tiles, ScalesFarApart) {
  for (const std::uint32_t other : {0u, 108u, 109u, 131u, 132u, 180u}) {
    PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 70, 36, 800);
    p.family = InputFamily::normal;
    PlainOperands operands(p);
    for (std::int64_t row = 0; row < p.n; ++row) {
      for (std::int64_t block = 0; block < p.k / 32; ++block) {
        const bool is_far = block == row % 11 || block == 24;
        operands.b().set_scale(row, block, is_far ? other : 120);
      }
    }
    SCOPED_TRACE(other);
    ASSERT_TRUE(run_fp4_tiles(operands, emulator::random_order(4), in_fp8(256)));
    EXPECT_LE(test::compare(operands.arguments(), test::limit_of(p, kPath)).largest_share, 1);
  }
}

/// (What tensor cores then do not hold of a sum the emulator does:
/// CudaGpuFp4Tiles.FastAccumulation.)
TEST(EmulatedFp8Tiles, FastAccumulationTakesAllScales) {
  PlainProblem p = problem_of(Recipe::fp8_tensor, Recipe::mxfp4, 150, 136, 352);
  p.fast_accumulation = true;
  for (const int tokens : {64, 128, 256}) {
    p.family = tokens == 128 ? InputFamily::adversarial : InputFamily::normal;
    check_fp4_tiles(p, emulator::random_order(3), in_fp8(tokens, tokens == 64 ? 2 : 1));
  }
  // One row has a scale that fits the first stage's or does not, there, in the middle or at the
  // end of K.
  p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 20, 70, 480);
  p.fast_accumulation = true;
  p.family = InputFamily::normal;
  for (const std::int64_t far : {1, 6, 14}) {
    for (const std::uint32_t scale : {0u, 114u, 115u, 126u, 127u, 140u, 230u}) {
      PlainOperands operands(p);
      for (std::int64_t row = 0; row < p.n; ++row) {
        for (std::int64_t block = 0; block < p.k / 32; ++block) {
          operands.b().set_scale(row, block, row == 67 && block == far ? scale : 120);
        }
      }
      SCOPED_TRACE(std::to_string(far) + " has " + std::to_string(scale));
      ASSERT_TRUE(run_fp4_tiles(operands, emulator::random_order(4), in_fp8(64)));
      EXPECT_LE(test::compare(operands.arguments(), test::limit_of(p, kFastPath)).largest_share, 1);
    }
  }
}

TEST(EmulatedFp8Tiles, EveryScale) {
  const int exponent_of_a = -6;  // A's scale is for sums that are numbers
  test::check_every_scale(
      Recipe::fp8_row, Recipe::mxfp4,
      [](PlainOperands& operands) {
        return run_fp4_tiles(operands, emulator::in_order(), in_fp8(64));
      },
      exponent_of_a);
}

TEST(EmulatedFp8Tiles, EdgesOfRowsColumnsAndK) {
  for (const std::int64_t m : {1, 65}) {
    for (const std::int64_t k : {32, 96, 128, 160, 512}) {
      PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, m, m == 1 ? 129 : 8, k);
      p.family = InputFamily::normal;
      p.batch = 2;
      p.b_shared = m == 1;
      check_fp4_tiles(p, emulator::in_order(), in_fp8(64));
    }
  }
}

TEST(EmulatedFp8Tiles, Divisions) {
  for (const std::uint32_t blocks : {2u, 4u}) {
    PlainProblem p = problem_of(Recipe::fp8_tensor, Recipe::mxfp4, 33, 40, 608);
    p.family = blocks == 2 ? InputFamily::normal : InputFamily::adversarial;
    check_fp4_tiles(p, emulator::random_order(blocks), in_fp8(blocks == 2 ? 64 : 256, blocks));
  }
}

/// Through the door, of however few rows where one is to have the same bits.
TEST(EmulatedFp8Tiles, EpiloguesAndRowsThatDoNotDependOnOthers) {
  test::for_each_epilogue(24, [](PlainProblem p) {
    if (p.sense == TensorScaleSense::divisor) return;  // which no operand has
    p.m = 50;
    p.k = 160;
    p.a = p.extra_columns == 1 ? Recipe::fp8_tensor : Recipe::fp8_row;
    p.b = Recipe::mxfp4;
    test::check_emulated(p, kPath, [&](PlainOperands& operands) {
      return run_fp4_tiles(operands, emulator::in_order());
    });
  });
  PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 70, 30, 288);
  p.family = InputFamily::normal;
  p.batch_invariant = true;
  PlainOperands all(p);
  ASSERT_TRUE(run_fp4_tiles(all, emulator::in_order(), in_fp8(256)));
  PlainOperands some(p);
  some.set_rows(1);
  ASSERT_TRUE(run_fp4_tiles(some, emulator::random_order(9)));
  test::expect_same_rows(some, all);
}

/// Numbers of 16 bits from the sums themselves, times A's scales of rows.
TEST(EmulatedFp8Tiles, StoresDirectly) {
  const auto run_directly = [](PlainOperands& operands, int tokens, const auto& change) {
    return run_fp4_tiles(operands, emulator::random_order(3), in_fp8(tokens),
                         [&](Fp4TilesPlan& plan) {
                           EXPECT_TRUE(plan.params.is_direct);
                           change(plan.params);
                         });
  };
  for (const int tokens : {64, 256}) {
    PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 85, 136, 256);
    p.d = tokens == 64 ? Format::f16 : Format::bf16;
    test::check_emulated(p, kPath, [&](PlainOperands& operands) {
      return run_directly(operands, tokens, [](Fp4TilesParams&) {});
    });
    const test::Mutant<Fp4TilesParams> mutant = {
        "rows have the scale of the first one",
        [](Fp4TilesParams& params) { params.epilogue.row_scales.stride = 0; }};
    test::expect_rejected(mutant, p, kPath, [&](PlainOperands& operands, const auto& change) {
      return run_directly(operands, tokens, change);
    });
  }
}

/// What launches that are wrong in one place give.
TEST(EmulatedFp8Tiles, MutantsAreRejected) {
  std::vector<test::Mutant<Fp4TilesParams>> mutants = test::scale_mutants<Fp4TilesParams>();
  mutants.pop_back();  // of a tensor scale: a hundredth, which FP8's bound allows
  mutants.push_back(
      {"a stage of K is left out", [](Fp4TilesParams& p) { --p.k_stages, --p.block_stages; }});
  mutants.push_back({"rows have the scale of the first one",
                     [](Fp4TilesParams& p) { p.epilogue.row_scales.stride = 0; }});
  for (const bool fast : {false, true}) {
    PlainProblem p = problem_of(Recipe::fp8_row, Recipe::mxfp4, 20, 18, 480);
    p.fast_accumulation = fast;
    if (fast) p.family = InputFamily::normal;  // whose scales fit the first stage's tables
    for (const auto& mutant : mutants) {
      test::expect_rejected(
          mutant, p, fast ? kFastPath : kPath, [&](PlainOperands& operands, const auto& change) {
            return run_fp4_tiles(operands, emulator::in_order(), in_fp8(64),
                                 [&](Fp4TilesPlan& plan) { change(plan.params); });
          });
    }
  }
}

}  // namespace
}  // namespace blockscale
