// GELU or SwiGLU between a product and its result on the CPU: D in f32 first, then what it becomes.
#pragma once

#include <cstdint>

#include "blockscale/gemm.h"

namespace blockscale::gemm_detail {

/// Bytes that D in f32 takes of a workspace, which it begins.
std::int64_t transform_bytes(const GemmArguments& validated);

/// `gemm` of validated arguments with a transform.
void multiply_and_transform(const GemmArguments& validated, const GemmOptions& options);

}  // namespace blockscale::gemm_detail
