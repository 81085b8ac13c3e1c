// Plans of plain kernels, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/test/imagined.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/gemm/validate.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using gemm_detail::PlainGemmPlan;
using test::imagined_product;
using testing::HasSubstr;

/// What the driver and the kernel ask of a launch.
void expect_launchable(const PlainGemmPlan& plan, const GemmArguments& x, const cuda::Chip& chip) {
  ASSERT_TRUE(plan.product);
  const PlainGemmConfig c = kPlainGemmKernels[plan.product->kernel];
  const PlainGemmParams& p = plan.product->params;
  const LaunchShape& shape = plan.product->shape;
  EXPECT_EQ(shape.block.x, static_cast<std::uint32_t>(threads_of(c)));
  EXPECT_EQ(shape.grid.x, p.order.tiles);
  EXPECT_EQ(shape.dynamic_shared_bytes, memory_of(c, p.operands, p.stages).total);
  EXPECT_LE(shape.dynamic_shared_bytes, chip.shared_bytes);
  EXPECT_GE(p.stages, kPlainLeastStages);
  EXPECT_LE(p.stages, static_cast<std::uint32_t>(c.stages));
  EXPECT_GE(std::int64_t{p.order.tiles_m} * c.rows, x.d.rows);
  EXPECT_GE(std::int64_t{p.order.tiles_n} * c.columns, x.d.columns);
  EXPECT_GE(std::int64_t{p.k_tiles} * c.depth, x.a.k);
}

/// Of every pair and any shape, on the chips with the most and the least shared memory.
TEST(PlainGemmPlan, AlwaysExists) {
  std::mt19937_64 random(1);
  const auto size = [&](std::uint64_t bits) {
    return static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (1 + random() % bits)));
  };
  for (const char* const name : {"H200", "RTX 5090"}) {
    const cuda::Chip& chip = cuda::chip_named(name);
    test::for_each_pair([&](Recipe a, Recipe b) {
      for (int i = 0; i < 20; ++i) {
        const GemmArguments x = imagined_product(size(13), size(15), 32 * size(9), a, b);
        SCOPED_TRACE(cuda::describe_gemm(x, chip));
        expect_launchable(gemm_detail::plan_plain_gemm(x, chip), x, chip);
      }
    });
  }
}

TEST(PlainGemmPlan, ServesWhereNoFp8KernelDoes) {
  const GemmArguments fp8 = imagined_product(64, 64, 128, Recipe::fp8_1x128, Recipe::fp8_128x128);
  EXPECT_THAT(cuda::describe_gemm(fp8, cuda::chip_named("H200")), Not(HasSubstr("plain")));
  EXPECT_THAT(cuda::describe_gemm(fp8, cuda::chip_named("B200")), HasSubstr("plain: gemm_plain_"));
  EXPECT_THAT(
      cuda::describe_gemm(imagined_product(64, 64, 128, Recipe::fp8_1x128, Recipe::mxfp6_e2m3),
                          cuda::chip_named("H200")),
      HasSubstr("plain: gemm_plain_"));
}

TEST(PlainGemmPlan, SaysWhatIsLaunched) {
  const cuda::Chip& h200 = cuda::chip_named("H200");
  EXPECT_THAT(cuda::describe_gemm(imagined_product(4096, 4096, 4096, Recipe::nvfp4, Recipe::nvfp4),
                                  cuda::chip_named("B200")),
              HasSubstr("gemm_plain_128x128_bf16: 1024 tiles of 128 x 128, 64 tiles of 64 of K; A "
                        "e2m1, by 16 bytes; B e2m1, by 16 bytes; scales for 16 of K"));
  EXPECT_THAT(
      cuda::describe_gemm(imagined_product(1, 4096, 4096, Recipe::f16, Recipe::mxfp6_e2m3), h200),
      HasSubstr("gemm_plain_16x16_f16: 256 tiles"));
  EXPECT_THAT(cuda::describe_gemm(imagined_product(512, 512, 512, Recipe::f32, Recipe::f32), h200),
              HasSubstr("A f32 in 3 parts, by 16 bytes; B f32 in 3 parts"));
  EXPECT_THAT(cuda::describe_gemm(imagined_product(0, 512, 512, Recipe::f32, Recipe::f32), h200),
              HasSubstr("nothing to do"));
}

TEST(PlainGemmPlan, RefusesWhatItCannotCount) {
  GemmArguments x = imagined_product(1, 1, std::int64_t{1} << 29, Recipe::f32, Recipe::f32);
  test::expect_error(ErrorCode::unsupported, "a.k", "rows of less than 2^31 bytes",
                     [&] { (void)gemm_detail::plan_plain_gemm(x, {}); });
}

}  // namespace
}  // namespace blockscale
