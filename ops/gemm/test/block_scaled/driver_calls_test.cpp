// What products of operands with scales ask of the driver on a device of compute capability 12.0,
// against a fake libcuda.so.1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "models/testing.h"
#include "ops/gemm/kernels/sm120/block_scaled_params.h"
#include "tests/on_fake_driver.h"

namespace blockscale {
namespace {

using test::FakeLaunch;
using testing::ElementsAre;
using testing::StartsWith;

class BlockScaledDriverCalls : public test::OnFakeDriver {
 protected:
  void SetUp() override {
    setenv("BLOCKSCALE_CACHE", (folder_ / "cache").c_str(), 1);
    fake_.reset();
    fake_.compute_capability = 120;
    fake_.parameter_bytes = 64;
  }

  void TearDown() override { unsetenv("BLOCKSCALE_CACHE"); }

  static GemmArguments product(std::int64_t m, Recipe a, Recipe b) {
    GemmArguments x;
    x.a = {a, m, 512};
    x.b = {b, 256, 512};
    x.a.values = memory(0);
    x.a.scales = memory(1);
    x.b.values = memory(2);
    x.b.scales = memory(3);
    x.d = {memory(4), Format::bf16, m, 256};
    return x;
  }
  /// Of a call whose kernel has been tried.
  std::vector<FakeLaunch> launches_of(const GemmArguments& x) {
    for (int call = 0; call < 2; ++call) {
      fake_.calls.clear();
      fake_.launches.clear();
      cuda::gemm(x, {.workspace = memory(5), .workspace_bytes = cuda::gemm_workspace_bytes(x)});
    }
    return fake_.launches;
  }
  std::vector<std::string> kernels_of(const GemmArguments& x) {
    std::vector<std::string> kernels;
    for (const FakeLaunch& launch : launches_of(x)) kernels.push_back(launch.kernel);
    return kernels;
  }

  test::ScratchFolder folder_;
};

TEST_F(BlockScaledDriverCalls, ARepeatedCallLaunchesTheSame) {
  const GemmArguments x = product(40'000, Recipe::nvfp4, Recipe::nvfp4);
  const std::vector<FakeLaunch> first = launches_of(x);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].kernel, "gemm_block_scaled_nvfp4_nvfp4_128x128");
  EXPECT_THAT(first[0].grid, ElementsAre(132u, 1u, 1u));
  EXPECT_TRUE(first[0].programmatic_dependent_launch);
  EXPECT_LE(first[0].dynamic_shared_bytes, 99u << 10);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::vector<FakeLaunch> again = launches_of(x);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].parameters, first[0].parameters);
    EXPECT_EQ(fake_.calls["cuTensorMapEncodeTiled"], 0);
    EXPECT_EQ(fake_.calls["cuMemAlloc_v2"], 0);
  }
}

TEST_F(BlockScaledDriverCalls, EachPairHasAKernel) {
  using R = Recipe;
  EXPECT_THAT(kernels_of(product(8, R::mxfp8_e4m3, R::mxfp6_e3m2)),
              ElementsAre("gemm_block_scaled_mxfp8_e4m3_mxfp6_e3m2_32x128"));
  EXPECT_THAT(kernels_of(product(80, R::fp8_1x128, R::fp8_128x128)),
              ElementsAre("gemm_block_scaled_fp8_fp8_32x128"));
  EXPECT_THAT(kernels_of(product(80, R::mxfp6_e3m2, R::mxfp6_e3m2)),
              ElementsAre(StartsWith("gemm_plain_")));
}

TEST_F(BlockScaledDriverCalls, WhatFollowsIsALaunchOfItsOwn) {
  GemmArguments x = product(40, Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3);
  x.transform = Gelu{};
  EXPECT_THAT(kernels_of(x),
              ElementsAre("gemm_block_scaled_mxfp8_e4m3_mxfp8_e4m3_32x128", "gemm_transform"));
  x.transform = Identity{};
  x.d = {};
  x.quantized.emplace();
  x.quantized->out = {Recipe::mxfp8_e4m3, 40, 256};
  x.quantized->out.values = memory(6);
  x.quantized->out.scales = memory(7);
  x.quantized->options.input = Gelu{};
  EXPECT_THAT(kernels_of(x), ElementsAre("gemm_block_scaled_mxfp8_e4m3_mxfp8_e4m3_32x128",
                                         StartsWith("quantize_blocks_mx_e4m3_32_f32_gelu")));
}

}  // namespace
}  // namespace blockscale
