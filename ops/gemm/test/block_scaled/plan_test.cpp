// Which products go by the kernels that take scales, of sm_120f, and how, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <utility>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/test/imagined.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::BlockScaledPlan;
using gemm_detail::GemmPath;
using gemm_detail::plan_block_scaled;
using gemm_detail::plan_product;
using test::imagined_product;
using testing::HasSubstr;

const cuda::Chip& chip() {
  return cuda::chip_named("RTX 5090");
}

constexpr std::pair<Recipe, Recipe> kPairs[] = {
    {Recipe::nvfp4, Recipe::nvfp4},           {Recipe::mxfp4, Recipe::mxfp4},
    {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3}, {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
    {Recipe::mxfp8_e4m3, Recipe::mxfp6_e3m2}, {Recipe::mxfp8_e4m3, Recipe::mxfp4},
    {Recipe::fp8_1x128, Recipe::fp8_128x128}};

GemmPath path_of(const GemmArguments& x, const cuda::Chip& of = chip()) {
  return plan_product(x, of).path();
}

/// What the driver and the kernel ask of a launch.
void expect_launchable(const BlockScaledPlan& plan, const GemmArguments& x) {
  const BlockScaledParams& p = plan.params;
  const BlockScaledConfig config = kBlockScaledKernels[plan.kernel];
  const BlockScaledMemory memory = memory_of(config, p.stages);
  EXPECT_EQ(plan.shape.block.x, block_scaled::kThreads);
  EXPECT_EQ(plan.shape.cluster.x, 1u);
  EXPECT_EQ(plan.shape.dynamic_shared_bytes, memory.total);
  EXPECT_LE(memory.total, chip().shared_bytes);
  EXPECT_EQ(memory.stage_bytes % 1024, 0u);  // as swizzles of 128 bytes repeat
  EXPECT_EQ(memory.b_offset % 1024, 0u);
  EXPECT_EQ(memory.results % 1024, 0u);
  EXPECT_GE(p.stages, 2u);
  EXPECT_LE(p.stages, kBlockScaledMostStages);
  EXPECT_LE(plan.shape.grid.x, static_cast<std::uint32_t>(chip().multiprocessors));
  EXPECT_EQ(p.order.dense.tiles, ceil_div(x.d.rows, std::int64_t{config.rows}) *
                                     ceil_div(x.d.columns, std::int64_t{block_scaled::kColumns}) *
                                     x.d.batch);
  EXPECT_GE(std::int64_t{p.k_stages} * block_scaled::kStageK, x.a.k);
}

TEST(BlockScaledPlan, ExistsForEveryShape) {
  std::mt19937_64 random(1);
  const auto size = [&](std::uint64_t bits) {
    return static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (1 + random() % bits)));
  };
  for (const auto& [a, b] : kPairs) {
    for (int i = 0; i < 40; ++i) {
      const GemmArguments x = imagined_product(size(13), size(15), 128 * size(7), a, b);
      const auto plan = plan_block_scaled(x, chip());
      ASSERT_TRUE(plan) << x.d.rows << " x " << x.d.columns << " x " << x.a.k;
      SCOPED_TRACE(plan->str());
      expect_launchable(*plan, x);
      EXPECT_TRUE(x.d.rows > 32 || kBlockScaledKernels[plan->kernel].rows == 32);
      EXPECT_GT(plan->expected_seconds, 0);
      EXPECT_EQ(path_of(x), GemmPath::sm120_block_scaled);
    }
  }
}

