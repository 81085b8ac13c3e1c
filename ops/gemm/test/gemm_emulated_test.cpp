// The FP8 kernels in the emulator: every configuration, edge, layout and epilogue, against the
// float64 reference, under random schedules.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/expect_error.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using gemm_detail::Fp8GemmPlan;
using gemm_detail::Fp8LaunchConfig;
using test::InputFamily;
using test::Random;

struct Problem {
  std::int64_t m = 64, n = 64, k = 256, batch = 1;
  Recipe a = Recipe::fp8_1x128, b = Recipe::fp8_128x128;
  ScaleLayout layout = ScaleLayout::row_major;
  std::optional<ScaleLayout> a_layout = {};  // if not the same
  Format d = Format::bf16;
  float alpha = 1, beta = 0;
  bool bias = false, gate = false;
  std::int64_t extra_columns = 0;  // of D and C, between rows
  std::int64_t odd_bytes = 0;      // before A's and B's values, and more between their rows
  bool is_column_split = false;    // expected of the plan, as the next
  bool is_gemv = false;
  std::optional<bool> copies_scales = {};
  bool leaves_scales = false;  // of the kernel that is expected
};

std::string text_of(const Problem& p) {
  return std::to_string(p.m) + " x " + std::to_string(p.n) + " x " + std::to_string(p.k) +
         " batch " + std::to_string(p.batch) + " " + recipe_traits(p.a).name + " x " +
         recipe_traits(p.b).name + " " + scale_layout_traits(p.layout).name + " to " +
         format_traits(p.d).name;
}

/// Runs a problem by a choice (or the plan's own) under one schedule.
void check(const Problem& p, const std::optional<Fp8LaunchConfig>& choice,
           const emulator::Options& options) {
  Random random(static_cast<std::uint64_t>(p.m * 31 + p.n * 7 + p.k));
  test::OperandOptions operand;
  operand.layout = p.a_layout.value_or(p.layout);
  operand.batch = p.batch;
  operand.extra_row_bytes = (16 - p.k % 16) % 16 + p.odd_bytes;
  operand.smallest_scales = false;
  const test::TestOperand a(random, p.a, p.m, p.k, InputFamily::adversarial, operand);
  operand.layout = p.layout;
  const test::TestOperand b(random, p.b, p.n, p.k, InputFamily::adversarial, operand);
  test::TestMatrix c(p.d, p.m, p.n, p.batch, p.extra_columns);
  test::TestMatrix d(p.d, p.m, p.n, p.batch, p.extra_columns);
  test::TestMatrix bias(Format::f32, 1, p.n);
  c.fill(random, InputFamily::normal);
  bias.fill(random, InputFamily::normal);
  test::TestMatrix gate(Format::bf16, 1, p.n);
  gate.fill(random, InputFamily::normal);
  test::AlignedCopy a_values = test::copy_of_values(a.view(), p.odd_bytes);
  test::AlignedCopy b_values = test::copy_of_values(b.view(), p.odd_bytes);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.a.values = a_values.at();
  x.b.values = b_values.at();
  constexpr float kNoScale = NAN;
  if (p.k == 0) x.a.scales = x.b.scales = &kNoScale;  // an empty tensor may have an address
  x.d = d.view();
  x.alpha = p.alpha;
  x.beta = p.beta;
  if (p.beta != 0) x.c = c.view();
  if (p.bias) x.bias = bias.view().data;
  if (p.gate) x.gate = gate.view().data;
  x.gate_dtype = Format::bf16;
  const GemmArguments validated = gemm_detail::validated(x, {});
  const std::int64_t needed =
      gemm_detail::plan_fp8_gemm(validated, test::chip_of(4), choice).workspace_bytes;
  EXPECT_EQ(needed != 0, p.odd_bytes != 0);
  test::AlignedCopy workspace(nullptr, needed, 0);
  Fp8GemmPlan plan =
      gemm_detail::plan_fp8_gemm(validated, test::chip_of(4), choice, workspace.at());
  SCOPED_TRACE(text_of(p) + ": " + plan.str());
  const auto tiles = test::tile_steps(plan);
  ASSERT_EQ(plan.steps.back().of<Fp8GemvParams>() != nullptr, p.is_gemv);
  ASSERT_EQ(tiles.empty(), p.is_gemv);
  if (p.is_column_split) {
    ASSERT_EQ(tiles.size(), 2u);
  }
  if (p.copies_scales) {
    const int kernel = static_cast<int>(tiles[0]->kernel);
    ASSERT_EQ(kFp8GemmKernels[kernel].copies_scales, *p.copies_scales);
    ASSERT_EQ(kFp8GemmKernels[kernel].leaves_scales, p.leaves_scales);
  }
  using emulator::BufferUse;
  const auto bytes_of = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", a_values.at(), bytes_of(a_values.bytes()), BufferUse::input),
      emulator::buffer("b", b_values.at(), bytes_of(b_values.bytes()), BufferUse::input),
      emulator::buffer("a scales", x.a.scales, bytes_of(test::scale_bytes_of(x.a)),
                       BufferUse::input),
      emulator::buffer("b scales", x.b.scales, bytes_of(test::scale_bytes_of(x.b)),
                       BufferUse::input),
      emulator::buffer("d", d.bytes().data(), d.bytes().size(), BufferUse::output)};
  if (p.beta != 0) buffers.push_back(emulator::input("c", c.bytes()));
  if (p.bias) buffers.push_back(emulator::input("bias", bias.bytes()));
  if (p.gate) buffers.push_back(emulator::input("gate", gate.bytes()));
  if (!test::emulate(plan, buffers, options)) return;
  EXPECT_TRUE(d.is_poison_intact());
  // The emulator sums a k-block's products exactly.
  const test::ErrorReport error = test::compare(x, {64});
  EXPECT_EQ(error.violations, 0) << "largest " << error.largest_ratio;
}

