// quantize_rows_and_columns on CUDA devices.
#include <cstddef>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"
#include "ops/quantize/validate.h"
#include "runtime/kernels/kernel.h"

namespace blockscale {
namespace quantize_detail {

runtime::KernelSet& rows_and_columns_kernels() {
  static auto& kernels = *new runtime::KernelSet(rows_and_columns_kernel_specs());
  return kernels;
}

void launch_plan(const RowsAndColumnsPlan& plan, const cuda::Execution& execution) {
  launch_steps(plan.rstd, execution);
  const runtime::Kernel& kernel =
      rows_and_columns_kernels().get(static_cast<std::size_t>(plan.kernel), plan.architecture);
  cuda::launch(kernel, plan.shape, execution, plan.params);
}

}  // namespace quantize_detail

namespace cuda {
namespace {

using quantize_detail::RowsAndColumnsArguments;
using quantize_detail::RowsAndColumnsPlan;

CallDevice device_of_call(const RowsAndColumnsArguments& a, const Execution& execution = {}) {
  CallDevice device(execution);
  add_input(device, a.x, a.input);
  device.add("out_rows.values", a.rows.values);
  device.add("out_rows.scales", a.rows.scales);
  device.add("out_columns.values", a.columns.values);
  device.add("out_columns.scales", a.columns.scales);
  return device;
}

}  // namespace

std::int64_t quantize_rows_and_columns_workspace_bytes(const MatrixView& x,
                                                       const MutableScaledTensorView& out_rows,
                                                       const MutableScaledTensorView& out_columns,
                                                       const QuantizeOptions& options) {
  const RowsAndColumnsArguments a = quantize_detail::validated(x, out_rows, out_columns, options);
  const CallDevice device = device_of_call(a);
  if (!device.is_known()) return 0;
  const Chip& chip = device.chip(quantize_detail::rows_and_columns_kernels());
  return plan_rows_and_columns(a, options, chip, nullptr).workspace_bytes;
}

void quantize_rows_and_columns(const MatrixView& x, const MutableScaledTensorView& out_rows,
                               const MutableScaledTensorView& out_columns,
                               const QuantizeOptions& options, const Execution& execution) {
  const RowsAndColumnsArguments a = quantize_detail::validated(x, out_rows, out_columns, options);
  CallDevice device = device_of_call(a, execution);
  if (!device.is_known()) return;  // no matrix has an element
  const Chip& chip = device.chip(quantize_detail::rows_and_columns_kernels());
  RowsAndColumnsPlan plan = plan_rows_and_columns(a, options, chip, execution.workspace);
  if (plan.kernel < 0) return;
  const Execution with = with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) {
    plan = plan_rows_and_columns(a, options, chip, with.workspace);
  }
  check_workspace(with, plan.workspace_bytes, device, a);
  const DeviceScope scope(device.ordinal());
  quantize_detail::launch_plan(plan, with);
}

}  // namespace cuda
}  // namespace blockscale
