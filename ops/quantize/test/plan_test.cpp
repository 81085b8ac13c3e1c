// Plans of the CUDA quantizers, without a GPU.
#include "ops/quantize/cuda/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "ops/quantize/test/plan_support.h"
#include "tests/chip.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using quantize_detail::plan_quantize;
using quantize_detail::QuantizePlan;
using test::arguments_of;
using test::kinds_of;
using test::plan_of;
using test::Problem;
using testing::ElementsAre;
using testing::HasSubstr;

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
              ElementsAre(QuantizeKernel::blocks_2d));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_row})), ElementsAre(QuantizeKernel::rows));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_tensor})),
              ElementsAre(QuantizeKernel::amax, QuantizeKernel::cast));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::nvfp4})),
              ElementsAre(QuantizeKernel::amax, QuantizeKernel::blocks));
  const QuantizeOptions given{.scale_source = ScaleSource::given};
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::nvfp4, .options = given})),
              ElementsAre(QuantizeKernel::blocks));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_row, .options = given})),
              ElementsAre(QuantizeKernel::cast));
  EXPECT_THAT(kinds_of(plan_of({.recipe = Recipe::fp8_tensor_e5m2, .options = given})),
              ElementsAre(QuantizeKernel::cast));
}

TEST(QuantizePlan, RstdCostsNoReadOfItsOwnWithAnAmax) {
  QuantizeOptions options;
  options.input =
      RmsNorm{{reinterpret_cast<const void*>(std::uintptr_t{1} << 48), Format::bf16, 1, 4096}};
  const auto kinds = [&](Recipe recipe) {
    return kinds_of(plan_of({.recipe = recipe, .options = options}));
  };
  EXPECT_THAT(kinds(Recipe::mxfp4), ElementsAre(QuantizeKernel::rows));
  EXPECT_THAT(kinds(Recipe::nvfp4), ElementsAre(QuantizeKernel::amax, QuantizeKernel::blocks));
  EXPECT_THAT(kinds(Recipe::fp8_tensor), ElementsAre(QuantizeKernel::amax, QuantizeKernel::cast));
  EXPECT_THAT(kinds(Recipe::fp8_128x128),
              ElementsAre(QuantizeKernel::rstd, QuantizeKernel::blocks_2d));
}

TEST(QuantizePlan, OnlyAmaxesNeedAWorkspace) {
  EXPECT_EQ(plan_of({.recipe = Recipe::mxfp8_e4m3}).workspace_bytes, 0);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor}) {
    const QuantizePlan plan = plan_of({.recipe = recipe, .batch = 7});
    const AmaxParams& amax = plan.steps[0].params.amax;
    const std::uint32_t scales = recipe == Recipe::nvfp4 ? 1 : 7;  // one for all, or one each
    EXPECT_LE(amax.count, kMostAmaxes);
    EXPECT_EQ(amax.stride, scales == 1 ? 0u : (amax.count + 3) / 4 * 4);
    EXPECT_EQ(plan.workspace_bytes % 16, 0);
    EXPECT_GE(plan.workspace_bytes, scales * 4 * std::int64_t{amax.count});
    EXPECT_EQ(plan.steps[0].shape.grid.x, scales * amax.count);
    for (const int step : {0, 1}) {
      EXPECT_TRUE(plan.steps[static_cast<std::size_t>(step)].shape.programmatic_dependent_launch);
    }
  }
}

/// Whoever makes a scale of them has room for so many, on devices of any size.
TEST(QuantizePlan, LeavesNoMoreAmaxesThanAreRead) {
  for (const InputTransform transform : {InputTransform::identity, InputTransform::gelu_tanh}) {
    for (const int sms : {16, 132, 600}) {
      Problem p{.recipe = Recipe::nvfp4, .rows = 2048, .k = 8192};
      p.options.input = test::input_of(transform);
      const QuantizePlan plan =
          plan_quantize(arguments_of(p), p.options, test::chip_of(sms), nullptr);
      ASSERT_EQ(plan.count, 2);
      EXPECT_LE(plan.steps[0].params.amax.count, kMostAmaxes) << sms;
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
      EXPECT_GE(down * grid.rows, step.params.scales.rows);
      EXPECT_LT((down - 1) * grid.rows, step.params.scales.rows);
      const std::int64_t chunks = std::int64_t{grid.across.divisor} << grid.log2_chunks;
      EXPECT_GE(chunks * c.chunk, 32 * std::int64_t{step.params.scales.columns});
      EXPECT_EQ(c.threads >> grid.log2_chunks, static_cast<int>(grid.rows));
    }
  }
}

