// What the CPU GEMM runs on this machine.
#pragma once

#include "blockscale/bench.h"
#include "ops/gemm/path.h"

namespace blockscale::gemm_detail {

/// The arithmetic of the instruction set in use (blockscale/system.h names it).
GemmPath cpu_path();

/// What it multiplies the operands of validated arguments with.
Multiplier multiplier_of(const GemmArguments& validated);

}  // namespace blockscale::gemm_detail
