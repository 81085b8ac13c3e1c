// How quantize_rows_and_columns becomes kernel launches: a pure function, so it is tested without a
// GPU.
#pragma once

#include <string>
#include <vector>

#include "core/launch_shape.h"
#include "ops/quantize/cuda_plan.h"
#include "ops/quantize/rows_and_columns_sm90.h"
#include "ops/quantize/validate.h"
#include "runtime/kernel_spec.h"

namespace blockscale::quantize_detail {

struct RowsAndColumnsPlan {
  /// A launch of the kernel for x, or for a part of it.
  struct Launch {
    LaunchShape shape;
    RowsAndColumnsParams params;
  };

  QuantizePlan factors;   // rms_norm: launches before the kernel
  int kernel = -1;        // index into kRowsAndColumnsKernels; -1: nothing is to be done
  QuantizeConfig config;  // that kernel's, unless it is tuned
  std::vector<Launch> launches;
  std::int64_t workspace_bytes = 0;

  /// One line a launch: the kernel, its tiles, how it loads and stores.
  std::string str() const;
};

/// `a` is validated; `workspace` holds the plan's workspace_bytes (it may be null to learn
/// how many these are). Throws `unsupported` for sizes that a grid cannot hold.
RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options, const PlanDevice& device,
                                         void* workspace, const PlanTuning& tuning = {});

/// What is compiled for a configuration, which may be one that is not in the list.
runtime::KernelSpec rows_and_columns_kernel_spec(const QuantizeConfig& config, std::string name);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs();

}  // namespace blockscale::quantize_detail
