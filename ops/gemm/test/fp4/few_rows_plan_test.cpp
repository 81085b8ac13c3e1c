// Which products the kernels of few rows with weights in FP4 and MXFP8 take, and how they divide
// them, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/imagined.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/validate.h"
#include "runtime/kernels/architecture.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using gemm_detail::Fp4GemmPlan;
using gemm_detail::plan_fp4_gemm;
using gemm_detail::plan_fp4_tiles;
using test::imagined_product;
using testing::HasSubstr;

/// What the driver and the kernel ask of a launch.
void expect_launchable(const Fp4GemmPlan& plan, const GemmArguments& x, const cuda::Chip& chip) {
  const Fp4GemmParams& p = plan.params;
  const LaunchShape& shape = plan.shape;
  const Fp4GemmConfig config = kFp4GemmKernels[plan.kernel];
  EXPECT_EQ(shape.grid.x, p.blocks_k);
  EXPECT_EQ(shape.cluster.x, p.blocks_k);
  EXPECT_LE(p.blocks_k, kFp4MostBlocksK);
  EXPECT_LE(p.blocks_k, runtime::most_cluster_blocks(chip.architecture));
  EXPECT_LE(std::int64_t{shape.grid.x} * shape.grid.y, chip.multiprocessors);
  EXPECT_EQ(shape.grid.z, x.d.batch);
  EXPECT_EQ(shape.block.x, 32 * p.warps_k * p.block_tiles);
  EXPECT_LE(shape.block.x, 32 * kFp4MostWarps);
  const std::uint32_t chunks = p.row_loads.divisor / (config.chunk_k() / config.load_elements());
  EXPECT_TRUE(chunks == p.block_chunks || (config.refills && chunks % p.warps_k == 0));
  EXPECT_EQ(shape.dynamic_shared_bytes,
            memory_of_fp4(config, p.epilogue.rows, chunks, p.warps_k * p.block_tiles).total);
  EXPECT_LE(shape.dynamic_shared_bytes, chip.shared_bytes);
  EXPECT_EQ(std::int64_t{p.pieces} * config.piece_k(), x.a.k);
  EXPECT_GE(std::int64_t{p.block_chunks} * p.blocks_k * config.chunk_k(), x.a.k);
  EXPECT_GE(std::int64_t{p.tiles} * kFp4TileRows, x.d.columns);
  EXPECT_LE(x.d.rows, config.tokens);
}

TEST(Fp4GemmPlan, ExistsForEveryShapeOfFewRows) {
  std::mt19937_64 random(1);
  const auto size = [&](std::uint64_t bits) {
    return static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (1 + random() % bits)));
  };
  for (const int multiprocessors : {8, 78, 132}) {
    const cuda::Chip chip = test::chip_of(multiprocessors);
    test::for_each_few_rows_pair([&](Recipe a, Recipe b) {
      for (int i = 0; i < 50; ++i) {
        const GemmArguments x = imagined_product(size(4) % 16 + 1, size(15), 32 * size(9), a, b);
        const auto plan = plan_fp4_gemm(x, chip);
        ASSERT_TRUE(plan) << x.d.rows << " x " << x.d.columns << " x " << x.a.k;
        SCOPED_TRACE(plan->str());
        expect_launchable(*plan, x, chip);
      }
    });
  }
}

