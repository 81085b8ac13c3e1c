// Plans of the CUDA quantisers, without a GPU.
#include "ops/quantize/cuda_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "tests/expect_error.h"

namespace blockscale {
namespace {

using quantize_detail::plan_quantize;
using quantize_detail::QuantizePlan;
using testing::ElementsAre;
using testing::HasSubstr;

struct Problem {
  Recipe recipe = Recipe::mxfp4;
  Format dtype = Format::bf16;
  std::int64_t rows = 1024, k = 4096, batch = 1;
  ScaleLayout layout = ScaleLayout::row_major;
  QuantizeOptions options = {};
  std::int64_t x_row_stride = 0;
  std::uintptr_t x_address = 0x10000000;
};

/// Views of memory that is never read.
quantize_detail::QuantizeArguments arguments_of(const Problem& p) {
  MatrixView x{reinterpret_cast<const void*>(p.x_address), p.dtype, p.rows, p.k};
  x.row_stride = p.x_row_stride;
  x.batch = p.batch;
  MutableScaledTensorView out;
  out.recipe = p.recipe;
  out.rows = p.rows;
  out.k = p.k;
  out.batch = p.batch;
  out.values = reinterpret_cast<void*>(std::uintptr_t{1} << 50);
  out.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 51);
  out.layout = p.layout;
  if (recipe_traits(p.recipe).tensor_scale) {
    out.tensor_scale = reinterpret_cast<float*>(std::uintptr_t{1} << 52);
  }
  return quantize_detail::validated(x, out, p.options);
}

QuantizePlan plan_of(const Problem& p) {
  return plan_quantize(arguments_of(p), p.options, {}, nullptr);
}

std::vector<QuantizeKernel> kinds_of(const QuantizePlan& plan) {
  std::vector<QuantizeKernel> kinds;
  for (int i = 0; i < plan.count; ++i) {
    kinds.push_back(kQuantizeKernels[plan.steps[static_cast<std::size_t>(i)].kernel].kernel);
  }
  return kinds;
}

TEST(QuantizePlan, ExistsForEveryRecipeAndInput) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::plain) continue;
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      const QuantizePlan plan = plan_of({.recipe = t.recipe, .dtype = dtype});
      ASSERT_GE(plan.count, 1) << t.name;
      const auto& last = plan.last();
      const QuantizeConfig& c = kQuantizeKernels[last.kernel];
      EXPECT_EQ(c.input, dtype) << t.name;
      EXPECT_EQ(c.element, t.element) << t.name;
      EXPECT_TRUE(last.params.x.vectors && last.params.value_vectors) << t.name;
    }
  }
}

TEST(QuantizePlan, ReadsTheInputOnceUnlessOneScaleIsTheWholeTensors) {
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::mxfp4})), ElementsAre(QuantizeKernel::blocks));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_1x128})),
              ElementsAre(QuantizeKernel::blocks));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_128x128})),
              ElementsAre(QuantizeKernel::tall));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_row})), ElementsAre(QuantizeKernel::row));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_tensor})),
              ElementsAre(QuantizeKernel::maximum, QuantizeKernel::scaled));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::nvfp4})),
              ElementsAre(QuantizeKernel::maximum, QuantizeKernel::blocks));
  const QuantizeOptions given{.scale_source = ScaleSource::given};
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::nvfp4, .options = given})),
              ElementsAre(QuantizeKernel::blocks));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_row, .options = given})),
              ElementsAre(QuantizeKernel::scaled));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_tensor_e5m2, .options = given})),
              ElementsAre(QuantizeKernel::scaled));
}

TEST(QuantizePlan, FactorsOfRmsNormCostNoReadOfTheirOwnWithAMaximum) {
  QuantizeOptions options;
  options.input.transform = InputTransform::rms_norm;
  options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 48), Format::bf16, 1,
                          4096};
  const auto kinds = [&](Recipe recipe) {
    return kinds_of(plan_of({.recipe = recipe, .options = options}));
  };
  EXPECT_THAT(kinds(Recipe::mxfp4), ElementsAre(QuantizeKernel::row));
  EXPECT_THAT(kinds(Recipe::nvfp4), ElementsAre(QuantizeKernel::maximum, QuantizeKernel::blocks));
  EXPECT_THAT(kinds(Recipe::fp8_tensor),
              ElementsAre(QuantizeKernel::maximum, QuantizeKernel::scaled));
  EXPECT_THAT(kinds(Recipe::fp8_128x128),
              ElementsAre(QuantizeKernel::clear, QuantizeKernel::stripe));
}

