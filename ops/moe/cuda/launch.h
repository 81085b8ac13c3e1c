// The kernels of a mixture of experts in this process.
#pragma once

#include "ops/moe/cuda/specs.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::moe_detail {

/// Indices are those of plans.
runtime::KernelSet& kernels();

}  // namespace blockscale::moe_detail
