// How the kernels of many rows with weights in FP4 divide products, without a GPU. (What they do
// not take: few_rows_plan_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/imagined.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4TilesPlan;
using gemm_detail::plan_fp4_tiles;
using test::imagined_product;
using testing::HasSubstr;

/// What the driver and the kernel ask of a launch.
void expect_launchable(const Fp4TilesPlan& plan, const GemmArguments& x, const cuda::Chip& chip) {
  const Fp4TilesParams& p = plan.params;
  const Fp4TilesConfig config = kFp4TilesKernels[plan.kernel];
  const LaunchShape& shape = plan.shape;
  const std::int64_t blocks = std::int64_t{shape.grid.x} * shape.grid.y;
  EXPECT_EQ(shape.grid.x, p.blocks_k);
  EXPECT_EQ(shape.cluster.x, p.blocks_k);
  EXPECT_THAT(fp4_tiles::kBlocksK, ::testing::Contains(p.blocks_k));
  EXPECT_EQ(shape.block.x, fp4_tiles::kThreads);
  EXPECT_EQ(shape.dynamic_shared_bytes, memory_of(config, p.stages, p.is_direct).total);
  EXPECT_LE(shape.dynamic_shared_bytes, chip.shared_bytes);
  EXPECT_GE(p.stages, 3u);
  EXPECT_LE(p.stages, kFp4TilesMostStages);
  EXPECT_LE(blocks, std::int64_t{chip.multiprocessors} * blocks_per_multiprocessor(config));
  if (p.blocks_k > 1) {  // a cluster has one tile, and a block a multiprocessor
    EXPECT_EQ(shape.grid.y, p.order.dense.tiles);
    EXPECT_LE(blocks, chip.multiprocessors);
  }
  EXPECT_EQ(p.order.dense.tiles, ceil_div(x.d.rows, std::int64_t{config.tokens}) *
                                     ceil_div(x.d.columns, std::int64_t{fp4_tiles::kTileRows}) *
                                     x.d.batch);
  EXPECT_GE(std::int64_t{p.block_stages} * p.blocks_k * fp4_tiles::kStageK, x.a.k);
  EXPECT_EQ(std::int64_t{p.pieces} * fp4_tiles::kPieceK, has_codes(config) ? x.a.k : 0);
}

TEST(Fp4TilesPlan, ExistsForEveryShape) {
  std::mt19937_64 random(1);
  const auto size = [&](std::uint64_t bits) {
    return static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (1 + random() % bits)));
  };
  for (const int multiprocessors : {8, 78, 132}) {
    const cuda::Chip chip = test::chip_of(multiprocessors);
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
      for (const Recipe a : {Recipe::bf16, Recipe::f16}) {
        for (int i = 0; i < 50; ++i) {
          const GemmArguments x = imagined_product(size(13), size(15), 32 * size(9), a, b);
          const auto plan = plan_fp4_tiles(x, chip);
          ASSERT_TRUE(plan) << x.d.rows << " x " << x.d.columns << " x " << x.a.k;
          SCOPED_TRACE(plan->str());
          expect_launchable(*plan, x, chip);
        }
      }
    }
  }
}

/// A row's bits are to be the same among others: nothing that changes the order of its sums.
TEST(Fp4TilesPlan, DoesNotDivideKOfRowsOfTheSameBits) {
  for (const std::int64_t m : {1, 16, 100}) {
    GemmArguments x = imagined_product(m, 512, 8192);
    x.batch_invariant = true;
    const auto plan = plan_fp4_tiles(x, {});
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->params.blocks_k, 1u);
    EXPECT_EQ(gemm_detail::plan_product(x, {}).path(), gemm_detail::GemmPath::sm90_fp4_tiles);
  }
}

/// The stride of a row that is alone decides as it does beside others.
TEST(Fp4TilesPlan, TakesRowsOfTheSameBitsByTheirStride) {
  for (const std::int64_t m : {1, 2}) {
    GemmArguments x = imagined_product(m, 128, 256);
    x.batch_invariant = true;
    EXPECT_TRUE(plan_fp4_tiles(x, {})) << m;
    x.a.value_row_stride += 8;
    EXPECT_FALSE(plan_fp4_tiles(x, {})) << m;
  }
}

