// Which kernels take a problem, without a GPU.
#include "ops/quantize/cuda_kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/quantize/cuda_plan_test_support.h"

namespace blockscale {
namespace {

using quantize_detail::plan_quantize;
using quantize_detail::QuantizePlan;
using test::arguments_of;
using test::kinds_of;
using test::plan_of;
using test::Problem;
using test::with_operands;
using testing::ElementsAre;

/// Thread blocks wait for each other only where a quarter of the device holds all who do.
TEST(KernelChoice, ReadsStripesOnceWhereTheDeviceHoldsTheirTeams) {
  Problem p{.recipe = Recipe::fp8_64x128, .rows = 500, .batch = 2};
  const auto plan_with = [&](std::int64_t k, Format dtype, int multiprocessors) {
    p.k = k;
    p.dtype = dtype;
    p.options = with_operands(InputTransform::rms_norm, dtype, 1, k);
    return plan_quantize(arguments_of(p), p.options, {multiprocessors}, nullptr);
  };
  const auto are = [](const QuantizePlan& plan, QuantizeKernel first, QuantizeKernel second) {
    EXPECT_THAT(kinds_of(plan), ElementsAre(first, second)) << plan.str();
  };
  const QuantizePlan plan = plan_with(8192, Format::bf16, 132);
  are(plan, QuantizeKernel::clear, QuantizeKernel::stripe);
  const auto& [clear, stripe] = std::pair(plan.steps[0], plan.steps[1]);
  EXPECT_EQ(stripe.shape.grid.x, 4u * 32);  // 4 of the 8 stripes have a team, which do the others
  EXPECT_EQ(stripe.params.stripes.teams, 4u);
  EXPECT_EQ(stripe.params.stripes.stripes, 2u * 4);
  EXPECT_EQ(stripe.params.grid.tiles, 2u * 4 * 32);
  EXPECT_EQ(stripe.params.grid.across.divisor, 32u);
  EXPECT_EQ(clear.params.stripes.words, 2u * 4 * 32 * 64);
  EXPECT_EQ(stripe.params.stripes.slots, 2u);
  // One prefetches the first tile of each thread block, beside one of the call before.
  EXPECT_EQ(clear.shape.grid.x, stripe.shape.grid.x);
  EXPECT_TRUE(clear.params.prefetches && !stripe.params.prefetches);
  const auto shared_bytes = [](const QuantizePlan::Step& step) {
    return kReservedSharedBytes + step.shape.dynamic_shared_bytes;
  };
  EXPECT_EQ(shared_bytes(clear) + shared_bytes(stripe), kSharedBytesOfMultiprocessor);
  EXPECT_THAT(plan.str(), testing::HasSubstr(", prefetches first tiles\n"));
  EXPECT_THAT(plan.str(), testing::HasSubstr(", 4 teams of 32 with 2 slots for 8 stripes"));
  EXPECT_EQ(plan.workspace_bytes, 2 * 4 * 32 * 128 * 4);

  // Beside all slots there is little room: who needs a tile prefetches it.
  p.batch = 5;
  const QuantizePlan large = plan_with(8192, Format::bf16, 132);
  EXPECT_EQ(large.last().params.stripes.slots, kStripeSlots);
  EXPECT_TRUE(!large.steps[0].params.prefetches && large.last().params.prefetches);
  EXPECT_LE(large.last().shape.dynamic_shared_bytes, 227u << 10);
  EXPECT_EQ(large.steps[0].shape.dynamic_shared_bytes, kQuantizeSharedBytes);
  p.batch = 2;

  are(plan_with(8188, Format::bf16, 132), QuantizeKernel::norm, QuantizeKernel::tall);
  are(plan_with(8200, Format::bf16, 132), QuantizeKernel::norm, QuantizeKernel::tall);
  are(plan_with(8200, Format::bf16, 1000), QuantizeKernel::norm, QuantizeKernel::tall);
  are(plan_with(4096, Format::f32, 132), QuantizeKernel::clear, QuantizeKernel::stripe);
  are(plan_with(4100, Format::f32, 132), QuantizeKernel::norm, QuantizeKernel::tall);
  are(plan_with(8192, Format::bf16, 127), QuantizeKernel::norm, QuantizeKernel::tall);
  are(plan_with(8192, Format::bf16, 128), QuantizeKernel::clear, QuantizeKernel::stripe);
  are(plan_with(8184, Format::bf16, 132), QuantizeKernel::clear, QuantizeKernel::stripe);
  EXPECT_EQ(plan_with(8184, Format::bf16, 132).last().params.stripes.per_matrix.divisor, 4u);
  p.x_address += 2;
  are(plan_with(8192, Format::bf16, 132), QuantizeKernel::norm, QuantizeKernel::tall);
  // In a stream with fewer multiprocessors, of those there.
  p.x_address -= 2;
  const auto limited = [&](int multiprocessors) {
    p.options.input.weight.columns = p.k;
    const auto a = arguments_of(p);
    const QuantizePlan all = plan_quantize(a, p.options, {132}, nullptr);
    const QuantizePlan some = plan_quantize(a, p.options, {132, multiprocessors}, nullptr);
    EXPECT_LE(some.workspace_bytes, all.workspace_bytes);
    return some;
  };
  are(limited(127), QuantizeKernel::norm, QuantizeKernel::tall);
  EXPECT_EQ(limited(128).last().params.stripes.teams, 4u);
  p.k = 2048;
  p.rows = 1000;
  EXPECT_EQ(limited(32).last().params.stripes.teams, 4u);
  are(limited(1), QuantizeKernel::norm, QuantizeKernel::tall);
  // Small matrices would leave most of their stripes empty; their blocks are not.
  p.rows = 32;
  p.batch = 16;
  p.recipe = Recipe::fp8_32x128;
  are(plan_with(8192, Format::bf16, 132), QuantizeKernel::norm, QuantizeKernel::tall);
  p.rows = 33;
  are(plan_with(8192, Format::bf16, 132), QuantizeKernel::clear, QuantizeKernel::stripe);
}

TEST(KernelChoice, TakesTheFormOfNvfp4ThatSuitsItsSize) {
  for (const bool large : {false, true}) {
    const std::int64_t rows = large ? 4096 : 2048;
    const QuantizePlan plan = plan_of({.recipe = Recipe::nvfp4, .rows = rows});
    EXPECT_EQ(kQuantizeKernels[plan.steps[1].kernel].large, large) << rows;
    const QuantizePlan f32 = plan_of({.recipe = Recipe::nvfp4, .dtype = Format::f32, .rows = rows});
    EXPECT_FALSE(kQuantizeKernels[f32.steps[1].kernel].large);
  }
}

TEST(KernelChoice, SpreadsSmallInputsOfFunctions) {
  QuantizeOptions options;
  const auto is_large = [&](Recipe recipe, std::int64_t mebibytes) {
    const QuantizePlan plan =
        plan_of({.recipe = recipe, .rows = mebibytes * 64, .k = 8192, .options = options});
    return std::pair(plan.steps[0].config.large, plan.steps[1].config.large);
  };
  options.input.transform = InputTransform::gelu_erf;
  EXPECT_EQ(is_large(Recipe::nvfp4, 2), std::pair(false, false));
  EXPECT_EQ(is_large(Recipe::nvfp4, 4), std::pair(true, false));
  EXPECT_EQ(is_large(Recipe::nvfp4, 8), std::pair(true, true));
  EXPECT_EQ(is_large(Recipe::fp8_tensor, 2), std::pair(false, false));
  EXPECT_EQ(is_large(Recipe::fp8_tensor, 4), std::pair(true, true));
  options = with_operands(InputTransform::rms_norm, Format::bf16, 1, 8192);
  EXPECT_EQ(is_large(Recipe::nvfp4, 1), std::pair(false, true));
  EXPECT_EQ(is_large(Recipe::nvfp4, 2), std::pair(false, false));
  EXPECT_EQ(is_large(Recipe::nvfp4, 4), std::pair(false, false));
  EXPECT_EQ(is_large(Recipe::nvfp4, 8), std::pair(false, true));
}

TEST(KernelChoice, SpreadsSmallModulate) {
  const QuantizeOptions options = with_operands(InputTransform::modulate, Format::bf16, 1, 8192);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    for (const auto& [mebibytes, large] : {std::pair{1, false}, {4, false}, {8, true}}) {
      const QuantizePlan plan =
          plan_of({.recipe = recipe, .rows = mebibytes * 64, .k = 8192, .options = options});
      ASSERT_EQ(plan.count, 2);
      for (const auto step : {0, 1}) {
        EXPECT_EQ(plan.steps[static_cast<std::size_t>(step)].config.large, large) << mebibytes;
      }
    }
  }
}

/// Of a small input: two thread blocks for each, and threads for half of its rows.
TEST(KernelChoice, HalvesBlocksOfGelu) {
  Problem p{.recipe = Recipe::fp8_128x128, .rows = 128, .k = 8192};
  p.options.input.transform = InputTransform::gelu_tanh;
  const QuantizePlan halves = plan_of(p);
  EXPECT_TRUE(halves_blocks(halves.last().config));
  EXPECT_EQ(halves.last().params.grid.rows, 64u);
  EXPECT_EQ(halves.last().shape.grid.x, 128u);
  EXPECT_EQ(halves.last().shape.block.x, 512u);
  p.rows = 64;
  EXPECT_EQ(plan_of(p).last().params.grid.rows, 32u);
  EXPECT_EQ(plan_of(p).last().shape.block.x, 256u);
  p.rows = 512;
  EXPECT_EQ(plan_of(p).last().params.grid.rows, 128u);
  p.rows = 128;
  p.dtype = Format::f32;
  EXPECT_EQ(plan_of(p).last().params.grid.rows, 128u);
}

/// Those of blocks that no kernel has read before.
TEST(KernelChoice, PrefetchesSmallTallBlocks) {
  Problem p{.recipe = Recipe::fp8_128x128, .rows = 64, .k = 8192};
  p.options.input.transform = InputTransform::swiglu;
  EXPECT_TRUE(is_spread_tall(plan_of(p).last().config));
  EXPECT_TRUE(plan_of(p).last().params.prefetches);
  p.options = with_operands(InputTransform::rms_norm, Format::bf16, 1, 8192);
  EXPECT_TRUE(is_spread_tall(plan_of(p).last().config));
  EXPECT_FALSE(plan_of(p).last().params.prefetches);
  p.options = {};
  p.rows = 1024;
  EXPECT_FALSE(plan_of(p).last().params.prefetches);
}

TEST(KernelChoice, FindsMaximaOfWholeRowsWithVectors) {
  const auto maximum_of = [](const Problem& p) {
    const QuantizePlan plan = plan_of(p);
    EXPECT_EQ(plan.count, 2);
    const auto& step = plan.steps[0];
    EXPECT_EQ(step.config.kernel, QuantizeKernel::maximum);
    EXPECT_EQ(step.shape.grid.x, step.params.maxima.count);
    EXPECT_LE(step.params.maxima.count, kMaxMaxima);
    EXPECT_EQ(step.shape.dynamic_shared_bytes,
              kQuantizeSharedBytes + step.shape.block.x * row_operand_bytes(step.config));
    EXPECT_TRUE(!streams_rows(step.config) || step.params.row_rounds == 1);
    return step;
  };
  const auto problem = [](std::int64_t rows, std::int64_t k, Format weight = Format::bf16) {
    Problem p{.recipe = Recipe::fp8_tensor, .rows = rows, .k = k};
    p.options = with_operands(InputTransform::rms_norm, weight, 1, k);
    return p;
  };
  for (const std::int64_t k : {8, 1032, 8192, 16384}) {
    for (const std::int64_t rows : {1, 64, 512, 4096}) {
      const auto step = maximum_of(problem(rows, k));
      EXPECT_TRUE(streams_rows(step.config)) << rows << " " << k;
      EXPECT_EQ(step.shape.grid.x,
                std::min(step.params.grid.tiles, k > 8192 ? 2 * 132 : kMaxMaxima));
    }
  }
  EXPECT_FALSE(streams_rows(maximum_of(problem(64, 1028)).config));
  EXPECT_FALSE(streams_rows(maximum_of(problem(4, 16392)).config));
  EXPECT_FALSE(streams_rows(maximum_of(problem(64, 8192, Format::f32)).config));
  Problem unaligned = problem(64, 8192);
  unaligned.x_address += 2;
  EXPECT_FALSE(streams_rows(maximum_of(unaligned).config));
}

TEST(KernelChoice, LoadsSmallInputsAtOnceWhereTheirChunksAreWhole) {
  const auto at_once = [](const Problem& p) {
    const QuantizePlan plan = plan_of(p);
    EXPECT_EQ(plan.count, 1);
    const auto& step = plan.steps[0];
    if (!loads_at_once(step.config)) return false;
    // One wave.
    const auto waves_of = static_cast<unsigned>(step.config.threads * step.config.min_blocks);
    EXPECT_LE(step.shape.grid.x * step.shape.block.x, 132 * waves_of);
    EXPECT_LE(waves_of / step.shape.block.x * step.shape.dynamic_shared_bytes, 227u << 10);
    EXPECT_EQ(step.shape.grid.x, step.params.grid.tiles);
    return true;
  };
  for (const InputTransform transform : {InputTransform::modulate, InputTransform::rms_norm}) {
    for (const Recipe recipe : {Recipe::mxfp4, Recipe::fp8_1x128, Recipe::fp8_row}) {
      Problem p{.recipe = recipe, .rows = 512, .k = 8192};
      p.options = with_operands(transform, Format::bf16, 1, p.k);
      EXPECT_TRUE(at_once(p));
      p.x_address += 2;
      EXPECT_FALSE(at_once(p));
      p.x_address -= 2;
      p.dtype = Format::f32;
      EXPECT_FALSE(at_once(p));
      p.dtype = Format::bf16;
      p.options = with_operands(transform, Format::f32, 1, p.k);
      // Thread blocks of `blocks` convert operands; threads of rows do not.
      EXPECT_EQ(at_once(p), transform == InputTransform::modulate && recipe != Recipe::fp8_row);
      p.rows = 2048;
      p.options = with_operands(transform, Format::bf16, 1, p.k);
      EXPECT_FALSE(at_once(p));
      p.rows = 4;
      p.k = 16416;  // more than a thread block holds of a row
      p.options = with_operands(transform, Format::bf16, 1, p.k);
      EXPECT_EQ(at_once(p), transform == InputTransform::modulate && recipe != Recipe::fp8_row);
    }
  }
  // Groups begin with tiles of 8 rows, or with matrices.
  Problem p{.rows = 64, .k = 1024, .batch = 2};
  for (const std::int64_t groups : {1, 2, 4, 16}) {
    p.options = with_operands(InputTransform::modulate, Format::bf16, groups, p.k);
    EXPECT_TRUE(at_once(p)) << groups;
  }
  p.options = with_operands(InputTransform::modulate, Format::bf16, 32, p.k);
  EXPECT_FALSE(at_once(p));
  p.rows = 12;
  p.options = with_operands(InputTransform::modulate, Format::bf16, 3, p.k);
  EXPECT_FALSE(at_once(p));
}

TEST(KernelChoice, LooksValuesUpWhereEnoughElementsPayForTheTable) {
  Problem p;
  p.rows = p.k = 8192;
  p.options.input.transform = InputTransform::gelu_tanh;
  const auto has_table = [](const Problem& problem) {
    const QuantizePlan plan = plan_of(problem);
    const auto& last = plan.last();
    if (!last.config.table) return false;
    EXPECT_EQ(last.shape.dynamic_shared_bytes, kTableSharedBytes);
    EXPECT_LE(last.shape.grid.x, 132u);
    return true;
  };
  EXPECT_TRUE(has_table(p));
  p.rows = 64;
  EXPECT_FALSE(has_table(p));
  p.rows = 8192;
  p.x_address += 2;
  EXPECT_FALSE(has_table(p));
  p.x_address -= 2;
  p.dtype = Format::f32;
  EXPECT_FALSE(has_table(p));
  p.recipe = Recipe::fp8_1x128;
  p.rows = 4096;
  p.dtype = Format::bf16;
  EXPECT_TRUE(has_table(p));
  p.dtype = Format::f16;  // 8 bits leave time for approximate values
  EXPECT_FALSE(has_table(p));
  p = {.recipe = Recipe::fp8_128x128, .rows = 128, .k = 8192};
  p.options.input.transform = InputTransform::swiglu;
  EXPECT_TRUE(has_table(p));
  p.rows = 64;
  EXPECT_FALSE(has_table(p));
  p.rows = 128;
  p.dtype = Format::f16;  // has four times the entries
  EXPECT_FALSE(has_table(p));
}

}  // namespace
}  // namespace blockscale