/// Thread blocks wait for each other only where a quarter of the device holds all who do.
TEST(QuantizePlan, ReadsStripesOnceWhereTheDeviceHoldsTheirTeams) {
  Problem p{.recipe = Recipe::fp8_64x128, .rows = 500, .batch = 2};
  p.options.input.transform = InputTransform::rms_norm;
  const auto plan_with = [&](std::int64_t k, Format dtype, int multiprocessors) {
    p.k = k;
    p.dtype = dtype;
    p.options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 48), dtype, 1, k};
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

TEST(QuantizePlan, OnlyMaximaNeedAWorkspace) {
  EXPECT_EQ(plan_of({.recipe = Recipe::mxfp8_e4m3}).workspace_bytes, 0);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    const QuantizePlan plan = plan_of({.recipe = recipe, .batch = 7});
    const MaximaParams& maxima = plan.steps[0].params.maxima;
    const std::uint32_t scales = recipe == Recipe::nvfp4 ? 1 : 7;  // one for all, or one each
    EXPECT_LE(maxima.count, kMaxMaxima);
    EXPECT_EQ(maxima.stride, scales == 1 ? 0u : (maxima.count + 3) / 4 * 4);
    EXPECT_EQ(plan.workspace_bytes % 16, 0);
    EXPECT_GE(plan.workspace_bytes, scales * 4 * std::int64_t{maxima.count});
    EXPECT_EQ(plan.steps[0].shape.grid.x, scales * maxima.count);
    for (const int step : {0, 1}) {
      EXPECT_TRUE(plan.steps[static_cast<std::size_t>(step)].shape.programmatic_dependent_launch);
    }
  }
}

/// Whoever makes a scale of them has room for so many, on devices of any size.
TEST(QuantizePlan, LeavesNoMoreMaximaThanAreRead) {
  for (const InputTransform transform : {InputTransform::identity, InputTransform::gelu_tanh}) {
    for (const int multiprocessors : {16, 132, 600}) {
      Problem p{.recipe = Recipe::nvfp4, .rows = 2048, .k = 8192};
      p.options.input.transform = transform;
      const QuantizePlan plan =
          plan_quantize(arguments_of(p), p.options, {multiprocessors}, nullptr);
      ASSERT_EQ(plan.count, 2);
      const std::uint32_t count = plan.steps[0].params.maxima.count;
      EXPECT_LE(count, most_maxima(plan.steps[0].config)) << multiprocessors;
      EXPECT_LE(count, most_maxima(plan.steps[1].config)) << multiprocessors;
    }
  }
}

TEST(QuantizePlan, SmallCallsAndInnerKernelsLetTheNextStart) {
  for (const bool small : {false, true}) {
    const std::int64_t rows = small ? 512 : 16384;
    const QuantizePlan plan = plan_of({.recipe = Recipe::nvfp4, .rows = rows, .k = 8192});
    ASSERT_EQ(plan.count, 2);
    EXPECT_TRUE(plan.steps[0].params.lets_next_start);
    EXPECT_EQ(plan.steps[1].params.lets_next_start, small);
  }
}

TEST(QuantizePlan, TakesTheFormOfNvfp4ThatSuitsItsSize) {
  for (const bool large : {false, true}) {
    const std::int64_t rows = large ? 4096 : 2048;
    const QuantizePlan plan = plan_of({.recipe = Recipe::nvfp4, .rows = rows});
    EXPECT_EQ(kQuantizeKernels[plan.steps[1].kernel].large, large) << rows;
    const QuantizePlan f32 = plan_of({.recipe = Recipe::nvfp4, .dtype = Format::f32, .rows = rows});
    EXPECT_FALSE(kQuantizeKernels[f32.steps[1].kernel].large);
  }
}