TEST(Fp4TilesPlan, TakesRowsThatTensorCopiesCount) {
  EXPECT_TRUE(plan_fp4_tiles(imagined_product(20, 128, (std::int64_t{1} << 30) - 32), {}));
  EXPECT_FALSE(plan_fp4_tiles(imagined_product(20, 128, std::int64_t{1} << 30), {}));
}

/// Scales of four stages are loaded together where each row's begin at a multiple of their size.
TEST(Fp4TilesPlan, LoadsScalesTogetherWhereTheyLieSo) {
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    const std::int64_t size = b == Recipe::nvfp4 ? 16 : 8;
    const auto together = [&](std::int64_t k, const auto& change) {
      GemmArguments x = imagined_product(100, 128, k, Recipe::bf16, b);
      change(x.b);
      const auto plan = plan_fp4_tiles(x, {});
      return plan && plan->params.scale_vectors;
    };
    EXPECT_TRUE(together(512, [](auto&) {}));
    EXPECT_FALSE(together(480, [](auto&) {}));
    EXPECT_TRUE(together(512, [&](auto& x) { x.scale_leading_stride += size; }));
    EXPECT_FALSE(together(512, [&](auto& x) { x.scale_leading_stride += size / 2; }));
    EXPECT_FALSE(together(
        512, [&](auto& x) { x.scales = static_cast<const std::uint8_t*>(x.scales) + size / 2; }));
    EXPECT_FALSE(together(512, [](auto& x) { x.layout = ScaleLayout::swizzled_128x4; }));
  }
}

TEST(Fp4TilesPlan, SaysWhatIsLaunched) {
  const auto text = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cuda::describe_gemm(imagined_product(m, n, k, Recipe::bf16, Recipe::mxfp4),
                               cuda::Chip{});
  };
  EXPECT_EQ(text(4096, 4096, 4096),
            "gemm_tiles_mxfp4_256x128: 512 tiles of 256 x 128, 64 stages of 64 of K; 132 x 384 "
            "threads, 5 stages, 211968 bytes shared, stored as boxes, directly\n");
  EXPECT_THAT(text(64, 4096, 7168), HasSubstr("divided among 3 blocks of a cluster; 96 x 384"));
}

/// Whether FP8's tensor cores multiply rows of A as they are, with weights that become e4m3.
bool stays_in_fp8(Recipe a, Recipe b) {
  return b == Recipe::mxfp4 && (a == Recipe::fp8_row || a == Recipe::fp8_tensor);
}

/// Where it is in FP8, MXFP8, NVFP4 or MXFP4: rows that begin anywhere, of any number but those
/// that kernels of few rows take, and those that stay in FP8 beside mxfp4.
TEST(Fp4TilesPlan, HasAConverted) {
  test::for_each_converted_pair([](Recipe a, Recipe b) {
    SCOPED_TRACE(std::string(recipe_traits(a).name) + " x " + recipe_traits(b).name);
    const RecipeTraits& t = recipe_traits(a);
    const bool has_few_rows = t.family == Family::fp8 && t.element == Format::e4m3;
    const bool stays = stays_in_fp8(a, b), may_lose = test::has_powers_of_two_of_k(a);
    for (const std::int64_t m : {1, 16, 17, 5000}) {
      for (const bool batch_invariant : {false, true}) {
        GemmArguments x = imagined_product(m, 512, 352, a, b);
        x.batch_invariant = batch_invariant;
        const auto plan = gemm_detail::plan_product(x, {});
        const bool is_few_rows = has_few_rows && m <= 16 && !batch_invariant;
        const auto of_tiles = may_lose && batch_invariant ? gemm_detail::GemmPath::plain
                                                          : gemm_detail::GemmPath::sm90_fp4_tiles;
        EXPECT_EQ(plan.path(), is_few_rows ? gemm_detail::GemmPath::fp4_few_rows
                               : stays     ? gemm_detail::GemmPath::sm90_fp8
                                           : of_tiles);
        const bool converts = plan.path() == gemm_detail::GemmPath::sm90_fp4_tiles;
        EXPECT_EQ(plan.workspace_bytes, converts ? m * 384 * 2 + (may_lose ? 16 : 0) : 0);
        x.a.values = gemm_detail::byte_at(x.a.values, 1);
        x.a.value_row_stride += 7;
        EXPECT_EQ(gemm_detail::plan_product(x, {}).path(), of_tiles);
      }
    }
  });
}