TEST(QuantizePlan, WarpsOfARowHoldItOrTakeWholeRounds) {
  QuantizeOptions options;
  for (const std::int64_t k : {32, 96, 1024, 5120, 8192, 16384, 20000, 200000}) {
    options.input =
        RmsNorm{{reinterpret_cast<const void*>(std::uintptr_t{1} << 48), Format::bf16, 1, k}};
    const QuantizePlan plan =
        plan_of({.recipe = Recipe::fp8_row, .rows = 300000, .k = k, .options = options});
    ASSERT_EQ(plan.count, 1);
    const auto& step = plan.steps[0];
    const QuantizeConfig& c = step.config();
    const std::int64_t warps = step.params.row_warps.divisor;
    const std::int64_t warp_columns = std::int64_t{32} * c.chunk * c.chunks;
    const std::int64_t round = warps * warp_columns;
    EXPECT_EQ(step.params.row_rounds, (k + round - 1) / round) << k;
    EXPECT_EQ(warps, std::min<std::int64_t>(kRowMostWarps, (k + warp_columns - 1) / warp_columns))
        << k;
    EXPECT_EQ(step.shape.block.x, warps * 32 * step.params.grid.rows) << k;
    EXPECT_LE(step.shape.block.x, 32u * kRowMostWarps) << k;
  }
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

TEST(QuantizePlan, RefusesSwigluThatIsNotTheUsualOne) {
  const auto refuses = [](const char* argument, const Swiglu& swiglu) {
    Problem p;
    p.options.input = swiglu;
    test::expect_error(ErrorCode::unsupported, argument, "let the product before apply it",
                       [&] { plan_of(p); });
    quantize_detail::AbsoluteMaximumArguments amax{};
    amax.input = arguments_of(p).input;
    test::expect_error(ErrorCode::unsupported, argument, "is not the usual one",
                       [&] { plan_absolute_maximum(amax, nullptr, {}, nullptr); });
  };
  refuses("options.input.limit", Swiglu{{}, 0, 7, 1.702f, 1});
  refuses("options.input.alpha", Swiglu{{}, 0, Swiglu{}.limit, 1.702f, 1});
  refuses("options.input.up_shift", Swiglu{{}, 0, Swiglu{}.limit, 1, 1});
}

/// Where the tiles of rows are few enough, but a number in the kernels is not.
TEST(QuantizePlan, RefusesMoreMatricesOrRowsThanKernelsNumber) {
  Problem norm{.recipe = Recipe::fp8_tensor, .rows = 1 << 29, .k = 1, .batch = 8};
  norm.options.input =
      RmsNorm{{reinterpret_cast<const void*>(std::uintptr_t{1} << 53), Format::f32, 1, 1}};
  test::expect_error(ErrorCode::unsupported, "x", "rows on a GPU", [&] { plan_of(norm); });
  quantize_detail::AbsoluteMaximumArguments empty{};
  empty.x.batch = std::int64_t{1} << 32;
  empty.x.dtype = Format::bf16;
  test::expect_error(ErrorCode::unsupported, "x", "4294967296 matrices",
                     [&] { plan_absolute_maximum(empty, nullptr, {}, nullptr); });
}

TEST(QuantizePlan, SaysWhatItDoes) {
  const std::string text = plan_of({.recipe = Recipe::nvfp4}).str();
  EXPECT_THAT(text, HasSubstr("quantize_amax_bf16: "));
  EXPECT_THAT(text, HasSubstr("quantize_blocks_nvfp4_e2m1_16_bf16: "));
  EXPECT_THAT(text, HasSubstr("workspace "));
}

TEST(QuantizeKernels, HaveNamesOfTheirOwn) {
  std::set<std::string> names, in_pack;
  for (const runtime::KernelSpec& spec : quantize_detail::quantize_kernel_specs()) {
    EXPECT_TRUE(in_pack.insert(spec.name + spec.architecture).second) << spec.name;
    names.insert(spec.name);
    for (const char c : spec.name) {
      EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') << spec.name;
    }
    EXPECT_EQ(spec.parameter_bytes, sizeof(QuantizeParams));
    EXPECT_FALSE(spec.allows_local_memory);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kQuantizeKernels.count));
}

}  // namespace
}  // namespace blockscale