/// Of few rows, and what is left of them for many.
void expect_nothing_else_is_taken(std::int64_t m) {
  const cuda::Chip chip;
  const GemmArguments good = imagined_product(m, 4096, 4096);
  EXPECT_EQ(plan_fp4_gemm(good, chip).has_value(), m <= 16);
  EXPECT_TRUE(plan_fp4_tiles(good, chip));
  const auto expect_tiles = [&](const char* what, const GemmArguments& x) {
    EXPECT_FALSE(plan_fp4_gemm(x, chip)) << what;
    EXPECT_EQ(gemm_detail::plan_product(x, chip).path(), gemm_detail::GemmPath::sm90_fp4_tiles)
        << what;
  };
  const auto expect_plain = [&](const char* what, const GemmArguments& x) {
    EXPECT_FALSE(plan_fp4_gemm(x, chip)) << what;
    EXPECT_FALSE(plan_fp4_tiles(x, chip)) << what;
    EXPECT_EQ(gemm_detail::plan_product(x, chip).path(), gemm_detail::GemmPath::plain) << what;
  };
  const auto changed = [&](const std::function<void(GemmArguments&)>& change) {
    GemmArguments x = good;
    change(x);
    return x;
  };
  expect_tiles("more rows", imagined_product(17, 4096, 4096));
  expect_plain("A in f32", imagined_product(m, 4096, 4096, Recipe::f32));
  expect_tiles("A in MXFP8", imagined_product(m, 4096, 4096, Recipe::mxfp8_e4m3));
  expect_tiles("A in e5m2", imagined_product(m, 4096, 4096, Recipe::fp8_tensor_e5m2));
  expect_tiles("A in NVFP4", imagined_product(m, 4096, 4096, Recipe::nvfp4));
  for (const auto& [a, b] :
       {std::pair{Recipe::fp8_row, Recipe::mxfp8_e4m3}, {Recipe::bf16, Recipe::mxfp6_e2m3}}) {
    const GemmArguments x = imagined_product(m, 4096, 4096, a, b);
    if (m > 16) {
      expect_tiles("B that becomes bf16", x);
    } else {
      expect_plain("few rows of it", x);
    }
  }
  expect_plain("half a piece of K", imagined_product(m, 4096, 4096 + 16));
  expect_plain("no K", imagined_product(m, 4096, 0));
  expect_plain("no element", imagined_product(m, 0, 4096));
  expect_tiles("rows of the same bits", changed([](auto& x) { x.batch_invariant = true; }));
  expect_plain("rows of B that begin anywhere",
               changed([](auto& x) { x.b.value_row_stride += 8; }));
  expect_plain("rows of A that begin anywhere",
               changed([](auto& x) { x.a.value_row_stride += 2; }));
  expect_plain("scales with rows inner", changed([](auto& x) {
                 x.b.layout = ScaleLayout::mn_major;
                 x.b.scale_leading_stride = x.b.rows;
               }));
  expect_plain("pairs of scales that begin anywhere",
               changed([](auto& x) { x.b.scale_leading_stride += 1; }));
  expect_plain("tiles of scales that begin anywhere", changed([](auto& x) {
                 x.b.layout = ScaleLayout::swizzled_128x4;
                 x.b.scales = gemm_detail::byte_at(x.b.scales, 1);
               }));
  EXPECT_FALSE(plan_fp4_gemm(good, cuda::chip_named("B200")));
  EXPECT_EQ(plan_fp4_gemm(good, cuda::chip_named("RTX 5090")).has_value(), m <= 16);
  EXPECT_FALSE(plan_fp4_tiles(good, cuda::chip_named("RTX 5090")));
}

TEST(Fp4GemmPlan, TakesNothingElse) {
  for (const std::int64_t m : {8, 80}) {
    SCOPED_TRACE(m);
    expect_nothing_else_is_taken(m);
  }
}

TEST(Fp4GemmPlan, TakesWhatAQuantizerIsBehind) {
  using gemm_detail::GemmPath;
  for (const std::int64_t m : {8, 80}) {
    const GemmArguments x = imagined_gemm(m, 4096, 4096, Recipe::bf16, Recipe::nvfp4, Format::f32,
                                          1, Recipe::mxfp8_e4m3, {});
    const auto plan = gemm_detail::plan_product(gemm_detail::validated(x, {}), {});
    EXPECT_EQ(plan.path(), m == 8 ? GemmPath::fp4_few_rows : GemmPath::sm90_fp4_tiles);
    EXPECT_TRUE(plan.quantization);
  }
}

TEST(Fp4GemmPlan, TakesEveryFp8RecipeOfE4m3) {
  for (const RecipeTraits& a : kRecipes) {
    if (a.family != Family::fp8 || a.element != Format::e4m3) continue;
    for (const ScaleLayout layout : test::layouts_of(a.recipe)) {
      GemmArguments x =
          imagined_gemm(16, 512, 384, a.recipe, Recipe::mxfp4, Format::bf16, 1, {}, {});
      x.a.layout = layout;
      x.a.scale_leading_stride = 0;
      const auto plan = plan_fp4_gemm(gemm_detail::validated(x, {}), {});
      ASSERT_TRUE(plan) << a.name;
      EXPECT_THAT(plan->str(), HasSubstr("gemm_few_rows_mxfp4_e4m3_16: 32 tiles"));
    }
  }
}

/// Scales of MX are bytes, which may begin anywhere.
TEST(Fp4GemmPlan, TakesMxScalesAtAnyByte) {
  GemmArguments x = imagined_product(1, 512, 256, Recipe::f16, Recipe::mxfp4);
  x.b.scale_leading_stride += 1;
  EXPECT_TRUE(plan_fp4_gemm(x, {}));
}

TEST(Fp4GemmPlan, SaysWhatIsLaunched) {
  const auto text = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cuda::describe_gemm(imagined_product(m, n, k, Recipe::bf16, Recipe::mxfp4),
                               cuda::Chip{});
  };
  EXPECT_EQ(text(1, 7168, 2048),
            "gemm_few_rows_mxfp4_8: 448 tiles of 16 rows of B, 4 a block, K divided among 4 "
            "warps; 112 x 512 threads, 6720 bytes shared\n");
  EXPECT_THAT(text(16, 8192, 8192), HasSubstr("warps of each of 2 blocks of a cluster; "));
  EXPECT_THAT(text(16, 8192, 8192), HasSubstr("gemm_few_rows_mxfp4_16: 512 tiles"));
  EXPECT_THAT(
      cuda::describe_gemm(imagined_product(3, 512, 96, Recipe::f16, Recipe::mxfp8_e5m2), {}),
      HasSubstr("gemm_few_rows_mxfp8_8: 32 tiles"));
}

