// On a GPU, what rests on its approximations: the reciprocal without a branch is rcp.rn's, for
// every significand.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "device/kernel.h"
#include "runtime/cuda/measure.h"
#include "runtime/kernels/kernel.h"
#include "runtime/kernels/kernel_sources.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

struct SampleParameters {
  unsigned* differences;
};

constexpr std::string_view kParameters = R"(#pragma once
namespace sample {
struct SampleParameters {
  unsigned* differences;
};
}  // namespace sample
)";

/// Block y takes exponent field 1 + y, a thread one significand.
constexpr std::string_view kKernel = R"(#pragma once
#include "device/math.h"
#include "device/ptx/atomic.h"
#include "device/ptx/special_registers.h"
#include "sample/parameters.h"
namespace sample {
BLOCKSCALE_DEVICE void compare_reciprocals(const SampleParameters& p) {
  using namespace blockscale;
  const uint32_t significand = ptx::ctaid_x() * 256 + ptx::tid_x();
  const float a = bit_cast<float>((1 + ptx::ctaid_y()) << 23 | significand);
  const uint32_t fast = bit_cast<uint32_t>(device::reciprocal_of_normal(a));
  if (fast != bit_cast<uint32_t>(ptx::rcp_rn(a))) ptx::red_global_add(p.differences, 1u);
}
}  // namespace sample
)";

class MathOnGpu : public test::OnHopper {
 protected:
  /// What sample::`function` of `source` counts, run with 256 threads a CTA.
  static unsigned count(const char* function, std::string_view source, const LaunchShape& shape) {
    runtime::SourceTree sources = runtime::embedded_sources();
    sources.add("sample/parameters.h", kParameters);
    sources.add("sample/kernel.cuh", source);
    runtime::KernelStore store(
        sources, [](const std::string&) { return ""; }, runtime::KernelCache({}));
    const runtime::Kernel kernel(
        runtime::with_parameters<SampleParameters>({.name = std::string("sample_") + function,
                                                    .header = "sample/kernel.cuh",
                                                    .call = std::string("sample::") + function,
                                                    .threads = 256},
                                                   "sample::SampleParameters"),
        store);
    runtime::DeviceBuffer differences(sizeof(unsigned));
    differences.fill(0);
    const SampleParameters parameters{reinterpret_cast<unsigned*>(differences.data())};
    const runtime::DeviceStream stream;
    runtime::launch(kernel, shape, stream.handle(), parameters);
    stream.wait();
    unsigned count = 1;
    differences.copy_to_host(&count, sizeof count);
    return count;
  }
};

TEST_F(MathOnGpu, ReciprocalIsRcpRnForEveryNormalNumberWhoseReciprocalIsNormal) {
  // Exponent fields 1 to 252: up to 2^126.
  EXPECT_EQ(
      count("compare_reciprocals", kKernel, {.grid = {(1u << 23) / 256, 252}, .block = {256}}), 0u);
}

}  // namespace
}  // namespace blockscale
