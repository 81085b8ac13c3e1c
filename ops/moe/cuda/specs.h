// The kernels of a mixture of experts as the kernel pack compiles them, and their numbers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/kernels/kernel_spec.h"

namespace blockscale::moe_detail {

/// In the order of kernel_specs().
enum Kernel : std::size_t {
  kRouteKernel,
  kSortKernel,
  kPadKernel,
  kFinalizeKernel,
  kJoinScalesKernel,
  kWeighKernel,
};

/// What the kernel pack compiles for this operation: each kernel for all of its architectures.
std::vector<runtime::KernelSpec> kernel_specs();

std::string kernel_name(std::size_t kernel);

}  // namespace blockscale::moe_detail
