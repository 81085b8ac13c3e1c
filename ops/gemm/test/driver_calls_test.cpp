// What a product asks of the driver, and what a thread keeps of it, against a fake libcuda.so.1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/kernels/params.h"
#include "ops/quantize/cuda/plan.h"
#include "runtime/cuda/driver.h"
#include "tests/expect_error.h"
#include "tests/fake_libcuda.h"
#include "tests/fake_pack.h"

namespace blockscale {
namespace {

using test::FakeLaunch;

class GemmDriverCalls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("BLOCKSCALE_LIBCUDA", BLOCKSCALE_FAKE_LIBCUDA, 1);
    std::vector<runtime::KernelSpec> specs = gemm_detail::fp8_gemm_kernel_specs();
    for (const auto& more :
         {gemm_detail::fp4_gemm_kernel_specs(), gemm_detail::fp4_tiles_kernel_specs()}) {
      specs.insert(specs.end(), more.begin(), more.end());
    }
    for (const runtime::KernelSpec& spec : quantize_detail::quantize_kernel_specs()) {
      specs.push_back(spec);
    }
    pack_ = std::make_unique<test::FakePack>(specs);
  }
  static void TearDownTestSuite() { pack_.reset(); }
  void SetUp() override {
    fake_.reset();
    fake_.parameter_bytes = sizeof(Fp8GemmParams);
  }

  /// Memory of a device in the fake, a part of its own for each number.
  static std::byte* memory(int part, int device = 0) {
    return reinterpret_cast<std::byte*>((static_cast<std::uintptr_t>(device + 1) << 32) +
                                        (static_cast<std::uintptr_t>(part) << 27));
  }
  static GemmArguments product(std::int64_t m, std::int64_t n, std::int64_t k, int device = 0) {
    GemmArguments x;
    x.a = {Recipe::fp8_1x128, m, k};
    x.b = {Recipe::fp8_128x128, n, k};
    x.a.values = memory(0, device);
    x.a.scales = memory(1, device);
    x.b.values = memory(2, device);
    x.b.scales = memory(3, device);
    x.d = {memory(4, device), Format::bf16, m, n};
    return x;
  }
  std::vector<FakeLaunch> launches_of(const std::function<void()>& call) {
    fake_.calls.clear();
    fake_.launches.clear();
    call();
    return fake_.launches;
  }
  std::vector<FakeLaunch> launches_of(const GemmArguments& x,
                                      const cuda::Execution& execution = {}) {
    return launches_of([&] { cuda::gemm(x, execution); });
  }
  static LinearEpilogue epilogue_of(const FakeLaunch& launch) {
    return reinterpret_cast<const Fp8GemmParams*>(launch.parameters.data())->epilogue;
  }

  inline static std::unique_ptr<test::FakePack> pack_;
  test::FakeCuda& fake_ = test::fake_cuda(BLOCKSCALE_FAKE_LIBCUDA);
};

void expect_same(const std::vector<FakeLaunch>& x, const std::vector<FakeLaunch>& y) {
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].kernel, y[i].kernel);
    EXPECT_EQ(x[i].device, y[i].device);
    EXPECT_EQ(x[i].grid, y[i].grid);
    EXPECT_EQ(x[i].cluster, y[i].cluster);
    EXPECT_EQ(x[i].dynamic_shared_bytes, y[i].dynamic_shared_bytes);
    EXPECT_EQ(x[i].programmatic_dependent_launch, y[i].programmatic_dependent_launch);
    EXPECT_EQ(x[i].parameters, y[i].parameters);
  }
}

TEST_F(GemmDriverCalls, ARepeatedCallLaunchesTheSame) {
  for (const auto& [m, n] : {std::pair{64, 576}, std::pair{16384, 2112}}) {
    const GemmArguments x = product(m, n, 7168);
    const std::vector<FakeLaunch> first = launches_of(x);
    EXPECT_EQ(first.size(), n == 2112 ? 2u : 1u);
    for (int repeat = 0; repeat < 2; ++repeat) {
      expect_same(launches_of(x), first);
      EXPECT_EQ(fake_.calls["cuTensorMapEncodeTiled"], 0);
      EXPECT_EQ(fake_.calls["cuPointerGetAttribute"], 5);
    }
    const std::vector<FakeLaunch> alone =
        launches_of([&] { cuda::gemm(x, {.stream = &fake_, .overlap = false}); });
    EXPECT_FALSE(alone[0].programmatic_dependent_launch);
    EXPECT_EQ(alone[0].stream, &fake_);
    EXPECT_EQ(alone[0].parameters, first[0].parameters);
  }
}

TEST_F(GemmDriverCalls, ARepeatedCallOfFewRowsLaunchesTheSame) {
  GemmArguments x = product(4, 576, 2048);
  x.a = {Recipe::bf16, 4, 2048};
  x.b = {Recipe::mxfp4, 576, 2048};
  x.a.values = memory(0);
  x.b.values = memory(2);
  x.b.scales = memory(3);
  fake_.parameter_bytes = sizeof(Fp4GemmParams);
  const std::vector<FakeLaunch> first = launches_of(x);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].programmatic_dependent_launch);
  for (int repeat = 0; repeat < 2; ++repeat) {
    expect_same(launches_of(x), first);
    EXPECT_EQ(fake_.calls["cuPointerGetAttribute"], 4);
  }
}

