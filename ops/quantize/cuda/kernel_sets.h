// The quantizers' kernels in this process, each loaded when it is first launched. They are never
// destroyed: a process may launch until it ends. And what else their calls share.
#pragma once

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::quantize_detail {

/// Indices are those of kQuantizeKernels.
runtime::KernelSet& quantize_kernels();
/// Indices are those of kDequantizeKernels.
runtime::KernelSet& dequantize_kernels();
/// Indices are those of kRowsAndColumnsKernels.
runtime::KernelSet& rows_and_columns_kernels();

/// Adds "x.data" and the operands of "options.input" to a call's device.
void add_input(cuda::CallDevice& device, const MatrixView& x, const FusedInput& input);

/// Launches a plan, in the caller's context.
void launch_steps(const QuantizePlan& plan, const cuda::Execution& execution);
void launch_plan(const RowsAndColumnsPlan& plan, const cuda::Execution& execution);
void launch_plan(const DequantizePlan& plan, const cuda::Execution& execution);

}  // namespace blockscale::quantize_detail
