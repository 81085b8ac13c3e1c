// Products on CUDA devices: arguments -> plan -> launch.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/overlap.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/tensor_map.h"
#include "runtime/kernels/kernel.h"

namespace blockscale {

/// All that a product reads and writes: for check_workspace.
static std::vector<quantize_detail::Region> regions_of(const GemmArguments& x) {
  std::vector<quantize_detail::Region> regions = {{"a.values", values_of(x.a)},
                                                  {"a.scales", scales_of(x.a)},
                                                  {"b.values", values_of(x.b)},
                                                  {"b.scales", scales_of(x.b)}};
  if (x.quantized) {
    const ScaledTensorView out = x.quantized->out;
    regions.push_back({"quantized.out.values", values_of(out)});
    regions.push_back({"quantized.out.scales", scales_of(out)});
    regions.push_back({"quantized.out.tensor_scale", tensor_scales_of(out)});
  } else {
    regions.push_back({"d.data", lines_of(MatrixView(x.d))});
  }
  if (x.beta != 0) regions.push_back({"c.data", lines_of(x.c)});
  if (x.bias != nullptr) {
    const std::int64_t size = format_traits(x.bias_dtype).bits / 8;
    regions.push_back({"bias", line_of(x.bias, x.d.columns * size)});
  }
  if (x.alpha_factor != nullptr) {
    regions.push_back({"alpha_factor", line_of(x.alpha_factor, sizeof(float))});
  }
  return regions;
}

namespace gemm_detail {
namespace {

runtime::KernelSet& kernels() {
  static auto& set = *new runtime::KernelSet(fp8_gemm_kernel_specs());
  return set;
}

cuda::CallDevice device_of_call(const GemmArguments& x) {
  cuda::CallDevice device;
  if (x.quantized) {
    device.add("quantized.out.values", x.quantized->out.values);
    device.add("quantized.out.scales", x.quantized->out.scales);
    device.add("quantized.out.tensor_scale", x.quantized->out.tensor_scale);
  } else {
    device.add("d.data", x.d.data);
  }
  device.add("a.values", x.a.values);
  device.add("a.scales", x.a.scales);
  device.add("b.values", x.b.values);
  device.add("b.scales", x.b.scales);
  device.add("bias", x.bias);
  device.add("alpha_factor", x.alpha_factor);
  if (x.beta != 0) device.add("c.data", x.c.data);
  return device;
}

}  // namespace

void find_tensor_maps(Fp8GemmLaunch& launch) {
  runtime::TensorMapCache& maps = runtime::TensorMapCache::instance();
  if (launch.a.rank != 0) launch.params.a = launch.params.a_last = maps.get(launch.a);
  if (launch.a_last.rank != 0) launch.params.a_last = maps.get(launch.a_last);
  if (launch.b.rank != 0) launch.params.b = maps.get(launch.b);
  if (launch.b_second.rank != 0) launch.params.b_second = maps.get(launch.b_second);
  if (launch.d.rank != 0) launch.params.d = maps.get(launch.d);
}

void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8GemmChoice>& choice,
                 const cuda::Execution& execution) {
  const GemmArguments x = validated(arguments, {});
  cuda::CallDevice device = device_of_call(x);
  if (!device.is_known()) return;  // D has no element
  const int multiprocessors = device.traits().multiprocessors;
  Fp8GemmPlan plan = plan_fp8_gemm(x, multiprocessors, choice, execution.workspace);
  const cuda::Execution with = cuda::with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) {
    plan = plan_fp8_gemm(x, multiprocessors, choice, with.workspace);
  }
  cuda::check_workspace(with, plan.workspace_bytes, device, x);
  const cuda::DeviceScope scope(device.ordinal());
  for (std::size_t i = 0; i < plan.copy_count; ++i) {
    cuda::launch(kernels().get(kAlignRowsKernel), plan.copies[i].shape, execution,
                 plan.copies[i].params);
  }
  for (std::size_t i = 0; i < plan.count; ++i) {
    Fp8GemmLaunch& launch = plan.launches[i];
    const runtime::Kernel& kernel = kernels().get(static_cast<std::size_t>(launch.kernel));
    find_tensor_maps(launch);
    cuda::Execution early = execution;
    early.overlap = execution.overlap || launch.params.is_beside;
    cuda::launch(kernel, launch.shape, early, launch.params);
  }
}

}  // namespace gemm_detail

namespace cuda {

std::int64_t gemm_workspace_bytes(const GemmArguments& arguments) {
  const GemmArguments x = gemm_detail::validated(arguments, {});
  return gemm_detail::plan_fp8_gemm(x, 132).workspace_bytes;
}

void gemm(const GemmArguments& arguments, const Execution& execution) {
  gemm_detail::launch_gemm(arguments, {}, execution);
}

std::string describe_gemm(const GemmArguments& arguments, int multiprocessors) {
  check_multiprocessors(multiprocessors);
  return gemm_detail::plan_fp8_gemm(gemm_detail::validated(arguments, {}), multiprocessors).str();
}

}  // namespace cuda
}  // namespace blockscale
