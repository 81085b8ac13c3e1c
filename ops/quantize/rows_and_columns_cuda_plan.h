// How quantize_rows_and_columns becomes a kernel launch: a pure function, so it is tested without a
// GPU.
#pragma once

#include <string>
#include <vector>

#include "core/launch_shape.h"
#include "ops/quantize/rows_and_columns_sm90.h"
#include "ops/quantize/validate.h"
#include "runtime/kernel_spec.h"

namespace blockscale::quantize_detail {

struct RowsAndColumnsPlan {
  int kernel = -1;  // index into kRowsAndColumnsKernels; -1: nothing is to be done
  LaunchShape shape;
  RowsAndColumnsParams params;

  /// One line: the kernel, its tiles, how it loads and stores.
  std::string str() const;
};

/// `a` is validated. Throws `unsupported` for a fused input, and for sizes that a grid cannot hold.
RowsAndColumnsPlan plan_rows_and_columns(const RowsAndColumnsArguments& a,
                                         const QuantizeOptions& options);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> rows_and_columns_kernel_specs();

}  // namespace blockscale::quantize_detail