/// The kernels that take scales of `b`, those for whole K where another has the same tile.
std::vector<Fp8GemmConfig> kernels_of(Recipe b) {
  const bool at_end = recipe_traits(b).block_k == 0;
  const bool blocks = recipe_traits(b).block_rows != 1 || at_end;
  std::vector<Fp8GemmConfig> kernels;
  for (const Fp8GemmConfig& c : kFp8GemmKernels.at) {
    if ((c.promotion == Promotion::blocks) != blocks || c.quantizes) continue;
    Fp8GemmConfig leaving = c;
    leaving.leaves_scales = true;
    const bool has_better = !c.leaves_scales && kFp8GemmKernels.find(leaving) >= 0;
    if (at_end ? !c.copies_scales && !has_better : !c.leaves_scales) kernels.push_back(c);
  }
  return kernels;
}

TEST(EmulatedGemm, EveryKernel) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::fp8_1x128, Recipe::fp8_row}) {
    const bool at_end = b == Recipe::fp8_row;
    for (const Fp8GemmConfig& kernel : kernels_of(b)) {
      const Fp8LaunchConfig choice = {kernel.rows, kernel.columns, 3, 1, 1};
      Problem p;
      p.b = b;
      p.m = choice.rows + 5;
      p.n = choice.columns + 24;
      p.k = kernel.copies_scales ? 400 : 304;  // four scales of a row, or three
      p.copies_scales = kernel.copies_scales;
      p.leaves_scales = kernel.leaves_scales;
      if (at_end) p.a = b;
      check(p, choice, emulator::in_order());
      if (!at_end || kernel.leaves_scales) check(p, choice, emulator::random_order(1));
    }
  }
}

TEST(EmulatedGemm, CopiesOfRows) {
  for (const std::int64_t bytes : {1040, 1041, 16, 7}) {
    for (const std::int64_t odd : {0, 16, 24}) {
      constexpr std::int64_t kRows = 21, kBatch = 2;
      std::vector<std::uint8_t> from(static_cast<std::size_t>(kBatch * kRows * (bytes + 64)));
      Random random(5);
      for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
      AlignRowsParams p;
      p.from = from.data() + odd;
      p.from_row_stride = bytes + odd;
      p.from_batch_stride = kRows * p.from_row_stride;
      p.rows = kRows;
      p.batch = kBatch;
      p.bytes = bytes;
      std::vector<std::uint8_t> to(static_cast<std::size_t>(kBatch * kRows * p.to_row_stride()));
      p.to = to.data();
      LaunchShape shape;
      shape.grid = {3};
      shape.block = {kAlignRowsThreads};
      const std::vector<emulator::Buffer> buffers = {
          emulator::buffer("from", from.data(), from.size(), emulator::BufferUse::input),
          emulator::buffer("to", to.data(), to.size(), emulator::BufferUse::output)};
      const emulator::Report report = emulator::launch(shape, buffers, emulator::random_order(1),
                                                       [&] { align_rows_kernel(p); });
      ASSERT_TRUE(report.ok()) << report.text();
      for (std::int64_t row = 0; row < kRows * kBatch; ++row) {
        ASSERT_EQ(std::memcmp(p.to + row * p.to_row_stride(), p.from + row * p.from_row_stride,
                              static_cast<std::size_t>(bytes)),
                  0)
            << row;
      }
    }
  }
}