/// Of NVFP4 and MXFP4 nothing is left but a tensor scale; of eight bits scales that hold for all of
/// K and those in f32 are, and others may make numbers that bf16 lacks.
TEST(Fp4TilesPlan, LeavesScalesOfConvertedRowsToSums) {
  test::for_each_converted_pair([](Recipe a, Recipe b) {
    SCOPED_TRACE(std::string(recipe_traits(a).name) + " x " + recipe_traits(b).name);
    GemmArguments x = imagined_product(40, 512, 256, a, b);
    float tensor_scale = 3;
    if (a == Recipe::nvfp4) x.a.tensor_scale = &tensor_scale;
    const auto plan = plan_fp4_tiles(x, {});
    ASSERT_TRUE(plan);
    const bool may_lose = test::has_powers_of_two_of_k(a);
    const bool has_left = format_traits(recipe_traits(a).element).bits == 8 && !may_lose;
    const bool promotes = has_left && test::has_scales_of_k(a);
    const EpilogueScales& left = plan->params.epilogue.row_scales;
    EXPECT_EQ(left.data, has_left && !promotes ? x.a.scales : nullptr);
    EXPECT_EQ(left.stride, a == Recipe::fp8_row ? 1 : 0);
    EXPECT_EQ(plan->params.epilogue.keeps_sums, !has_left || promotes);
    EXPECT_EQ(plan->params.a_scales.data, promotes ? x.a.scales : nullptr);
    EXPECT_EQ(kFp4TilesKernels[plan->kernel].promotes, promotes);
    EXPECT_EQ(plan->params.a_tensor_scale.data, x.a.tensor_scale);
    EXPECT_EQ(plan->params.loss != nullptr, may_lose);
    EXPECT_EQ(plan->fallback.has_value(), may_lose);
    ASSERT_EQ(plan->conversion.has_value(), !stays_in_fp8(a, b));
    if (!plan->conversion) return;
    EXPECT_EQ(plan->conversion->params.scales == nullptr, has_left);
    EXPECT_EQ(plan->conversion->params.loss, plan->params.loss);
    EXPECT_EQ(plan->conversion->params.tensor_scale_use, TensorScaleUse::none);
  });
}

/// Of FP8's tensor cores alone; other rows and weights have what they have without.
TEST(Fp4TilesPlan, AccumulatesFastInFp8) {
  const auto plan_of = [](Recipe a, Recipe b, bool fast) {
    GemmArguments x = imagined_product(1024, 4096, 4096, a, b);
    x.fast_accumulation = fast;
    return gemm_detail::plan_product(x, {});
  };
  for (const Recipe a : {Recipe::fp8_row, Recipe::fp8_tensor}) {
    EXPECT_EQ(plan_of(a, Recipe::mxfp4, true).path(), gemm_detail::GemmPath::sm90_fp8_fast);
    EXPECT_EQ(plan_of(a, Recipe::mxfp4, false).path(), gemm_detail::GemmPath::sm90_fp8);
    EXPECT_THAT(plan_of(a, Recipe::mxfp4, true).str(), HasSubstr("fast accumulation"));
    EXPECT_EQ(plan_of(a, Recipe::nvfp4, true).str(), plan_of(a, Recipe::nvfp4, false).str());
  }
  EXPECT_EQ(plan_of(Recipe::fp8_1x128, Recipe::mxfp4, true).path(),
            gemm_detail::GemmPath::sm90_fp4_tiles);
}

TEST(Fp4TilesPlan, ConvertsNoTerabyte) {
  const auto path = [](std::int64_t m, std::int64_t k, Recipe a) {
    return gemm_detail::plan_product(imagined_product(m, 128, k, a, Recipe::mxfp4), {}).path();
  };
  constexpr std::int64_t kRows = std::int64_t{1} << 20;
  EXPECT_EQ(path(kRows, (1 << 19) - 64, Recipe::mxfp4), gemm_detail::GemmPath::sm90_fp4_tiles);
  EXPECT_EQ(path(kRows, 1 << 19, Recipe::mxfp4), gemm_detail::GemmPath::plain);
}

