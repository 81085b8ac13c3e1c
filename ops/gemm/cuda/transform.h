// What follows a product with a transform on CUDA devices: D in f32 lies at the beginning of the
// workspace, and one launch makes the result of it, whichever kernels computed D.
#pragma once

#include <cstdint>
#include <string>

#include "blockscale/cuda.h"
#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/kernels/transform.cuh"

namespace blockscale::gemm_detail {

/// Bytes of workspace that D in f32 takes, a multiple of 16.
std::int64_t transform_workspace_bytes(const GemmArguments& validated);

/// What kernels compute, of validated arguments with a transform.
ResultTransform result_transform_of(const GemmArguments& validated);

/// One launch of kTransformKernel.
struct TransformPlan {
  int architecture = 0;  // of the chip that it is for
  InputTransform transform = InputTransform::identity;
  LaunchShape shape;
  TransformParams params;

  bool is_needed() const { return params.runs != 0; }
  std::string str() const;
};

/// Of validated arguments with a transform, whose D in f32 lies at `numbers`. Throws `unsupported`
/// for 2^31 runs of columns and more.
TransformPlan plan_transform(const GemmArguments& validated, const float* numbers,
                             const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
