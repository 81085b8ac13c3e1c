// On a GPU, what rests on its approximations: the reciprocal without a branch is rcp.rn's, for
// every significand; and approximate tails of GELU are as near as is said, for every 16-bit number.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "device/kernel.h"
#include "runtime/kernel.h"
#include "runtime/kernel_sources.h"
#include "runtime/measure.h"
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

/// Block y takes a function and a format, a thread one number of either sign.
constexpr std::string_view kTailKernel = R"(#pragma once
#include "device/ptx/atomic.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_gelu_codes.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "sample/parameters.h"
namespace sample {
using namespace blockscale;
template <InputTransform kTransform, Format kFormat>
BLOCKSCALE_DEVICE bool is_near(uint32_t bits) {
  const quantize_sm90::Chunk<kFormat, 2> chunk = {{bits}};
  const auto g = quantize_sm90::approximate_gelu<kTransform>(value_at(chunk, 0));
  const float tail = kTransform == InputTransform::gelu_tanh
                         ? math::tanh_tail<device::KernelMath>(g.magnitude)
                         : math::erf_tail<device::KernelMath>(g.magnitude);
  return ptx::abs(g.tail - tail) <= quantize_sm90::kTailError * tail;
}
template <InputTransform kTransform, Format kFormat>
BLOCKSCALE_DEVICE bool has_near_magnitude(uint32_t bits) {
  const quantize_sm90::Chunk<kFormat, 2> chunk = {{bits}};
  const float x = value_at(chunk, 0);
  const float magnitude = quantize_sm90::gelu_magnitude<kTransform>(x);
  const auto is_finite = [](float y) { return ptx::abs(y) <= 0x1.fffffep127f; };
  if (!is_finite(x)) return !is_finite(magnitude);
  const float exact = ptx::abs(quantize_sm90::gelu<kTransform>(x));
  const float part = ptx::max(exact, quantize_sm90::kLeastShort<kTransform>);
  const float error = quantize_sm90::kShortTailError<kTransform> + 0x1p-23f;
  return x < quantize_sm90::kLeastShortX || ptx::abs(magnitude - exact) <= error * part;
}
template <InputTransform kTransform, Format kFormat>
BLOCKSCALE_DEVICE void compare(const SampleParameters& p) {
  const uint32_t bits = ptx::ctaid_x() * 256 + ptx::tid_x();
  if (!is_near<kTransform, kFormat>(bits)) ptx::red_global_add(p.differences, 1u);
  if (!has_near_magnitude<kTransform, kFormat>(bits)) ptx::red_global_add(p.differences, 1u);
}
BLOCKSCALE_DEVICE void compare_tails(const SampleParameters& p) {
  switch (ptx::ctaid_y()) {
    case 0: return compare<InputTransform::gelu_tanh, Format::bf16>(p);
    case 1: return compare<InputTransform::gelu_erf, Format::bf16>(p);
    case 2: return compare<InputTransform::gelu_tanh, Format::f16>(p);
    default: return compare<InputTransform::gelu_erf, Format::f16>(p);
  }
}
}  // namespace sample
)";

class MathOnGpu : public test::OnHopper {
 protected:
  /// What sample::`function` of `source` counts, run with 256 threads a thread block.
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

/// Both kinds of tails; NaN has the tail of the largest magnitude, but no magnitude.
TEST_F(MathOnGpu, ApproximateTailsOfGeluAreAsNearAsIsSaid) {
  EXPECT_EQ(count("compare_tails", kTailKernel, {.grid = {(1u << 16) / 256, 4}, .block = {256}}),
            0u);
}

}  // namespace
}  // namespace blockscale