/// Other chips have none, and other pairs go as before.
TEST(BlockScaledPlan, IsOfItsChipAndPairs) {
  for (const auto& [a, b] : kPairs) {
    const GemmArguments x = imagined_product(256, 256, 256, a, b);
    EXPECT_EQ(path_of(x, cuda::chip_named("GB10")), GemmPath::sm120_block_scaled);
    EXPECT_EQ(path_of(x, cuda::chip_named("B200")), GemmPath::plain);
    EXPECT_NE(path_of(x, {}), GemmPath::sm120_block_scaled);
  }
  using R = Recipe;
  for (const auto& [a, b] : {std::pair{R::bf16, R::nvfp4},
                             {R::bf16, R::bf16},
                             {R::mxfp8_e5m2, R::mxfp8_e5m2},
                             {R::mxfp6_e2m3, R::mxfp6_e2m3},
                             {R::fp8_1x128, R::mxfp4},
                             {R::fp8_1x128_ue8m0, R::fp8_128x128_ue8m0},
                             {R::fp8_1x128, R::fp8_1x128},
                             {R::fp8_1x128, R::fp8_row},
                             {R::fp8_128x128, R::fp8_64x128}}) {
    EXPECT_EQ(path_of(imagined_product(256, 256, 256, a, b)), GemmPath::plain)
        << recipe_traits(a).name << " x " << recipe_traits(b).name;
  }
  for (const auto& [a, b] : {std::pair{R::fp8_row, R::fp8_row},
                             {R::fp8_tensor, R::fp8_tensor},
                             {R::fp8_1x128, R::fp8_tensor},
                             {R::fp8_64x128_pow2, R::fp8_128x128_pow2}}) {
    EXPECT_EQ(path_of(imagined_product(256, 256, 256, a, b)), GemmPath::sm120_block_scaled)
        << recipe_traits(a).name << " x " << recipe_traits(b).name;
  }
}

/// What copies ask of memory: the plain kernels take the rest, whatever the number of rows.
TEST(BlockScaledPlan, TakesWhatCopiesRead) {
  const auto path = [](Recipe a, Recipe b, std::int64_t k, const auto& change) {
    GemmArguments x = imagined_product(1, 256, k, a, b);
    change(x);
    const GemmPath of_one = path_of(x);
    x.a.rows = x.d.rows = 200;
    EXPECT_EQ(path_of(x), of_one);
    return of_one == GemmPath::sm120_block_scaled;
  };
  const auto none = [](GemmArguments&) {};
  const auto atoms = [](GemmArguments& x) {
    x.a.layout = x.b.layout = ScaleLayout::swizzled_128x4;
    x.a.scale_leading_stride = x.b.scale_leading_stride = 0;
    x.a.scale_batch_stride = x.b.scale_batch_stride = 0;
    x.a = resolved(x.a, "a"), x.b = resolved(x.b, "b");
  };
  using R = Recipe;
  // Rows of scales by fours, or in atoms.
  EXPECT_FALSE(path(R::nvfp4, R::nvfp4, 96, none));
  EXPECT_TRUE(path(R::nvfp4, R::nvfp4, 96, atoms));
  EXPECT_TRUE(path(R::nvfp4, R::nvfp4, 64, none));
  EXPECT_TRUE(path(R::mxfp8_e4m3, R::mxfp8_e4m3, 96, atoms));
  EXPECT_FALSE(path(R::nvfp4, R::nvfp4, 64, [](auto& x) { x.a.layout = ScaleLayout::mn_major; }));
  // Rows of values at multiples of 16 bytes; with gaps whole stages, at multiples of 32.
  EXPECT_FALSE(path(R::nvfp4, R::nvfp4, 48, atoms));
  EXPECT_TRUE(path(R::fp8_1x128, R::fp8_128x128, 272, none));
  EXPECT_FALSE(path(R::fp8_1x128, R::fp8_128x128, 264, none));
  EXPECT_FALSE(path(R::mxfp8_e4m3, R::mxfp4, 160, atoms));
  EXPECT_TRUE(path(R::mxfp8_e4m3, R::mxfp4, 256, atoms));
  for (const R b : {R::mxfp4, R::mxfp6_e3m2}) {
    EXPECT_FALSE(path(R::mxfp8_e4m3, b, 256, [](auto& x) { x.b.value_row_stride += 16; }));
    EXPECT_TRUE(path(R::mxfp8_e4m3, b, 256, [](auto& x) { x.b.value_row_stride += 32; }));
  }
  EXPECT_FALSE(path(R::mxfp8_e4m3, R::mxfp8_e4m3, 256,
                    [](auto& x) { x.a.values = gemm_detail::byte_at(x.a.values, 8); }));
}

