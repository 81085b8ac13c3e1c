// GELU or SwiGLU between a product and its result on the CPU: D in f32 first, then what it becomes.
#pragma once

#include <cstdint>

#include "blockscale/gemm.h"

namespace blockscale::gemm_detail {

/// The product of validated arguments without its transform, in f32, where those numbers lie: all
/// matrices of the batch, one behind the other.
GemmArguments before_transform(const GemmArguments& validated, float* numbers);

/// Bytes that they take of a workspace, which they begin.
std::int64_t transform_bytes(const GemmArguments& validated);

/// `gemm` of validated arguments with a transform.
void multiply_and_transform(const GemmArguments& validated, const GemmOptions& options);

}  // namespace blockscale::gemm_detail
