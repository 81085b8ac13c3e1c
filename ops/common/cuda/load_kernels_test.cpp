// load_kernels against a fake libcuda.so.1: what it loads, where, and what a call loads behind it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "blockscale/cuda.h"
#include "ops/common/cuda/kernel_list.h"
#include "tests/expect_error.h"
#include "tests/on_fake_driver.h"

namespace blockscale {
namespace {

using cuda::KernelsOf;

class LoadKernels : public test::OnFakeDriver {
 protected:
  /// How many loaded kernels of a device have `part` in their names.
  int loaded(int device, const std::string& part) const {
    int count = 0;
    for (const auto& [kernel, where] : fake_.loaded) {
      count += where == device && kernel.find(part) != std::string::npos ? 1 : 0;
    }
    return count;
  }
};

TEST_F(LoadKernels, LoadsThoseOfAnOperationOnOneDevice) {
  const int count = cuda::load_kernels(KernelsOf::dequantize, 1);
  EXPECT_GT(count, 4);
  EXPECT_EQ(loaded(1, "dequantize"), count);
  EXPECT_EQ(std::ssize(fake_.loaded), count);
  EXPECT_EQ(cuda::load_kernels(KernelsOf::dequantize, 1), count);  // again
  EXPECT_EQ(std::ssize(fake_.loaded), count);
}

TEST_F(LoadKernels, LoadsAllThatTheChipHas) {
  int on_hopper = 0;
  for (const runtime::KernelSpec& spec : kernel_list()) {
    on_hopper += spec.architecture == "sm_90a" ? 1 : 0;
  }
  EXPECT_EQ(cuda::load_kernels(), on_hopper);
  EXPECT_EQ(loaded(0, ""), on_hopper);
  const int of_gemm = cuda::load_kernels(KernelsOf::gemm),
            of_quantize = cuda::load_kernels(KernelsOf::quantize),
            of_dequantize = cuda::load_kernels(KernelsOf::dequantize),
            of_groups = cuda::load_kernels(KernelsOf::grouped_gemm),
            of_experts = cuda::load_kernels(KernelsOf::moe);
  // Products dequantize rows and quantize results; a mixture of experts multiplies, groups and
  // dense, by tiles that both share.
  EXPECT_EQ(of_experts, on_hopper);
  EXPECT_LT(of_dequantize, of_gemm);
  EXPECT_LT(of_quantize, of_gemm);
  EXPECT_LT(of_quantize, of_groups);
  EXPECT_LT(of_groups + of_gemm - of_quantize - loaded(0, "gemm_tiles"), of_experts);
}

TEST_F(LoadKernels, NoCallBehindItLoadsAny) {
  cuda::load_kernels();
  fake_.calls.clear();
  auto* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 32);
  GemmArguments x;
  x.a = {Recipe::fp8_1x128, 64, 512};
  x.b = {Recipe::fp8_128x128, 256, 512};
  x.a.values = memory;
  x.a.scales = memory + (1 << 20);
  x.b.values = memory + (2 << 20);
  x.b.scales = memory + (3 << 20);
  x.d = {memory + (4 << 20), Format::bf16, 64, 256};
  fake_.failures["cuLibraryLoadData"] = 209;
  fake_.parameter_bytes = 8;
  cuda::gemm(x);
  EXPECT_EQ(fake_.launches.size(), 1u);
  EXPECT_EQ(fake_.calls["cuLibraryLoadData"], 0);
}

TEST_F(LoadKernels, Refuses) {
  test::expect_error(ErrorCode::invalid_argument, "device", "is 2",
                     [] { cuda::load_kernels(KernelsOf::all, 2); });
  fake_.failures["cuFuncLoad"] = 2;
  test::expect_error(ErrorCode::device, "driver", "cuFuncLoad failed with error 2",
                     [] { cuda::load_kernels(KernelsOf::dequantize); });
}

}  // namespace
}  // namespace blockscale
