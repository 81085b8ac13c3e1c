// Grouped products' kernels in this process.
#pragma once

#include "blockscale/cuda.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::grouped_gemm_detail {

/// Indices are those of plans.
runtime::KernelSet& kernels();

/// Sets the tensor maps of a plan's parameters, in the caller's context.
void find_tensor_maps(GroupedPlan& plan);

/// Launches a plan that has its tensor maps, in the caller's context.
void launch_steps(const GroupedPlan& plan, const cuda::Execution& execution);

}  // namespace blockscale::grouped_gemm_detail