/// Of blocks that have more rows than the matrix.
TEST(QuantizePlan, LeavesOutRowsThatDoNotExist) {
  for (const auto& [rows, of_block] :
       {std::pair{1, 32u}, {32, 32u}, {33, 64u}, {64, 64u}, {65, 128u}, {1000, 128u}}) {
    const QuantizePlan plan = plan_of({.recipe = Recipe::fp8_128x128, .rows = rows, .k = 8192});
    EXPECT_EQ(plan.steps[0].params.block_rows, of_block) << rows;
    EXPECT_EQ(plan.steps[0].params.grid.rows, of_block) << rows;
  }
  const QuantizePlan few = plan_of({.recipe = Recipe::fp8_32x128, .rows = 1});
  EXPECT_EQ(few.steps[0].params.block_rows, 32u);
}

TEST(QuantizePlan, SpreadsSmallInputsOfFunctions) {
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
  options.input.transform = InputTransform::rms_norm;
  options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 53), Format::bf16, 1,
                          8192};
  EXPECT_EQ(is_large(Recipe::nvfp4, 2), std::pair(false, true));
  EXPECT_EQ(is_large(Recipe::nvfp4, 4), std::pair(false, false));
  EXPECT_EQ(is_large(Recipe::nvfp4, 8), std::pair(false, true));
}

TEST(QuantizePlan, GoesBackwardsWhereItComputesTheScale) {
  const QuantizeOptions given{.scale_source = ScaleSource::given};
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    EXPECT_TRUE(plan_of({.recipe = recipe}).steps[1].params.backwards);
    EXPECT_FALSE(plan_of({.recipe = recipe, .options = given}).steps[0].params.backwards);
  }
}

TEST(QuantizePlan, TilesCoverTheScaleGridWithItsPadding) {
  for (const std::int64_t k : {32, 96, 1536, 2880, 4096, 7168, 32768}) {
    for (const std::int64_t rows : {1, 5, 128, 1000}) {
      const QuantizePlan plan =
          plan_of({.rows = rows, .k = k, .layout = ScaleLayout::swizzled_128x4});
      const auto& step = plan.steps[0];
      const QuantizeConfig& c = kQuantizeKernels[step.kernel];
      const TileGrid& grid = step.params.grid;
      const std::int64_t down = grid.per_matrix.divisor / grid.across.divisor;
      EXPECT_GE(down * grid.rows, step.params.scale_rows);
      EXPECT_LT((down - 1) * grid.rows, step.params.scale_rows);
      const std::int64_t chunks = std::int64_t{grid.across.divisor} << grid.log2_chunks;
      EXPECT_GE(chunks * c.chunk, 32 * std::int64_t{step.params.scale_columns});
      EXPECT_EQ((c.threads >> grid.log2_chunks) * c.chunks, static_cast<int>(grid.rows));
    }
  }
}

TEST(QuantizePlan, WarpsOfARowHoldItOrTakeWholeRounds) {
  QuantizeOptions options;
  options.input.transform = InputTransform::rms_norm;
  for (const std::int64_t k : {32, 96, 1024, 5120, 8192, 16384, 20000, 200000}) {
    options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 48), Format::bf16, 1,
                            k};
    const QuantizePlan plan =
        plan_of({.recipe = Recipe::fp8_row, .rows = 300000, .k = k, .options = options});
    ASSERT_EQ(plan.count, 1);
    const auto& step = plan.steps[0];
    const QuantizeConfig& c = step.config;
    const std::int64_t warps = step.params.row_warps.divisor;
    const std::int64_t round = warps * 32 * c.chunk;
    EXPECT_EQ(step.params.row_rounds, (k + round - 1) / round) << k;
    EXPECT_EQ(warps, std::min<std::int64_t>(kRowMostWarps, (k + 32 * c.chunk - 1) / (32 * c.chunk)))
        << k;
    EXPECT_EQ(step.shape.block.x, warps * 32 * step.params.grid.rows) << k;
    EXPECT_LE(step.shape.block.x, 32u * kRowMostWarps) << k;
    EXPECT_EQ(step.shape.dynamic_shared_bytes,
              kQuantizeSharedBytes + step.shape.block.x * 4 * static_cast<unsigned>(c.chunk))
        << k;
    // All of them fit at once.
    const auto threads = static_cast<unsigned>(c.threads * c.min_blocks);
    EXPECT_LE(step.shape.grid.x * step.shape.block.x, 132 * threads) << k;
    EXPECT_LE(threads / step.shape.block.x * step.shape.dynamic_shared_bytes, 227u << 10) << k;
  }
}

