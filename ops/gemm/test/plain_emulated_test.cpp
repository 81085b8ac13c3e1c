// The plain kernels in the emulator: every pair, layout, edge and epilogue against the float64
// reference, under random schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using gemm_detail::PlainGemmPlan;
using test::buffers_of;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;

constexpr PlainTile kTiles[] = {PlainTile::large, PlainTile::medium, PlainTile::small,
                                PlainTile::few_rows};

using Change = std::function<void(PlainGemmParams&)>;

/// Runs a problem, whose launch `change` may spoil. False if the emulator has something to report.
bool run(PlainOperands& operands, std::optional<PlainTile> tile, const emulator::Options& options,
         const Change& change = nullptr, const cuda::Chip& chip = test::chip_of(4)) {
  const GemmArguments x = gemm_detail::validated(operands.arguments(), {});
  const PlainGemmPlan plan = gemm_detail::plan_plain_gemm(x, chip, tile);
  PlainGemmParams params = plan.product->params;
  if (change) change(params);
  const auto kernel = static_cast<std::size_t>(plan.product->kernel);
  const emulator::Report report = emulator::launch(
      plan.product->shape, buffers_of(operands), emulator::compiled_for(plan.architecture, options),
      [&] { test::run_kernel(kernel, params); });
  EXPECT_TRUE(report.ok()) << plan.str() << report.text();
  EXPECT_TRUE(operands.d().is_poison_intact());
  return report.ok();
}

/// The plain kernels' usual error, though the emulator sums products exactly.
gemm_detail::ErrorLimit limit_of(const PlainProblem& p) {
  return p.exact ? gemm_detail::ErrorLimit{}
                 : gemm_detail::usual_error(gemm_detail::GemmPath::plain);
}

/// The largest error as a part of what is allowed.
double largest_share(const PlainProblem& p, std::optional<PlainTile> tile,
                     const emulator::Options& options) {
  PlainOperands operands(p);
  SCOPED_TRACE(p.str());
  if (!run(operands, tile, options)) return 0;
  return test::compare(operands.arguments(), limit_of(p)).largest_share;
}

void check(const PlainProblem& p, std::optional<PlainTile> tile = std::nullopt,
           const emulator::Options& options = emulator::in_order()) {
  EXPECT_LE(largest_share(p, tile, options), 1)
      << p.str() << (tile ? " tile " + std::to_string(static_cast<int>(*tile)) : "");
}

TEST(EmulatedPlainGemm, EveryPair) {
  double largest = 0;
  test::for_each_pair([&](Recipe a, Recipe b) {
    PlainProblem p;
    p.a = a;
    p.b = b;
    p.m = 5;
    p.n = 19;
    p.k = 288;
    const double share = largest_share(p, std::nullopt, emulator::in_order());
    EXPECT_LE(share, 1) << p.str();
    largest = std::max(largest, share);
  });
  EXPECT_GT(largest, 0.1);  // what is compared is not the same thing
}

/// Sums that are exact: nothing but D's own rounding is allowed.
TEST(EmulatedPlainGemm, ExactSumsOfEveryPair) {
  test::for_each_pair([&](Recipe a, Recipe b) {
    PlainProblem p;
    p.a = a;
    p.b = b;
    p.m = 17;
    p.n = 9;
    p.k = 160;
    p.exact = true;
    check(p);
  });
}

TEST(EmulatedPlainGemm, EveryLayoutOfBothSides) {
  for (const auto& [a, b] : {std::pair{Recipe::nvfp4, Recipe::nvfp4},
                             {Recipe::mxfp4, Recipe::mxfp4},
                             {Recipe::mxfp8_e5m2, Recipe::mxfp6_e3m2},
                             {Recipe::fp8_1x128_ue8m0, Recipe::mxfp6_e2m3},
                             {Recipe::fp8_32x128, Recipe::nvfp4},
                             {Recipe::fp8_row, Recipe::mxfp8_e4m3},
                             {Recipe::fp8_128x128, Recipe::fp8_1x128_ue8m0}}) {
    for (const ScaleLayout a_layout : test::layouts_of(a)) {
      for (const ScaleLayout b_layout : test::layouts_of(b)) {
        PlainProblem p;
        p.a = a;
        p.b = b;
        p.a_layout = a_layout;
        p.b_layout = b_layout;
        p.m = 20;
        p.n = 73;
        p.k = 224;
        check(p, PlainTile::medium);
        p.m = 3;
        check(p, PlainTile::few_rows, emulator::random_order(3));
      }
    }
  }
}

