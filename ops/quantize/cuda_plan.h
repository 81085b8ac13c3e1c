// How a quantiser's problem becomes kernel launches: a pure function, so it is tested without a
// GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/launch_shape.h"
#include "ops/quantize/kernels_sm90.h"
#include "ops/quantize/validate.h"
#include "runtime/kernel_spec.h"

namespace blockscale::quantize_detail {

/// What a plan depends on besides the problem. An H200 has 132 multiprocessors.
struct PlanDevice {
  int multiprocessors = 132;
  /// Those that may run thread blocks which wait for each other: of the call's stream. 0: all.
  int stream_multiprocessors = 0;
};

/// Which kernel takes a problem that has two: one with a table and one without, one for large
/// inputs and one for small. `always` and `never` yield to what a kernel asks of the problem: the
/// one with a table wants vectors of x and of the values, some forms for small inputs rows of some
/// length.
enum class Choice : std::uint8_t { by_size, always, never };

/// What benchmarks change of the last kernel's configuration, where 0 leaves it as the list has it;
/// and what benchmarks and tests change of the choice of kernels.
struct PlanTuning {
  int chunk = 0;
  int chunks = 0;
  int threads = 0;
  int min_blocks = 0;
  Choice table = Choice::by_size;
  Choice large = Choice::by_size;  // the form for large inputs, where there are two

  friend bool operator==(const PlanTuning&, const PlanTuning&) = default;
};

/// Launches in order, each of which reads what those before it wrote.
struct QuantizePlan {
  struct Step {
    int kernel = 0;         // index into kQuantizeKernels
    QuantizeConfig config;  // that kernel's, unless it is tuned
    LaunchShape shape;
    QuantizeParams params;
  };
  static constexpr int kMaxSteps = 2;

  std::array<Step, kMaxSteps> steps;
  int count = 0;
  std::int64_t workspace_bytes = 0;  // 16-byte aligned

  /// Of at least one launch.
  Step& last() { return steps[static_cast<std::size_t>(count - 1)]; }
  const Step& last() const { return steps[static_cast<std::size_t>(count - 1)]; }

  /// One line a launch: the kernel, its tiles, and the layout of the scales that it stores.
  std::string str() const;
};

/// Whether thread blocks may wait for each other: the plan then depends on the stream's
/// multiprocessors. With fewer it needs no larger workspace.
bool may_wait_for_each_other(const QuantizeArguments& a);

/// The plan of `quantize`. `a` is validated; `workspace` holds the plan's workspace_bytes (it may
/// be null to learn how many these are). Throws `unsupported` for more tiles than a grid has
/// blocks.
QuantizePlan plan_quantize(const QuantizeArguments& a, const QuantizeOptions& options,
                           const PlanDevice& device, void* workspace,
                           const PlanTuning& tuning = {});

/// The plan of rms_norm's factors of the rows of a.x: one launch, whose params.row_factors points
/// to them.
QuantizePlan plan_row_factors(const QuantizeArguments& a, const QuantizeOptions& options,
                              const PlanDevice& device, void* workspace);

/// The plan of `absolute_maximum`, whose x.batch results go to `out`.
QuantizePlan plan_absolute_maximum(const AbsoluteMaximumArguments& a, float* out,
                                   const PlanDevice& device, void* workspace);

/// Name of a kernel of the list: quantize_blocks_mx_e2m1_bf16_identity.
std::string quantize_kernel_name(const QuantizeConfig& config);

/// A configuration as C++ source.
std::string quantize_config_source(const QuantizeConfig& config);

/// What is compiled for a configuration, which may be one that is not in the list.
runtime::KernelSpec quantize_kernel_spec(const QuantizeConfig& config, std::string name);

/// What the kernel pack compiles for this operation.
std::vector<runtime::KernelSpec> quantize_kernel_specs();

}  // namespace blockscale::quantize_detail
