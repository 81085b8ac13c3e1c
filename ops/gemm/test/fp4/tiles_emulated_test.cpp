// The kernels of many rows with weights in FP4, in the emulator: every pair, layout, scale, edge
// and epilogue against the float64 reference, under random schedules.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
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
using test::for_each_fp4_pair;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;
using test::problem_of;

constexpr auto kPath = gemm_detail::GemmPath::sm90_fp4_tiles;

using Change = std::function<void(Fp4TilesParams&)>;

/// Runs a problem, whose launch `change` may spoil. False if the emulator has something to report.
bool run(PlainOperands& operands, const emulator::Options& options,
         std::optional<Fp4TilesDivision> division = std::nullopt, const Change& change = nullptr) {
  return test::run_fp4_tiles(operands, options, division, [&](Fp4TilesPlan& plan) {
    if (change) change(plan.params);
  });
}

TEST(EmulatedFp4Tiles, EveryPairLayoutAndTile) {
  std::uint64_t seed = 1;
  for_each_fp4_pair([&](Recipe a, Recipe b) {
    for (const ScaleLayout layout :
         {ScaleLayout::row_major, ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      for (const int tokens : {64, 128, 256}) {
        PlainProblem p = problem_of(a, b, tokens == 128 ? 150 : 40, 136, 352);
        p.b_layout = layout;
        check_fp4_tiles(p, emulator::random_order(seed++), Fp4TilesDivision{tokens, 1});
      }
    }
  });
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedFp4Tiles, ExactSums) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const int tokens : {64, 256}) {
      PlainProblem p = problem_of(a, b, 70, 200, 512);
      p.exact = true;
      check_fp4_tiles(p, emulator::in_order(), Fp4TilesDivision{tokens, 1});
    }
  });
}

TEST(EmulatedFp4Tiles, EdgesOfRowsColumnsAndK) {
  for (const std::int64_t m : {1, 17, 64, 65}) {
    for (const std::int64_t n : {1, 8, 129}) {
      for (const std::int64_t k : {32, 64, 96}) {
        check_fp4_tiles(problem_of(Recipe::bf16, Recipe::nvfp4, m, n, k));
        check_fp4_tiles(problem_of(Recipe::f16, Recipe::mxfp4, m, n, k));
      }
    }
  }
}

/// Blocks of a cluster that divide K, evenly or not, or have none of it.
TEST(EmulatedFp4Tiles, Divisions) {
  std::uint64_t seed = 1;
  for (const auto& [tokens, blocks, k] : {std::tuple{64, 2u, 192},
                                          {64, 4u, 736},
                                          {64, 2u, 512},
                                          {64, 8u, 320},
                                          {128, 2u, 224},
                                          {256, 4u, 96}}) {
    const Fp4TilesDivision division = {tokens, blocks};
    check_fp4_tiles(problem_of(Recipe::bf16, Recipe::nvfp4, 70, 130, k),
                    emulator::random_order(seed++), division);
    check_fp4_tiles(problem_of(Recipe::f16, Recipe::mxfp4, 33, 40, k),
                    emulator::random_order(seed++), division);
  }
}

TEST(EmulatedFp4Tiles, EveryScale) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    test::check_every_scale(
        a, b, [](PlainOperands& operands) { return run(operands, emulator::in_order()); });
  });
}

/// Scales that have no factors, in some stages or in all, of products of other ones between.
TEST(EmulatedFp4Tiles, ScalesFarApart) {
  for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
    for (const std::uint32_t other : {0u, 103u, 104u, 128u, 129u, 150u}) {
      for (const std::int64_t every : {1, 5, 9}) {
        PlainProblem p = problem_of(a, Recipe::mxfp4, 20, 36, 544);
        p.family = InputFamily::normal;
        PlainOperands operands(p);
        for (std::int64_t block = 0; block < p.k / 32; block += every) {
          operands.b().set_scale(block % p.n, block, other);
        }
        SCOPED_TRACE(std::to_string(other) + " in every " + std::to_string(every));
        ASSERT_TRUE(
            run(operands, emulator::random_order(4), Fp4TilesDivision{every == 5 ? 256 : 64, 1}));
        EXPECT_LE(test::compare(operands.arguments(), test::limit_of(p, kPath)).largest_share, 1);
      }
    }
  }
}

TEST(EmulatedFp4Tiles, Epilogues) {
  test::for_each_epilogue(40, [](PlainProblem p) {
    p.m = 70;
    p.k = 224;
    check_fp4_tiles(p);
    p.a = Recipe::f16;
    p.b = Recipe::mxfp4;
    p.m = 20;
    check_fp4_tiles(p);
  });
}

/// Numbers of 16 bits that nothing is added to: no sums are exchanged.
TEST(EmulatedFp4Tiles, StoresDirectly) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    for (const bool has_all : {false, true}) {
      for (const int tokens : {64, 256}) {
        PlainProblem p = problem_of(a, b, 85, 136, 256);
        p.d = a == Recipe::f16 ? Format::f16 : Format::bf16;
        p.batch = 2;
        p.bias = p.gate = p.alpha_factor = has_all;
        if (has_all) p.alpha = -0.5f;
        test::check_emulated(p, kPath, [&](PlainOperands& operands) {
          return test::run_fp4_tiles(
              operands, emulator::random_order(3), Fp4TilesDivision{tokens, 1},
              [](gemm_detail::Fp4TilesPlan& plan) { EXPECT_TRUE(plan.params.is_direct); });
        });
      }
    }
  });
}

TEST(EmulatedFp4Tiles, RowsFarApart) {
  for_each_fp4_pair([](Recipe a, Recipe b) {
    PlainProblem p = problem_of(a, b, 67, 50, 320);
    p.extra_bytes = 48;
    p.batch = 3;
    check_fp4_tiles(p);
  });
}

/// A row's bits do not depend on the others, nor on the tile that it is in.
TEST(EmulatedFp4Tiles, RowsDoNotDependOnTheOthers) {
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    PlainProblem p = problem_of(Recipe::bf16, b, 90, 30, 224);
    p.family = InputFamily::normal;
    p.batch_invariant = true;
    PlainOperands all(p);
    ASSERT_TRUE(run(all, emulator::in_order(), Fp4TilesDivision{256, 1}));
    for (const std::int64_t m : {1, 40}) {
      PlainOperands some(p);
      some.set_rows(m);
      ASSERT_TRUE(run(some, emulator::random_order(9)));
      test::expect_same_rows(some, all);
    }
  }
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedFp4Tiles, MutantsAreRejected) {
  std::vector<test::Mutant<Fp4TilesParams>> mutants = test::scale_mutants<Fp4TilesParams>();
  mutants.push_back(
      {"a stage of K is left out", [](Fp4TilesParams& p) { --p.k_stages, --p.block_stages; }});
  for (const auto& mutant : mutants) {
    for (const std::int64_t k : {480, 512}) {  // scales of stages one by one, and four side by side
      const bool together = k == 512;
      if (together && &mutant == &mutants.front()) continue;  // which have no stride
      for_each_fp4_pair([&](Recipe a, Recipe b) {
        test::expect_rejected(mutant, problem_of(a, b, 20, 18, k), kPath,
                              [&](PlainOperands& operands, const Change& change) {
                                return run(operands, emulator::in_order(), std::nullopt,
                                           [&](Fp4TilesParams& p) {
                                             EXPECT_EQ(p.scale_vectors, together);
                                             change(p);
                                           });
                              });
      });
    }
  }
}

}  // namespace
}  // namespace blockscale