TEST(EmulatedGemm, ClustersDivideK) {
  for (const std::uint32_t split : {2u, 3u}) {
    Problem p;
    p.n = 40;
    p.k = 640;
    check(p, Fp8LaunchConfig{64, 32, 3, split, 1}, emulator::in_order());
    check(p, Fp8LaunchConfig{64, 32, 3, split, 1}, emulator::random_order(2));
    p.n = 150;
    check(p, Fp8LaunchConfig{128, 128, 3, split, 1}, emulator::random_order(2));
  }
}

TEST(EmulatedGemm, PersistentBlocksGoRoundTheRing) {
  Problem p;
  p.m = 64;
  p.n = 32 * 11;
  p.k = 640;
  check(p, Fp8LaunchConfig{64, 32, 4, 1, 1}, emulator::random_order(3));
}

TEST(EmulatedGemm, BlocksStoreTileAfterTile) {
  for (const Fp8GemmConfig& kernel : kernels_of(Recipe::fp8_128x128)) {
    const Fp8LaunchConfig choice = {kernel.rows, kernel.columns, 3, 1, 1};
    Problem p;
    p.a_layout = ScaleLayout::mn_major;
    p.copies_scales = kernel.copies_scales;
    p.m = choice.rows + (kernel.copies_scales ? 4 : 5);
    p.n = choice.columns + 24;
    p.k = 1000;
    p.batch = 2;
    check(p, choice, emulator::in_order());
    check(p, choice, emulator::random_order(6));
  }
}

TEST(EmulatedGemm, ScalesCopiedByChunks) {
  constexpr ScaleLayout kRows = ScaleLayout::row_major, kColumns = ScaleLayout::mn_major;
  struct Case {
    ScaleLayout a, b;
    std::int64_t k;  // chunks end in the middle where no row of scales must begin at 16 bytes
  };
  for (const Case& c :
       {Case{kRows, kRows, 500}, Case{kRows, kColumns, 1000}, Case{kColumns, kRows, 1024},
        Case{kColumns, kColumns, 840}, Case{kColumns, kColumns, 100}}) {
    Problem p;
    p.m = 200;
    p.k = c.k;
    p.a_layout = c.a;
    p.layout = c.b;
    p.copies_scales = true;
    p.n = 4 * 128 - 8;
    const int rows = c.a == kRows ? 128 : 192;
    check(p, Fp8LaunchConfig{rows, 128, 3, 1, 1}, emulator::random_order(7));
    p.n = 8 * 128 - 8;  // a tile of 96 on blocks 3 and 4, of which a box of rows has both
    check(p, Fp8LaunchConfig{192, 96, 3, 1, 1}, emulator::random_order(8));
  }
}

TEST(EmulatedGemm, ManyRowsLoadOtherScales) {
  for (const int rows : {128, 192}) {
    Problem p;
    p.m = 200;
    p.n = 300;
    p.k = 840;  // seven scales of a row: no row but the first begins at 16 bytes
    p.copies_scales = false;
    const Fp8LaunchConfig choice = {rows, 128, 3, 1, 1};
    check(p, choice, emulator::random_order(7));
    p.a = Recipe::fp8_1x128_ue8m0;
    p.b = Recipe::fp8_128x128_ue8m0;
    check(p, choice, emulator::random_order(8));
  }
}

TEST(EmulatedGemm, LastColumnsBesideATailWave) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::fp8_1x128}) {
    Problem p;
    p.b = b;
    p.layout = b == Recipe::fp8_1x128 ? ScaleLayout::mn_major : ScaleLayout::row_major;
    p.m = 256;
    p.n = 6 * 128 + 32;
    p.k = 2048;
    p.beta = 1;
    p.bias = true;
    p.gate = b == Recipe::fp8_1x128;
    p.is_column_split = true;
    check(p, {}, emulator::random_order(5));
  }
}

TEST(EmulatedGemm, RecipesAndLayouts) {
  const Recipe recipes[] = {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_32x128,
                            Recipe::fp8_1x128_ue8m0, Recipe::fp8_128x128_ue8m0};
  for (const Recipe recipe : recipes) {
    for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
      Problem p;
      p.m = 33;
      p.n = 72;
      p.k = 272;
      p.a = p.b = recipe;
      p.layout = layout;
      check(p, {}, emulator::in_order());
    }
  }
  for (const ScaleLayout layout : {ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
    Problem p;
    p.k = 700;
    p.a = p.b = Recipe::fp8_1x128_ue8m0;
    p.layout = layout;
    check(p, {}, emulator::in_order());
  }
}