/// D in f32 in the workspace, then what makes the result of it.
TEST(BlockScaledPlan, IsBeforeTransformsAndQuantizers) {
  GemmArguments x = imagined_product(256, 512, 256, Recipe::nvfp4, Recipe::nvfp4);
  x.transform = Gelu{};
  auto plan = plan_product(x, chip());
  EXPECT_EQ(plan.path(), GemmPath::sm120_block_scaled);
  EXPECT_TRUE(plan.transform);
  for (const QuantizeInput& input :
       {QuantizeInput{Identity{}}, QuantizeInput{Swiglu{}},
        QuantizeInput{Swiglu{GateOrder::gate_first, 0, 7, 1.702f, 1}}}) {
    x = gemm_detail::validated(imagined_gemm(256, 512, 256, Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3,
                                             Format::bf16, 1, Recipe::nvfp4, input),
                               {});
    plan = plan_product(x, chip());
    EXPECT_EQ(plan.path(), GemmPath::sm120_block_scaled);
    EXPECT_TRUE(plan.quantization);
    const auto* const swiglu = std::get_if<Swiglu>(&input);
    const bool is_clamped = swiglu != nullptr && swiglu->limit == 7;  // which no quantizer fuses
    EXPECT_EQ(plan.transform.has_value(), is_clamped);
  }
}

/// A third of the multiprocessors take longer, memory is a floor, and elements of six bits in bytes
/// take twice as long.
TEST(BlockScaledPlan, ExpectsTimesByPublicFigures) {
  const auto seconds = [](std::int64_t m, const char* of, Recipe b) {
    const auto x = imagined_product(m, 4096, 4096, Recipe::mxfp8_e4m3, b);
    return plan_block_scaled(x, cuda::chip_named(of))->expected_seconds;
  };
  EXPECT_GT(seconds(4096, "GB10", Recipe::mxfp8_e4m3),
            2 * seconds(4096, "RTX 5090", Recipe::mxfp8_e4m3));
  EXPECT_GT(seconds(8, "GB10", Recipe::mxfp8_e4m3), 4096.0 * 4096 / 273e9);
  EXPECT_GT(seconds(4096, "RTX 5090", Recipe::mxfp6_e3m2),
            1.5 * seconds(4096, "RTX 5090", Recipe::mxfp8_e4m3));
}

/// Small ones of few rows, and where large ones would be fewer than multiprocessors; else these,
/// which ask L2 for less.
TEST(BlockScaledPlan, ChoosesTilesByThem) {
  const auto rows = [](std::int64_t m, std::int64_t n) {
    const auto x = imagined_product(m, n, 4096, Recipe::nvfp4, Recipe::nvfp4);
    return kBlockScaledKernels[plan_block_scaled(x, chip())->kernel].rows;
  };
  EXPECT_EQ(rows(64, 4096), 32);
  EXPECT_EQ(rows(512, 512), 32);
  EXPECT_EQ(rows(1280, 2176), 128);
  EXPECT_EQ(rows(4096, 4096), 128);
}

TEST(BlockScaledPlan, SaysWhatIsLaunched) {
  const auto text = [](std::int64_t m, Recipe a, Recipe b, ScaleLayout layout) {
    GemmArguments x = imagined_product(m, 4096, 4096, a, b);
    x.b.layout = layout;
    x.b.scale_leading_stride = x.b.scale_batch_stride = 0;
    x.b = resolved(x.b, "b");
    return cuda::describe_gemm(x, chip());
  };
  EXPECT_EQ(
      text(4096, Recipe::nvfp4, Recipe::nvfp4, ScaleLayout::swizzled_128x4),
      "gemm_block_scaled_nvfp4_nvfp4_128x128: 1024 tiles of 128 x 128, 32 stages of 128 of K; "
      "A's scales by words, B's by atoms; 170 x 288 threads, 4 stages, 91136 bytes shared, stored "
      "as boxes; 102.7 us by public figures, never measured\n"
      "kernels for compute capability 12.0: compiled and emulated, never run on silicon\n");
  EXPECT_THAT(text(8, Recipe::fp8_row, Recipe::fp8_row, ScaleLayout::row_major),
              HasSubstr("gemm_block_scaled_fp8_fp8_32x128: 32 tiles of 32 x 128, 32 stages of 128 "
                        "of K; A's scales at the end, B's at the end; 32 x 288 threads, 4 stages"));
}

}  // namespace
}  // namespace blockscale
