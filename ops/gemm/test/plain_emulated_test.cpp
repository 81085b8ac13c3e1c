// The plain kernels in the emulator: every pair, layout, edge and epilogue against the float64
// reference, under random schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/kernels/plain.cuh"
#include "ops/gemm/test/plain_problem.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using gemm_detail::PlainGemmPlan;
using test::InputFamily;
using test::PlainOperands;
using test::PlainProblem;

constexpr PlainTile kTiles[] = {PlainTile::large, PlainTile::medium, PlainTile::few_rows};

template <int kIndex = 0>
void run_kernel(int index, const PlainGemmParams& params) {
  if constexpr (kIndex < kPlainGemmKernels.kCount) {
    if (index == kIndex) return plain_gemm_kernel<kPlainGemmKernels[kIndex]>(params);
    run_kernel<kIndex + 1>(index, params);
  }
}

std::vector<emulator::Buffer> buffers_of(PlainOperands& operands) {
  const GemmArguments& x = operands.arguments();
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", operands.a_values().at(), operands.a_values().bytes(),
                       BufferUse::input),
      emulator::buffer("b", operands.b_values().at(), operands.b_values().bytes(),
                       BufferUse::input),
      emulator::buffer("a scales", x.a.scales, bytes(test::extent_of_scales(x.a)),
                       BufferUse::input),
      emulator::buffer("b scales", x.b.scales, bytes(test::extent_of_scales(x.b)),
                       BufferUse::input),
      emulator::buffer("d", operands.d().bytes().data(), operands.d().bytes().size(),
                       BufferUse::output),
      emulator::input("c", operands.c().bytes()),
      emulator::input("bias", operands.bias().bytes()),
      emulator::buffer("factor", &operands.factor(), sizeof(float), BufferUse::input)};
  for (const auto& [name, view] : {std::pair{"a tensor scale", x.a}, {"b tensor scale", x.b}}) {
    if (view.tensor_scale == nullptr) continue;
    const std::int64_t count = (view.batch - 1) * view.tensor_scale_batch_stride + 1;
    buffers.push_back(
        emulator::buffer(name, view.tensor_scale, bytes(count * 4), BufferUse::input));
  }
  std::erase_if(buffers, [](const emulator::Buffer& b) { return b.bytes == 0; });
  return buffers;
}

/// Runs a problem and returns the largest ratio of an error to the bound's unit.
double largest_ratio(const PlainProblem& p, std::optional<PlainTile> tile,
                     const emulator::Options& options) {
  PlainOperands operands(p);
  const GemmArguments x = gemm_detail::validated(operands.arguments(), {});
  const PlainGemmPlan plan = gemm_detail::plan_plain_gemm(x, 4, nullptr, tile);
  SCOPED_TRACE(p.str() + ": " + plan.str());
  const PlainGemmParams params = plan.product->params;
  const emulator::Report report =
      emulator::launch(plan.product->shape, buffers_of(operands), options,
                       [&] { run_kernel(plan.product->kernel, params); });
  EXPECT_TRUE(report.ok()) << report.text();
  if (!report.ok()) return 0;
  EXPECT_TRUE(operands.d().is_poison_intact());
  return test::compare(operands.arguments(), 0).largest_ratio;
}

/// Of the plain kernels, whose products the emulator sums exactly.
constexpr double kMostRatio = 64;

void check(const PlainProblem& p, std::optional<PlainTile> tile = std::nullopt,
           const emulator::Options& options = emulator::in_order()) {
  EXPECT_LE(largest_ratio(p, tile, options), p.exact ? 0 : kMostRatio)
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
    const double ratio = largest_ratio(p, std::nullopt, emulator::in_order());
    EXPECT_LE(ratio, kMostRatio) << p.str();
    largest = std::max(largest, ratio);
  });
  std::printf("largest %.2f\n", largest);
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
  for (const auto& [a, b] :
       {std::pair{Recipe::nvfp4, Recipe::nvfp4}, {Recipe::mxfp4, Recipe::mxfp4},
        {Recipe::mxfp8_e5m2, Recipe::mxfp6_e3m2}, {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
        {Recipe::fp8_32x128, Recipe::nvfp4}, {Recipe::fp8_row, Recipe::nvfp4},
        {Recipe::fp8_128x128, Recipe::fp8_1x128_ue8m0}}) {
    for (const ScaleLayout a_layout : test::layouts_of(a)) {
      for (const ScaleLayout b_layout : test::layouts_of(b)) {
        PlainProblem p;
        p.a = a;
        p.b = b;
        p.a_layout = a_layout;
        p.b_layout = b_layout;
        p.m = 20;
        p.n = 137;
        p.k = 352;
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

TEST(EmulatedPlainGemm, RowsThatBeginAnywhere) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_tensor_e5m2, Recipe::mxfp6_e2m3,
                              Recipe::nvfp4, Recipe::bf16, Recipe::f32}) {
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
      check(p, PlainTile::few_rows, emulator::random_order(4));
    }
  }
}

TEST(EmulatedPlainGemm, Epilogues) {
  for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
    for (const std::int64_t extra : {0, 1, 2}) {
      for (const TensorScaleSense sense :
           {TensorScaleSense::multiplier, TensorScaleSense::divisor}) {
        PlainProblem p;
        p.a = p.b = Recipe::nvfp4;
        p.m = 18;
        p.n = extra == 1 ? 41 : 40;
        p.batch = 2;
        p.b_shared = extra == 2;
        p.d = d;
        p.family = InputFamily::normal;
        p.extra_columns = extra;
        p.alpha = -0.01f;
        p.alpha_factor = true;
        p.beta = 2;
        p.bias = true;
        p.sense = sense;
        check(p);
        p.m = 2;
        check(p);
      }
    }
  }
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

}  // namespace
}  // namespace blockscale