/// Operands that are of no other use than to be there.
QuantizeOptions with_operands(InputTransform transform, Format dtype, std::int64_t groups,
                              std::int64_t k) {
  QuantizeOptions options;
  options.input.transform = transform;
  const MatrixView operand{reinterpret_cast<const void*>(std::uintptr_t{1} << 48), dtype, groups,
                           k};
  if (transform == InputTransform::rms_norm) {
    options.input.weight = operand;
  } else {
    options.input.scale = options.input.shift = operand;
  }
  return options;
}

TEST(QuantizePlan, FindsMaximaOfWholeRowsWithVectors) {
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

TEST(QuantizePlan, LoadsSmallInputsAtOnceWhereTheirChunksAreWhole) {
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

TEST(QuantizePlan, SeesWhereVectorsFit) {
  EXPECT_FALSE(plan_of({.x_address = 0x10000008}).steps[0].params.x.vectors);
  EXPECT_FALSE(plan_of({.x_row_stride = 4100}).steps[0].params.x.vectors);
  EXPECT_TRUE(plan_of({.x_row_stride = 4104}).steps[0].params.x.vectors);
  const auto one_row = plan_of({.rows = 1, .x_row_stride = std::int64_t{1} << 56}).steps[0].params;
  EXPECT_TRUE(one_row.x.vectors);
  EXPECT_EQ(one_row.x.row_stride, 0);
}

TEST(QuantizePlan, RefusesWhatAGridCannotHold) {
  constexpr auto kUnsupported = ErrorCode::unsupported;
  test::expect_error(kUnsupported, "out.rows", "below 2^30",
                     [] { plan_of({.rows = std::int64_t{1} << 30, .k = 32}); });
  test::expect_error(kUnsupported, "out.k", "below 2^30",
                     [] { plan_of({.rows = 1, .k = std::int64_t{1} << 30}); });
  test::expect_error(kUnsupported, "x", "tiles",
                     [] { plan_of({.rows = 1 << 20, .k = 1 << 20, .batch = 1 << 8}); });
}

/// Where the tiles of rows are few enough, but a number in the kernels is not.
TEST(QuantizePlan, RefusesMoreMatricesOrRowsThanKernelsNumber) {
  Problem norm{.recipe = Recipe::fp8_tensor, .rows = 1 << 29, .k = 1, .batch = 8};
  norm.options.input.transform = InputTransform::rms_norm;
  norm.options.input.weight = {reinterpret_cast<const void*>(std::uintptr_t{1} << 53), Format::f32,
                               1, 1};
  test::expect_error(ErrorCode::unsupported, "x", "rows on a GPU", [&] { plan_of(norm); });
  quantize_detail::AbsoluteMaximumArguments empty{};
  empty.x.batch = std::int64_t{1} << 32;
  empty.x.dtype = Format::bf16;
  test::expect_error(ErrorCode::unsupported, "x", "4294967296 matrices",
                     [&] { plan_absolute_maximum(empty, nullptr, {}, nullptr); });
}

TEST(QuantizePlan, SaysWhatItDoes) {
  const std::string text = plan_of({.recipe = Recipe::nvfp4}).str();
  EXPECT_THAT(text, HasSubstr("quantize_maximum_bf16_identity: "));
  EXPECT_THAT(text, HasSubstr("quantize_blocks_nvfp4_e2m1_16_bf16_identity: "));
  EXPECT_THAT(text, HasSubstr("workspace "));
}

TEST(QuantizeKernels, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const runtime::KernelSpec& spec : quantize_detail::quantize_kernel_specs()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    for (const char c : spec.name) {
      EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') << spec.name;
    }
    EXPECT_EQ(spec.parameter_bytes, sizeof(QuantizeParams));
    EXPECT_FALSE(spec.allows_local_memory);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kQuantizeKernels.count));
}

TEST(QuantizePlan, LooksValuesUpWhereEnoughElementsPayForTheTable) {
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
}

}  // namespace
}  // namespace blockscale
