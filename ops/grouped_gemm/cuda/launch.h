// Grouped products' kernels in this process.
#pragma once

#include "ops/grouped_gemm/cuda/plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::grouped_gemm_detail {

/// Indices are those of plans.
runtime::KernelSet& kernels();

}  // namespace blockscale::grouped_gemm_detail
