// Grouped products' kernels in this process.
#pragma once

#include "blockscale/cuda.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::grouped_gemm_detail {

/// Indices are those of plans.
runtime::KernelSet& kernels();

/// Launches a plan, in the caller's context. Its tensor maps become those that the driver makes.
void launch_steps(GroupedPlan& plan, const cuda::Execution& execution);

}  // namespace blockscale::grouped_gemm_detail
