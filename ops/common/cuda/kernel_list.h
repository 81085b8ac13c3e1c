// Every kernel of every operation: what the kernel pack holds.
#pragma once

#include <vector>

#include "runtime/kernels/kernel_spec.h"

namespace blockscale {

/// In the order of operations, then of each one's list. Names are unique within an architecture.
std::vector<runtime::KernelSpec> kernel_list();

}  // namespace blockscale
