// How quantize_rows_and_columns becomes kernel launches: a pure function, so it is tested without a
// GPU.
#pragma once

#include <string>
#include <vector>

#include "core/launch_shape.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/kernels/rows_and_columns_config.h"
#include "ops/quantize/validate.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::quantize_detail {

struct RowsAndColumnsPlan {
  QuantizePlan rstd;     // rms_norm: the launch before the kernel
  int architecture = 0;  // of the chip that it is for
  int kernel = -1;       // index into kRowsAndColumnsKernels; -1: nothing is to be done
  LaunchShape shape;
  RowsAndColumnsParams params;
  std::int64_t workspace_bytes = 0;

  /// One line a launch: the kernel, its tiles, how it loads and stores.
  std::string str() const;
};

/// `a` is validated; `workspace` holds the plan's workspace_bytes (it may be null to learn
/// how many these are). Throws `unsupported` for sizes that a grid cannot hold.
RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const cuda::Chip& chip,
                                         void* workspace);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs();

}  // namespace blockscale::quantize_detail