TEST(EmulatedGemm, EdgesAndEpilogues) {
  for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
    for (const std::int64_t extra : {0, 1}) {
      Problem p;
      p.m = 17;
      p.n = extra == 0 ? 40 : 41;
      p.k = 130;
      p.batch = 2;
      p.d = d;
      p.extra_columns = extra;
      p.alpha = d == Format::f16 ? 0 : -0.5f;  // adversarial sums are beyond f16
      p.beta = 2;
      p.bias = true;
      check(p, {}, emulator::in_order());
      p.gate = true;
      check(p, {}, emulator::in_order());
      p.a = p.b = Recipe::fp8_row;
      check(p, {}, emulator::in_order());
    }
  }
}

TEST(EmulatedGemm, RowsThatBeginAnywhere) {
  for (const std::int64_t odd : {1, 7, 8}) {
    Problem p;
    p.m = 21;
    p.n = 35;
    p.k = odd == 8 ? 520 : 523;
    p.batch = 2;
    p.odd_bytes = odd;
    check(p, {}, emulator::in_order());
    check(p, {}, emulator::random_order(7));
  }
}

TEST(EmulatedGemm, BlocksOfATimesScalesForAllOfK) {
  for (const Recipe b : {Recipe::fp8_row, Recipe::fp8_tensor}) {
    for (const Recipe a : {Recipe::fp8_1x128, Recipe::fp8_1x128_ue8m0}) {
      for (const std::int64_t m : {1, 8, 33, 140}) {
        Problem p;
        p.a = a;
        p.b = b;
        p.m = m;
        p.n = 75;
        p.k = m == 1 ? 4112 : 272;
        p.batch = m == 8 ? 2 : 1;
        p.is_gemv = m == 1 && b == Recipe::fp8_tensor;
        check(p, {}, emulator::in_order());
        check(p, {}, emulator::random_order(6));
      }
    }
  }
}

TEST(EmulatedGemm, FewRows) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_128x128_ue8m0, Recipe::fp8_row}) {
    for (const std::int64_t m : {1, 3, 8}) {
      Problem p;
      p.a = p.b = recipe;
      p.m = m;
      p.n = 75;
      p.k = 16 * 75;
      p.batch = m == 3 ? 2 : 1;
      p.d = m == 8 ? Format::f32 : Format::bf16;
      p.alpha = 0.5f;
      p.beta = 1;
      p.bias = true;
      check(p, {}, emulator::in_order());
      p.gate = true;
      check(p, {}, emulator::random_order(4));
    }
  }
}

TEST(EmulatedGemm, OneRow) {
  const Recipe recipes[] = {Recipe::fp8_128x128, Recipe::fp8_128x128_ue8m0, Recipe::fp8_tensor,
                            Recipe::fp8_row};
  for (const Recipe b : recipes) {
    for (const std::int64_t k : {4112, 7296}) {  // 4 and 8 warps divide K
      Problem p;
      p.a = recipe_traits(b).block_k == 0 ? b : Recipe::fp8_1x128;
      p.b = b;
      p.a_layout = k == 4112 ? ScaleLayout::mn_major : ScaleLayout::row_major;
      p.m = 1;
      p.n = k == 4112 ? 27 : 11;
      p.k = k;
      p.batch = k == 4112 ? 2 : 1;
      p.d = k == 4112 ? Format::f32 : Format::bf16;
      p.alpha = 0.5f;
      p.beta = k == 4112 ? 0 : 2;
      p.bias = k != 4112;
      p.is_gemv = true;
      check(p, {}, emulator::in_order());
      check(p, {}, emulator::random_order(8));
    }
  }
}

TEST(EmulatedGemm, OneRowOneColumnAndNoK) {
  check({.m = 1, .n = 1, .k = 16}, {}, emulator::in_order());
  Problem p;
  p.k = 0;
  p.beta = 1;
  check(p, {}, emulator::in_order());
  p.m = 200;
  p.a = p.b = Recipe::fp8_row;  // whose scales the epilogue has, where there are some
  check(p, Fp8LaunchConfig{128, 128, 3, 1, 1}, emulator::in_order());
}

}  // namespace
}  // namespace blockscale