TEST(EmulatedPlainGemm, EveryTileAndEdge) {
  for (const PlainTile tile : kTiles) {
    for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::nvfp4}) {
      const PlainGemmConfig c = kPlainGemmKernels[kPlainGemmKernels.index(tile, Format::bf16)];
      PlainProblem p;
      p.a = a;
      p.batch = 2;
      p.m = c.rows + 3;
      p.n = c.columns + 5;
      p.k = c.depth * 2 + 48;
      check(p, tile, emulator::random_order(1));
      p.batch = 1;
      p.m = c.rows;
      p.n = c.columns;
      for (const std::int64_t k : {16, c.depth, c.depth * 7}) {
        p.k = k;
        check(p, tile, emulator::random_order(2));
      }
    }
  }
}

/// Their tiles have as many stages as shared memory holds.
TEST(EmulatedPlainGemm, EveryArchitecture) {
  for (const cuda::Chip& chip : test::chips_of_every_architecture()) {
    for (const PlainTile tile : kTiles) {
      PlainProblem p;
      p.a = Recipe::mxfp8_e4m3;
      p.b = Recipe::nvfp4;
      p.m = 9;
      p.n = 40;
      p.k = 288;
      PlainOperands operands(p);
      SCOPED_TRACE(chip.name + ", tile " + std::to_string(static_cast<int>(tile)));
      ASSERT_TRUE(run(operands, tile, emulator::in_order(), nullptr, chip));
      EXPECT_EQ(test::compare(operands.arguments(), limit_of(p)).violations, 0);
    }
  }
}

TEST(EmulatedPlainGemm, RowsThatBeginAnywhere) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_tensor_e5m2, Recipe::mxfp6_e2m3,
                              Recipe::nvfp4, Recipe::bf16, Recipe::f32}) {
    const PlainTile few = recipe == Recipe::f32 ? PlainTile::small : PlainTile::few_rows;
    const int size = std::max(1, format_traits(recipe_traits(recipe).element).bits / 8);
    for (const std::int64_t odd : {0, 1, 4, 8}) {
      PlainProblem p;
      p.a = p.b = recipe;
      p.m = 7;
      p.n = 18;
      p.k = recipe_traits(recipe).ragged ? 131 : 160;
      p.batch = 2;
      p.odd_bytes = odd * size;
      p.extra_bytes = (odd == 8 ? 3 : odd) * size;
      check(p, PlainTile::medium);
      check(p, few, emulator::random_order(4));
    }
  }
}

TEST(EmulatedPlainGemm, Epilogues) {
  test::for_each_epilogue(40, [](PlainProblem p) {
    p.a = p.b = Recipe::nvfp4;
    for (const std::int64_t m : {18, 2}) {
      p.m = m;
      check(p);
    }
  });
}

TEST(EmulatedPlainGemm, NoKAndOneElement) {
  PlainProblem p;
  p.k = 0;
  p.a = p.b = Recipe::fp8_row;
  p.beta = 1;
  p.bias = true;
  check(p);
  p.k = 1;
  p.m = p.n = 1;
  check(p);
  p.a = p.b = Recipe::f32;
  p.k = 1;
  check(p, PlainTile::medium);
}

/// What a kernel that is wrong in one place gives.
TEST(EmulatedPlainGemm, MutantsAreRejected) {
  struct Mutant {
    const char* name;
    Change change;
  };
  const auto a_or_b = [](PlainGemmParams& p) -> PlainOperand& {
    return p.operands[0].scales.data == nullptr ? p.operands[1] : p.operands[0];
  };
  const Mutant mutants[] = {
      {"a block of K is left out", [](PlainGemmParams& p) { p.k -= 32; }},
      {"a scale is its neighbour's", [&](PlainGemmParams& p) { a_or_b(p).scales.k_stride = 0; }},
      {"a row has another one's scales",
       [&](PlainGemmParams& p) { p.operands[1].scales.row_stride = 0; }},
      {"tensor scales are inverted",
       [](PlainGemmParams& p) {
         for (PlainOperand& x : p.operands) x.tensor_scale.divides = !x.tensor_scale.divides;
       }},
  };
  for (const Mutant& mutant : mutants) {
    for (const Recipe a : {Recipe::nvfp4, Recipe::bf16, Recipe::f32}) {
      for (const std::int64_t m : {9, 70}) {
        PlainProblem p;
        p.a = a;
        p.m = m;
        p.n = 18;
        p.k = 512;
        p.family = InputFamily::normal;
        SCOPED_TRACE(mutant.name + (" " + p.str()));
        PlainOperands operands(p);
        ASSERT_TRUE(run(operands, std::nullopt, emulator::in_order(), mutant.change));
        EXPECT_GT(test::compare(operands.arguments(), limit_of(p)).violations, m * p.n / 2);
      }
    }
  }
}

