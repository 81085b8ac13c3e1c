// What the CPU GEMM runs on this machine.
#pragma once

#include "ops/gemm/error_bound.h"

namespace blockscale::gemm_detail {

/// The arithmetic of the instruction set in use.
GemmPath cpu_path();

/// Its name, e.g. "AVX3".
const char* cpu_target_name();

}  // namespace blockscale::gemm_detail
