// On a GPU: the reciprocal without a branch is rcp.rn's, for every significand.
#include <gtest/gtest.h>

#include "device/kernel.h"
#include "runtime/kernel.h"
#include "runtime/kernel_sources.h"
#include "runtime/measure.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

struct ReciprocalParameters {
  unsigned* differences;
};

constexpr std::string_view kParameters = R"(#pragma once
namespace sample {
struct ReciprocalParameters {
  unsigned* differences;
};
}  // namespace sample
)";

/// Block y takes exponent field 1 + y, a thread one significand.
constexpr std::string_view kKernel = R"(#pragma once
#include "device/math.h"
#include "device/ptx/atomic.h"
#include "device/ptx/special_registers.h"
#include "sample/reciprocal_parameters.h"
namespace sample {
BLOCKSCALE_DEVICE void compare_reciprocals(const ReciprocalParameters& p) {
  using namespace blockscale;
  const uint32_t significand = ptx::ctaid_x() * 256 + ptx::tid_x();
  const float a = bit_cast<float>((1 + ptx::ctaid_y()) << 23 | significand);
  const uint32_t fast = bit_cast<uint32_t>(device::reciprocal_of_normal(a));
  if (fast != bit_cast<uint32_t>(ptx::rcp_rn(a))) ptx::red_global_add(p.differences, 1u);
}
}  // namespace sample
)";

using ReciprocalOnGpu = test::OnHopper;

TEST_F(ReciprocalOnGpu, IsRcpRnForEveryNormalNumberWhoseReciprocalIsNormal) {
  runtime::SourceTree sources = runtime::embedded_sources();
  sources.add("sample/reciprocal_parameters.h", kParameters);
  sources.add("sample/reciprocal.cuh", kKernel);
  runtime::KernelStore store(
      sources, [](const std::string&) { return ""; }, runtime::KernelCache({}));
  runtime::KernelSpec spec;
  spec.name = "sample_compare_reciprocals";
  spec.header = "sample/reciprocal.cuh";
  spec.call = "sample::compare_reciprocals";
  spec.threads = 256;
  const runtime::Kernel kernel(runtime::with_parameters<ReciprocalParameters>(
                                   std::move(spec), "sample::ReciprocalParameters"),
                               store);
  runtime::DeviceBuffer differences(sizeof(unsigned));
  differences.fill(0);
  const ReciprocalParameters parameters{reinterpret_cast<unsigned*>(differences.data())};
  const runtime::DeviceStream stream;
  // Exponent fields 1 to 252: up to 2^126.
  const LaunchShape shape{.grid = {(1u << 23) / 256, 252}, .block = {256}};
  runtime::launch(kernel, shape, stream.handle(), parameters);
  stream.wait();
  unsigned count = 1;
  differences.copy_to_host(&count, sizeof count);
  EXPECT_EQ(count, 0u);
}

}  // namespace
}  // namespace blockscale
