// How the kernels of many rows with weights in FP4 divide products, without a GPU. (What they do
// not take: fp4_plan_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/imagined.h"
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
  EXPECT_LE(p.blocks_k, fp4_tiles::kMostBlocksK);
  EXPECT_EQ(shape.block.x, fp4_tiles::kThreads);
  EXPECT_EQ(shape.dynamic_shared_bytes, memory_of(config, p.stages, p.is_direct).total);
  EXPECT_LE(shape.dynamic_shared_bytes, chip.shared_bytes);
  EXPECT_GE(p.stages, 3u);
  EXPECT_LE(p.stages, kFp4TilesMostStages);
  EXPECT_LE(blocks, std::int64_t{chip.multiprocessors} * blocks_per_multiprocessor(config));
  if (p.blocks_k > 1) {  // a cluster has one tile, and a block a multiprocessor
    EXPECT_EQ(shape.grid.y, p.order.tiles);
    EXPECT_LE(blocks, chip.multiprocessors);
  }
  EXPECT_EQ(p.order.tiles, ceil_div(x.d.rows, std::int64_t{config.tokens}) *
                               ceil_div(x.d.columns, std::int64_t{fp4_tiles::kTileRows}) *
                               x.d.batch);
  EXPECT_GE(std::int64_t{p.block_stages} * p.blocks_k * fp4_tiles::kStageK, x.a.k);
  EXPECT_EQ(std::int64_t{p.pieces} * fp4_tiles::kPieceK, x.a.k);
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

TEST(Fp4TilesPlan, SaysWhatIsLaunched) {
  const auto text = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cuda::describe_gemm(imagined_product(m, n, k, Recipe::bf16, Recipe::mxfp4),
                               cuda::Chip{});
  };
  EXPECT_EQ(
      text(4096, 4096, 4096),
      "gemm_tiles_mxfp4_bf16_256x128: 512 tiles of 256 x 128, 64 stages of 64 of K; 132 x 384 "
      "threads, 4 stages, 207872 bytes shared, stored as boxes\n");
  EXPECT_THAT(text(64, 4096, 7168), HasSubstr("divided among 2 blocks of a cluster; 64 x 384"));
}

}  // namespace
}  // namespace blockscale
