// How a quantizer's problem becomes kernel launches: a pure function, so it is tested without a
// GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "core/launch_shape.h"
#include "ops/quantize/kernels/config.h"
#include "ops/quantize/validate.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::quantize_detail {

/// Launches in order, each of which reads what those before it wrote.
struct QuantizePlan {
  struct Step {
    int kernel = 0;  // index into kQuantizeKernels
    LaunchShape shape;
    QuantizeParams params;

    const QuantizeConfig& config() const { return kQuantizeKernels[kernel]; }
  };
  static constexpr int kMaxSteps = 2;

  std::array<Step, kMaxSteps> steps;
  int count = 0;
  int architecture = 0;              // of the chip that it is for
  std::int64_t workspace_bytes = 0;  // 16-byte aligned

  /// Of at least one launch.
  Step& last() { return steps[static_cast<std::size_t>(count - 1)]; }
  const Step& last() const { return steps[static_cast<std::size_t>(count - 1)]; }

  /// One line a launch: the kernel, why it is there, its tiles, and the layout of the scales that
  /// it stores.
  std::string str() const;
};

/// The plan of `quantize`. `a` is validated; `workspace` holds the plan's workspace_bytes (it may
/// be null to learn how many these are). Throws `unsupported` for more tiles than a grid has
/// blocks.
QuantizePlan plan_quantize(const QuantizeArguments& a, const QuantizeOptions& options,
                           const cuda::Chip& chip, void* workspace);

/// The plan of rms_norm's rstd of the rows of a.x: one launch, whose params.fused.rstd points to
/// them.
QuantizePlan plan_rstd(const QuantizeArguments& a, const QuantizeOptions& options,
                       const cuda::Chip& chip, void* workspace);

/// The plan of `absolute_maximum`, whose x.batch results go to `out`.
QuantizePlan plan_absolute_maximum(const AbsoluteMaximumArguments& a, float* out,
                                   const cuda::Chip& chip, void* workspace);

/// Name of a kernel of the list: quantize_blocks_mx_e2m1_32_bf16, .._gelu with what is fused.
std::string quantize_kernel_name(const QuantizeConfig& config);

/// A configuration as C++ source.
std::string quantize_config_source(const QuantizeConfig& config);

/// What the quantizers' kernels are compiled for: they need nothing that one of these lacks.
inline constexpr const char* kQuantizeArchitectures[] = {"sm_90a", "sm_100f", "sm_120f"};

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> quantize_kernel_specs();

}  // namespace blockscale::quantize_detail
