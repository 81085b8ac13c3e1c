// Quantizers on CUDA devices: arguments -> plan -> launches.
#include "blockscale/cuda.h"

#include <string>
#include <utility>

#include "ops/common/cuda/call.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/validate.h"
#include "runtime/cuda/device.h"
#include "runtime/kernels/kernel.h"

namespace blockscale {
namespace quantize_detail {

runtime::KernelSet& quantize_kernels() {
  static auto& kernels = *new runtime::KernelSet(quantize_kernel_specs());
  return kernels;
}

runtime::KernelSet& dequantize_kernels() {
  static auto& kernels = *new runtime::KernelSet(dequantize_kernel_specs());
  return kernels;
}

void add_input(cuda::CallDevice& device, const MatrixView& x, const FusedInput& input) {
  device.add("x.data", x.data);
  device.add("options.input.scale", input.scale.data);
  device.add("options.input.shift", input.shift.data);
  device.add("options.input.weight", input.weight.data);
}

void launch_steps(const QuantizePlan& plan, const cuda::Execution& execution) {
  for (int i = 0; i < plan.count; ++i) {
    const QuantizePlan::Step& step = plan.steps[static_cast<std::size_t>(i)];
    cuda::launch(quantize_kernels().get(static_cast<std::size_t>(step.kernel), plan.architecture),
                 step.shape, execution, step.params);
  }
}

void launch_plan(const DequantizePlan& plan, const cuda::Execution& execution) {
  cuda::launch(dequantize_kernels().get(static_cast<std::size_t>(plan.kernel), plan.architecture),
               plan.shape, execution, plan.params);
}

}  // namespace quantize_detail

namespace cuda {
namespace {

using quantize_detail::AbsoluteMaximumArguments;
using quantize_detail::QuantizeArguments;
using quantize_detail::QuantizePlan;

CallDevice device_of_call(const QuantizeArguments& a, const Execution& execution = {}) {
  CallDevice device(execution);
  add_input(device, a.x, a.input);
  device.add("out.values", a.out.values);
  device.add("out.scales", a.out.scales);
  device.add("out.tensor_scale", a.out.tensor_scale);
  return device;
}

CallDevice device_of_input(const AbsoluteMaximumArguments& a, const Execution& execution = {}) {
  CallDevice device(execution);
  add_input(device, a.x, a.input);
  return device;
}

/// Launches what `plan_with` plans for a workspace.
template <class Arguments, class PlanWith>
void launch(const PlanWith& plan_with, const Arguments& a, const Execution& execution,
            CallDevice& device) {
  QuantizePlan plan = plan_with(execution.workspace);
  const Execution with = with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) plan = plan_with(with.workspace);
  check_workspace(with, plan.workspace_bytes, device, a);
  const DeviceScope scope(device.ordinal());
  quantize_detail::launch_steps(plan, with);
}

}  // namespace

std::int64_t quantize_workspace_bytes(const MatrixView& x, const MutableScaledTensorView& out,
                                      const QuantizeOptions& options) {
  const QuantizeArguments a = quantize_detail::validated(x, out, options);
  const CallDevice device = device_of_call(a);
  if (!device.is_known()) return 0;
  const Chip& chip = device.chip(quantize_detail::quantize_kernels());
  return plan_quantize(a, options, chip, nullptr).workspace_bytes;
}

void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options, const Execution& execution) {
  const QuantizeArguments a = quantize_detail::validated(x, out, options);
  CallDevice device = device_of_call(a, execution);
  if (!device.is_known()) return;  // no matrix has an element, and nothing is written
  const Chip& chip = device.chip(quantize_detail::quantize_kernels());
  launch([&](void* workspace) { return plan_quantize(a, options, chip, workspace); }, a, execution,
         device);
}

std::string describe_quantize(const MatrixView& x, const MutableScaledTensorView& out,
                              const QuantizeOptions& options, const Chip& chip) {
  const QuantizeArguments a = quantize_detail::validated(x, out, options);
  const Chip& of = checked(chip, quantize_detail::quantize_kernels());
  return with_proof(plan_quantize(a, options, of, nullptr).str(), of);
}

std::int64_t absolute_maximum_workspace_bytes(const MatrixView& x, const QuantizeInput& input) {
  // The result's address does not count; any that is not null is valid.
  float* const nowhere = reinterpret_cast<float*>(alignof(float));
  const AbsoluteMaximumArguments a = quantize_detail::validated(x, input, nowhere, 0);
  CallDevice device = device_of_input(a);
  if (!device.is_known()) return 0;
  const Chip& chip = device.chip(quantize_detail::quantize_kernels());
  return plan_absolute_maximum(a, nowhere, chip, nullptr).workspace_bytes;
}

void absolute_maximum(const MatrixView& x, const QuantizeInput& input, float* out,
                      const Execution& execution) {
  const AbsoluteMaximumArguments a = quantize_detail::validated(x, input, out, 0);
  CallDevice device = device_of_input(a, execution);
  device.add("out", out);
  if (!device.is_known()) return;  // no matrix
  const Chip& chip = device.chip(quantize_detail::quantize_kernels());
  launch([&](void* workspace) { return plan_absolute_maximum(a, out, chip, workspace); }, a,
         execution, device);
}

void dequantize(const ScaledTensorView& x, const MutableMatrixView& out,
                const Execution& execution) {
  const quantize_detail::DequantizeArguments a = quantize_detail::validated(x, out, 0);
  CallDevice device(execution);
  device.add("x.values", a.x.values);
  device.add("x.scales", a.x.scales);
  device.add("x.tensor_scale", a.x.tensor_scale);
  device.add("out.data", a.out.data);
  if (a.x.rows == 0 || a.x.k == 0 || a.x.batch == 0) return;
  runtime::KernelSet& kernels = quantize_detail::dequantize_kernels();
  const quantize_detail::DequantizePlan plan = plan_dequantize(a, device.chip(kernels));
  const DeviceScope scope(device.ordinal());
  quantize_detail::launch_plan(plan, execution);
}

}  // namespace cuda
}  // namespace blockscale