/// A x B of one row each, of f32 numbers in `a` and `b`'s types.
float dot(Format a, Format b, const std::vector<float>& x, const std::vector<float>& y) {
  PlainProblem p;
  p.a = plain_recipe(a);
  p.b = plain_recipe(b);
  p.m = p.n = 1;
  p.k = static_cast<std::int64_t>(x.size());
  PlainOperands operands(p);
  const auto fill = [](test::OddCopy& to, Format format, const std::vector<float>& numbers) {
    std::vector<std::uint8_t> bytes(to.bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      test::store_number(bytes, format, static_cast<std::int64_t>(i),
                         encode(format, numbers[i], Overflow::propagate));
    }
    std::copy(bytes.begin(), bytes.end(), to.at());
  };
  fill(operands.a_values(), a, x);
  fill(operands.b_values(), b, y);
  EXPECT_TRUE(run(operands, std::nullopt, emulator::in_order()));
  return *static_cast<const float*>(operands.arguments().d.data);
}

TEST(EmulatedPlainGemm, NanAndInfinityPropagateAsIeee) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Format a : {Format::f32, Format::f16, Format::bf16}) {
    for (const Format b : {Format::f32, Format::f16, Format::bf16}) {
      SCOPED_TRACE(std::string(format_traits(a).name) + " x " + format_traits(b).name);
      EXPECT_EQ(dot(a, b, {1, kInf, 2}, {1, 1, 1}), kInf);
      EXPECT_EQ(dot(a, b, {1, kInf, 2}, {1, -1.1f, 1}), -kInf);
      EXPECT_EQ(dot(a, b, {1, 1.1f, 2}, {1, -kInf, 1}), -kInf);
      EXPECT_EQ(dot(a, b, {1, kInf, 2}, {1, kInf, 1}), kInf);
      EXPECT_TRUE(std::isnan(dot(a, b, {1, kInf, 2}, {1, 0, 1})));
      EXPECT_TRUE(std::isnan(dot(a, b, {kInf, kInf}, {1, -1})));
      EXPECT_TRUE(std::isnan(dot(a, b, {1, kNan, 2}, {1, 0, 1})));
      EXPECT_TRUE(std::isnan(dot(a, b, {1, 2}, {kNan, 1})));
      EXPECT_EQ(dot(a, b, {1, 2, 3}, {1, 1, 1}), 6.0f);
    }
  }
  // What bf16 would round to infinity.
  EXPECT_EQ(dot(Format::f32, Format::f32, {0x1.fffffep127f}, {0.5f}), 0x1.fffffep126f);
}

TEST(EmulatedPlainGemm, NanScaleSpoilsItsRowOnly) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128_ue8m0}) {
    PlainProblem p;
    p.a = p.b = recipe;
    p.m = 4;
    p.n = 6;
    p.k = 128;
    p.family = InputFamily::normal;
    PlainOperands operands(p);
    operands.a().set_scale(1, 0, format_traits(recipe_traits(recipe).scale).nan_code);
    ASSERT_TRUE(run(operands, std::nullopt, emulator::in_order()));
    const auto* const d = static_cast<const float*>(operands.arguments().d.data);
    for (int i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(d[i]), i / 6 == 1) << i;
  }
}

/// Rows that are promised the same bits whatever is beside them have them by every tile.
TEST(EmulatedPlainGemm, BatchInvariantRows) {
  for (const Recipe a : {Recipe::bf16, Recipe::nvfp4}) {
    PlainProblem p;
    p.a = a;
    p.m = 140;
    p.n = 30;
    p.k = 224;
    p.family = InputFamily::normal;
    p.batch_invariant = true;
    PlainOperands all(p);
    ASSERT_TRUE(run(all, PlainTile::large, emulator::in_order()));
    for (const std::int64_t m : {1, 17, 70}) {
      PlainOperands some(p);
      some.set_rows(m);
      ASSERT_TRUE(run(some, std::nullopt, emulator::in_order()));
      EXPECT_TRUE(std::equal(some.d().bytes().begin(),
                             some.d().bytes().begin() + test::TestMatrix::kGuard + m * p.n * 4,
                             all.d().bytes().begin()))
          << m;
    }
  }
}

}  // namespace
}  // namespace blockscale
