// quantize_rows_and_columns on CUDA devices.
#include <cstddef>

#include "blockscale/cuda.h"
#include "ops/quantize/cuda_call.h"
#include "ops/quantize/cuda_kernels.h"
#include "ops/quantize/rows_and_columns_cuda_plan.h"
#include "ops/quantize/validate.h"
#include "runtime/kernel.h"

namespace blockscale {
namespace quantize_detail {

runtime::KernelSet& rows_and_columns_kernels() {
  static auto& kernels = *new runtime::KernelSet(rows_and_columns_kernel_specs());
  return kernels;
}

}  // namespace quantize_detail

namespace cuda {

void quantize_rows_and_columns(const MatrixView& x, const MutableScaledTensorView& out_rows,
                               const MutableScaledTensorView& out_columns,
                               const QuantizeOptions& options, const Execution& execution) {
  const quantize_detail::RowsAndColumnsArguments a =
      quantize_detail::validated(x, out_rows, out_columns, options);
  const quantize_detail::RowsAndColumnsPlan plan = plan_rows_and_columns(a, options);
  if (plan.kernel < 0) return;
  CallDevice device;
  device.add("out_rows.values", a.rows.values);
  device.add("out_rows.scales", a.rows.scales);
  device.add("out_columns.values", a.columns.values);
  device.add("out_columns.scales", a.columns.scales);
  device.add("x.data", a.x.data);
  (void)device.traits();  // throws unless the kernels run there
  const DeviceScope scope(device.ordinal());
  const runtime::Kernel& kernel =
      quantize_detail::rows_and_columns_kernels().get(static_cast<std::size_t>(plan.kernel));
  runtime::launch(kernel, plan.shape, execution.stream, plan.params);
}

}  // namespace cuda
}  // namespace blockscale