TEST(Fp4TilesPlan, SaysWhatIsConverted) {
  EXPECT_EQ(cuda::describe_gemm(imagined_product(1024, 4096, 4096, Recipe::fp8_row, Recipe::nvfp4),
                                cuda::Chip{}),
            "A in bf16 in the workspace by dequantize_e4m3_bf16: 1024 tiles of 1 rows, vector "
            "loads, vector stores\n"
            "gemm_tiles_nvfp4_256x128: 128 tiles of 256 x 128, 64 stages of 64 of K; 128 x "
            "384 threads, 5 stages, 211968 bytes shared, stored as boxes, directly\n"
            "workspace 8388608 bytes\n");
  EXPECT_THAT(
      cuda::describe_gemm(imagined_product(1024, 4096, 4096, Recipe::fp8_1x128, Recipe::nvfp4), {}),
      HasSubstr("gemm_tiles_nvfp4_128x128_promoted: 256 tiles of 128 x 128"));
  EXPECT_THAT(
      cuda::describe_gemm(imagined_product(1024, 4096, 4096, Recipe::mxfp8_e4m3, Recipe::nvfp4),
                          {}),
      testing::AllOf(
          HasSubstr("gemm_tiles_nvfp4_256x128: 128 tiles of 256 x 128"),
          HasSubstr("in its place, where bf16 lacks one of their numbers, gemm_plain_128x128")));
}

/// Two sets of sums leave no room for tiles of 256 rows.
TEST(Fp4TilesPlan, PromotesTilesOf128RowsAtMost) {
  for (const std::int64_t m : {1, 64, 65, 300, 4096}) {
    const GemmArguments x = imagined_product(m, 4096, 4096, Recipe::fp8_1x128, Recipe::mxfp4);
    const auto plan = plan_fp4_tiles(x, {});
    ASSERT_TRUE(plan) << m;
    EXPECT_LE(kFp4TilesKernels[plan->kernel].tokens, 128);
    expect_launchable(*plan, x, {});
    EXPECT_FALSE(plan_fp4_tiles(x, {}, nullptr, gemm_detail::Fp4TilesDivision{256, 1}));
  }
}

/// Of B in 16 bits, or in MX that becomes it.
TEST(Fp4TilesPlan, HasBInSixteenBits) {
  constexpr gemm_detail::Fp4TilesDivision kDivision = {128, 1};
  test::for_each_16_bit_tiles_pair([&](Recipe a, Recipe b) {
    SCOPED_TRACE(std::string(recipe_traits(a).name) + " x " + recipe_traits(b).name);
    const bool converts = !is_plain(b);
    for (const std::int64_t m : {1, 127, 5000}) {
      GemmArguments x = imagined_product(m, 512, 352, a, b);
      const auto plan = plan_fp4_tiles(x, {}, nullptr, kDivision);
      ASSERT_TRUE(plan) << m;
      EXPECT_EQ(plan->workspace_bytes,
                ((is_plain(a) ? 0 : m) + (converts ? 512 : 0)) * 384 * 2 + (converts ? 16 : 0));
      expect_launchable(*plan, x, {});
      x.b.values = gemm_detail::byte_at(x.b.values, 1);
      EXPECT_EQ(plan_fp4_tiles(x, {}, nullptr, kDivision).has_value(), converts);
    }
  });
}

/// Calls have it where that is expected to be faster than by the plain kernel: rows that pay for
/// the conversion, of weights that pay for its launches, whose bits may depend on their number.
TEST(Fp4TilesPlan, TakesBInSixteenBitsWhereItIsFaster) {
  const auto takes = [](std::int64_t m, std::int64_t size, Recipe a, Recipe b,
                        bool batch_invariant = false) {
    GemmArguments x = imagined_product(m, size, size, a, b);
    x.batch_invariant = batch_invariant;
    return gemm_detail::plan_product(x, {}).path() == gemm_detail::GemmPath::sm90_fp4_tiles;
  };
  for (const Recipe both : {Recipe::bf16, Recipe::f16}) {
    EXPECT_FALSE(takes(64, 4096, both, both));
    EXPECT_TRUE(takes(100, 4096, both, both));
    EXPECT_TRUE(takes(128, 512, both, both));
    EXPECT_TRUE(takes(4096, 4096, both, both));
    EXPECT_FALSE(takes(4096, 4096, both, both, true));
  }
  for (const auto& [a, b] : {std::pair{Recipe::bf16, Recipe::mxfp6_e3m2},
                             {Recipe::bf16, Recipe::mxfp8_e4m3},
                             {Recipe::fp8_row, Recipe::mxfp8_e5m2},
                             {Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3}}) {
    EXPECT_FALSE(takes(20, 4096, a, b));
    EXPECT_TRUE(takes(64, 4096, a, b));
    EXPECT_FALSE(takes(256, 1024, a, b));
    EXPECT_TRUE(takes(4096, 1024, a, b));
    EXPECT_FALSE(takes(4096, 4096, a, b, true));
  }
}

