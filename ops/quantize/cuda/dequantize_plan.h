// How dequantizing becomes a kernel launch: a pure function, so it is tested without a GPU.
#pragma once

#include <string>
#include <vector>

#include "blockscale/device.h"
#include "core/launch_shape.h"
#include "ops/quantize/kernels/dequantize_config.h"
#include "ops/quantize/validate.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::quantize_detail {

struct DequantizePlan {
  int architecture = 0;  // of the chip that it is for
  int kernel = -1;       // index into kDequantizeKernels; -1: nothing is to be done
  LaunchShape shape;
  DequantizeParams params;

  /// One line: the kernel and its tiles.
  std::string str() const;
};

/// `a` is validated. Throws `unsupported` for sizes that a grid cannot hold.
DequantizePlan plan_dequantize(const DequantizeArguments& a, const cuda::Chip& chip);

/// dequantize_e2m1_bf16.
std::string dequantize_kernel_name(const DequantizeConfig& config);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> dequantize_kernel_specs();

}  // namespace blockscale::quantize_detail
