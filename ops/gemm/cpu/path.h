// What the CPU GEMM runs on this machine.
#pragma once

#include "ops/gemm/error_bound.h"

namespace blockscale::gemm_detail {

/// The arithmetic of the instruction set in use (blockscale/system.h names it).
GemmPath cpu_path();

}  // namespace blockscale::gemm_detail
