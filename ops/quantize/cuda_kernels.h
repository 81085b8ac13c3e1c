// The quantisers' kernels in this process, each loaded when it is first launched.
#pragma once

#include "runtime/kernel.h"

namespace blockscale::quantize_detail {

/// Indices are those of kQuantizeKernels.
runtime::KernelSet& quantize_kernels();
/// Indices are those of kRowsAndColumnsKernels.
runtime::KernelSet& rows_and_columns_kernels();

}  // namespace blockscale::quantize_detail