TEST_F(GemmDriverCalls, EveryArgumentCounts) {
  const GemmArguments x = product(64, 576, 512);
  (void)launches_of(x);
  GemmArguments other = x;
  other.alpha = -0.0f;
  (void)launches_of([&] { cuda::gemm(other); });
  EXPECT_TRUE(std::signbit(epilogue_of(fake_.launches[0]).alpha));
  other.alpha = 0.0f;
  EXPECT_FALSE(std::signbit(epilogue_of(launches_of(other)[0]).alpha));
  other = x;
  other.bias = memory(5);
  EXPECT_EQ(static_cast<const void*>(epilogue_of(launches_of(other)[0]).bias.data), memory(5));
  other.bias_dtype = Format::bf16;
  EXPECT_EQ(epilogue_of(launches_of(other)[0]).bias.dtype, Format::bf16);
  other = x;
  other.c = {memory(6), Format::f32, 64, 576};
  other.beta = 2;
  EXPECT_EQ(epilogue_of(launches_of(other)[0]).beta, 2);
  other.d.data = memory(7);
  EXPECT_EQ(static_cast<void*>(epilogue_of(launches_of(other)[0]).d.data), memory(7));
  EXPECT_EQ(static_cast<void*>(epilogue_of(launches_of(x)[0]).d.data), memory(4));
}

TEST_F(GemmDriverCalls, MemoryIsLookedUpAtEveryCall) {
  const GemmArguments x = product(64, 576, 640);
  (void)launches_of(x);
  fake_.failures["cuPointerGetAttribute"] = runtime::cu::kInvalidValue;  // freed
  test::expect_invalid("d.data", "is memory of the host", [&] { cuda::gemm(x); });
  fake_.failures.clear();
  GemmArguments mixed = x;
  mixed.b.scales = memory(3, 1);
  test::expect_invalid("b.scales", "is on CUDA device 1, must be on 0", [&] { cuda::gemm(mixed); });
  EXPECT_EQ(launches_of(product(64, 576, 640, 1))[0].device, 1);
}

TEST_F(GemmDriverCalls, ADeviceThatIsGivenIsNotAskedFor) {
  const GemmArguments x = product(64, 576, 768, 1);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(launches_of(x, {.device = 1})[0].device, 1);
    EXPECT_EQ(fake_.calls["cuPointerGetAttribute"], 0);
  }
  EXPECT_EQ(launches_of(x, {.device = 0})[0].device, 0);  // the caller's word, not what was kept
  for (const int device : {-2, 2}) {
    test::expect_invalid("execution.device", "must be -1 or one of this machine's 2 CUDA devices",
                         [&] { cuda::gemm(x, {.device = device}); });
  }
}

TEST_F(GemmDriverCalls, WorkspacesAreTheCalls) {
  GemmArguments x = product(64, 576, 136);
  x.a.value_row_stride = 136;
  fake_.parameter_bytes = sizeof(AlignRowsParams);
  const std::int64_t bytes = cuda::gemm_workspace_bytes(x);
  ASSERT_GT(bytes, 0);
  for (const int part : {8, 9}) {
    const std::vector<FakeLaunch> launches =
        launches_of(x, {.workspace = memory(part), .workspace_bytes = bytes});
    EXPECT_EQ(launches.size(), 3u);
    const auto* const copy =
        reinterpret_cast<const AlignRowsParams*>(launches[0].parameters.data());
    EXPECT_EQ(reinterpret_cast<std::byte*>(copy->to), memory(part));
  }
  test::expect_invalid("execution.workspace_bytes", "is 0", [&] { cuda::gemm(x); });
}

TEST_F(GemmDriverCalls, SiluIsAQuantizersBehindTheProduct) {
  GemmArguments x = product(64, 256, 512);
  x.quantized.emplace();
  x.quantized->out = {Recipe::mxfp8_e4m3, 64, 256};
  x.quantized->out.values = memory(5);
  x.quantized->out.scales = memory(6);
  x.quantized->options.input = Silu{};
  fake_.parameter_bytes = sizeof(QuantizeParams);
  const std::int64_t bytes = cuda::gemm_workspace_bytes(x);
  EXPECT_EQ(bytes, 64 * 256 * 4);
  const std::vector<FakeLaunch> launches =
      launches_of(x, {.workspace = memory(8), .workspace_bytes = bytes});
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_THAT(launches[0].kernel, testing::StartsWith("gemm_fp8_"));
  EXPECT_THAT(launches[1].kernel, testing::StartsWith("quantize_blocks_mx_e4m3_32_f32_swiglu"));
  const auto* const p = reinterpret_cast<const QuantizeParams*>(launches[1].parameters.data());
  EXPECT_EQ(p->x.data, reinterpret_cast<const std::uint8_t*>(memory(8)));
  EXPECT_EQ(p->values, reinterpret_cast<const std::uint8_t*>(memory(5)));
}

}  // namespace
}  // namespace blockscale