/// What SM120 has of them: FP4 beside bf16 and f16, a kernel for all numbers of rows, K undivided
/// among blocks, A in 99 KiB or brought in parts.
TEST(Fp4GemmPlan, OnSm120) {
  for (const char* const name : {"RTX PRO 6000", "RTX 5090", "GB10"}) {
    const cuda::Chip& chip = cuda::chip_named(name);
    test::for_each_fp4_pair([&](Recipe a, Recipe b) {
      for (const std::int64_t m : {1, 8, 9, 16}) {
        for (const std::int64_t n : {8, 4096, 14336}) {
          for (const std::int64_t k : {32, 2880, 5120, 28672}) {
            const GemmArguments x = imagined_product(m, n, k, a, b);
            const auto plan = plan_fp4_gemm(x, chip);
            ASSERT_TRUE(plan) << m << " x " << n << " x " << k;
            SCOPED_TRACE(plan->str());
            expect_launchable(*plan, x, chip);
            EXPECT_EQ(kFp4GemmKernels[plan->kernel].tokens, 16);
            EXPECT_LE(plan->shape.block.x, 32 * kFp4MostWarpsOfSm120);
          }
        }
      }
    });
    const auto path = [&](std::int64_t m, Recipe a, Recipe b) {
      return gemm_detail::plan_product(imagined_product(m, 512, 4096, a, b), chip).path();
    };
    using gemm_detail::GemmPath;
    EXPECT_EQ(path(16, Recipe::f16, Recipe::nvfp4), GemmPath::fp4_few_rows);
    EXPECT_EQ(path(4, Recipe::fp8_1x128, Recipe::nvfp4), GemmPath::plain);
    EXPECT_EQ(path(4, Recipe::bf16, Recipe::mxfp8_e4m3), GemmPath::plain);
    EXPECT_EQ(path(4, Recipe::nvfp4, Recipe::nvfp4), GemmPath::sm120_block_scaled);
  }
  const auto text = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cuda::describe_gemm(imagined_product(m, n, k), cuda::chip_named("RTX 5090"));
  };
  EXPECT_EQ(text(4, 7168, 2048),
            "gemm_few_rows_nvfp4_16_refilled: 448 tiles of 16 rows of B, 3 a block, K divided "
            "among 4 warps; 150 x 384 threads, 24320 bytes shared\n"
            "kernels for compute capability 12.0: compiled and emulated, never run on silicon\n");
  EXPECT_THAT(text(16, 7168, 8192), HasSubstr(", A in 4 parts of K each turn\n"));
}

/// What the model chooses for the shapes of docs/log/gemm-fp4.md: blocks that divide K, warps that
/// do, tiles of a block, on chips of 132 and of 78 multiprocessors.
TEST(Fp4GemmPlan, DivisionsOfKnownShapes) {
  struct Shape {
    std::int64_t m, n, k;
    const char* of_132;
    const char* of_78;
  };
  const Shape shapes[] = {
      {1, 7168, 2048, "1 4 4", "1 2 6"},    {16, 7168, 2048, "1 4 4", "1 2 6"},
      {1, 4096, 7168, "1 7 2", "1 2 4"},    {16, 4096, 7168, "2 4 4", "2 2 7"},
      {1, 24576, 1536, "1 1 12", "1 1 10"}, {16, 24576, 1536, "1 1 12", "1 1 10"},
      {1, 8192, 8192, "1 4 4", "1 2 7"},    {16, 8192, 8192, "2 2 8", "2 1 14"},
      {1, 28672, 4096, "1 1 14", "1 1 12"}, {16, 28672, 4096, "1 1 14", "1 1 12"},
  };
  for (const Shape& s : shapes) {
    const auto division_on = [&](int multiprocessors) {
      const auto plan =
          plan_fp4_gemm(imagined_product(s.m, s.n, s.k), test::chip_of(multiprocessors));
      if (!plan) return std::string("none");
      const Fp4GemmParams& p = plan->params;
      return std::to_string(p.blocks_k) + " " + std::to_string(p.warps_k) + " " +
             std::to_string(p.block_tiles);
    };
    EXPECT_EQ(division_on(132), s.of_132) << s.m << " x " << s.n << " x " << s.k;
    EXPECT_EQ(division_on(78), s.of_78) << s.m << " x " << s.n << " x " << s.k;
  }
}

/// Shapes of GELU and SwiGLU, and of shared experts, go the same way.
TEST(Fp4GemmPlan, IsPartOfProductPlans) {
  GemmArguments x = imagined_gemm(4, 512, 256, Recipe::bf16, Recipe::nvfp4, Format::bf16, 1, {},
                                  QuantizeInput{Swiglu{}});
  const std::string text = gemm_detail::plan_product(gemm_detail::validated(x, {}), {}).str();
  EXPECT_THAT(text, HasSubstr("gemm_few_rows_nvfp4_8"));
}

}  // namespace
}  // namespace blockscale