/// Behind products of what bf16 may lack: of the operands themselves, by blocks that are few.
TEST(Fp4TilesPlan, HasAFallbackWhereBIsConverted) {
  test::for_each_16_bit_tiles_pair([](Recipe a, Recipe b) {
    SCOPED_TRACE(std::string(recipe_traits(a).name) + " x " + recipe_traits(b).name);
    const GemmArguments x = imagined_product(4096, 4096, 4096, a, b);
    const auto plan = plan_fp4_tiles(x, {});
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->fallback.has_value(), !is_plain(b));
    const ConversionLoss* const loss = plan->params.loss;
    EXPECT_EQ(loss == nullptr, is_plain(b));
    if (is_plain(b)) return;
    EXPECT_EQ(plan->b_conversion->params.loss, loss);
    EXPECT_TRUE(!plan->conversion || plan->conversion->params.loss == loss);
    EXPECT_EQ(plan->fallback->params.loss, loss);
    EXPECT_EQ(plan->fallback->params.operands[1].values, x.b.values);
    EXPECT_EQ(plan->fallback->params.operands[0].values, x.a.values);
    EXPECT_EQ(plan->fallback->shape.grid.x, 2 * 132);
    EXPECT_EQ(plan->fallback->params.order.tiles, 32 * 32);
  });
}

/// f16 does not hold MX's elements, nor bf16 those of f16, and sums would need scales in f32.
TEST(Fp4TilesPlan, LeavesWhatSixteenBitsDoNotHold) {
  for (const auto& [a, b] : {std::pair{Recipe::f16, Recipe::mxfp8_e4m3},
                             {Recipe::f16, Recipe::bf16},
                             {Recipe::bf16, Recipe::f16},
                             {Recipe::f32, Recipe::bf16},
                             {Recipe::bf16, Recipe::fp8_row},
                             {Recipe::fp8_1x128, Recipe::mxfp6_e2m3}}) {
    EXPECT_FALSE(plan_fp4_tiles(imagined_product(1024, 512, 384, a, b), {}, nullptr,
                                gemm_detail::Fp4TilesDivision{128, 1}))
        << recipe_traits(a).name << " x " << recipe_traits(b).name;
  }
}

TEST(Fp4TilesPlan, SaysThatBIsConverted) {
  const auto plan =
      plan_fp4_tiles(imagined_product(1024, 4096, 4096, Recipe::fp8_row, Recipe::mxfp8_e4m3), {},
                     nullptr, gemm_detail::Fp4TilesDivision{256, 1});
  ASSERT_TRUE(plan);
  EXPECT_EQ(
      plan->str(),
      "A in bf16 in the workspace by dequantize_e4m3_bf16: 1024 tiles of 1 rows, vector loads, "
      "vector stores\n"
      "B in bf16 in the workspace by dequantize_e4m3_bf16: 4096 tiles of 1 rows, vector loads, "
      "vector stores\n"
      "gemm_tiles_plain_256x128: 128 tiles of 256 x 128, 64 stages of 64 of K; 128 x 384 "
      "threads, 4 stages, 214016 bytes shared, stored as boxes, directly\n"
      "in its place, where bf16 lacks one of their numbers, gemm_plain_128x128_bf16: 256 tiles of "
      "128 x 128, 64 tiles of 64 of K; A e4m3, by 16 bytes; B e4m3, by 16 bytes; scales for 32 of "
      "K; 512 threads, 4 stages, 139264 bytes shared, stored by pairs\n"
      "workspace 41943056 bytes\n");
}

}  // namespace
}  // namespace blockscale
