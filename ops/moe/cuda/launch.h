// The kernels of a mixture of experts in this process.
#pragma once

#include "blockscale/cuda.h"
#include "ops/moe/cuda/routing.h"
#include "ops/moe/cuda/specs.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::moe_detail {

/// Indices are those of plans.
runtime::KernelSet& kernels();

/// Launches a plan, in the caller's context.
void launch_steps(const SortPlan& plan, const cuda::Execution& execution);

}  // namespace blockscale::moe_detail
