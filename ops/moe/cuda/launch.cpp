// The layer on CUDA devices: arguments -> plan -> launches.
#include "ops/moe/cuda/launch.h"

#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/trials.h"
#include "ops/common/regions.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/cuda/launch.h"
#include "ops/grouped_gemm/cuda/trials.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/cuda/plan.h"
#include "ops/moe/cuda/roofline.h"
#include "ops/moe/cuda/specs.h"
#include "ops/moe/validate.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "runtime/cuda/device.h"

namespace blockscale {
namespace moe_detail {
namespace {

std::vector<Region> regions_of(const MoeArguments& x) {
  return call_regions([&](const auto& visit) { for_each_memory(x, visit); }).all();
}

/// All memory of a call must lie on the call's device.
cuda::CallDevice device_of_call(const MoeArguments& x, const cuda::Execution& execution) {
  cuda::CallDevice device(execution);
  for_each_memory(x, [&](const char* argument, auto, const void* pointer, const auto&) {
    device.add(argument, pointer);
  });
  return device;
}

void launch_part(MoePartPlan& part, int architecture, const cuda::Execution& execution) {
  const auto launch = [&](std::size_t kernel, const auto& step) {
    cuda::launch(kernels().get(kernel, architecture), step.shape, execution, step.params);
  };
  if (part.join_scales) launch(kJoinScalesKernel, *part.join_scales);
  if (part.sort) launch_steps(*part.sort, execution);
  if (part.weigh) launch(kWeighKernel, *part.weigh);
  if (part.quantize) quantize_detail::launch_steps(*part.quantize, execution);
  if (part.shared) {
    if (part.shared->quantize) quantize_detail::launch_steps(*part.shared->quantize, execution);
    gemm_detail::launch_steps(part.shared->up, execution);
    gemm_detail::launch_steps(part.shared->down, execution);
  }
  if (part.adds) launch(kFinalizeKernel, part.finalize);
  grouped_gemm_detail::launch_steps(part.up, execution);
  grouped_gemm_detail::launch_steps(part.down, execution);
  if (!part.adds) launch(kFinalizeKernel, part.finalize);
}

/// visit(trial) of what a plan launches for a chip that nothing has run on.
template <class Visit>
void for_each_trial(const MoePlan& plan, const Visit& visit) {
  for (const MoePartPlan& part : plan.parts) {
    for (const auto* const product : {&part.up, &part.down}) {
      grouped_gemm_detail::for_each_trial(*product, visit);
    }
    if (!part.shared) continue;
    for (const auto* const product : {&part.shared->up, &part.shared->down}) {
      gemm_detail::for_each_trial(*product, visit);
    }
  }
}

}  // namespace
}  // namespace moe_detail

namespace cuda {

std::int64_t moe_workspace_bytes(const MoeArguments& arguments, const MoeOptions& options) {
  using namespace moe_detail;
  const MoeArguments x = validated(arguments, options);
  return workspace_bytes_on(
      default_chip(), [&](const Chip& chip) { return parts_of(x, options, chip).workspace_bytes; });
}

void moe(const MoeArguments& arguments, const MoeOptions& options, const Execution& execution) {
  using namespace moe_detail;
  const MoeArguments x = validated(arguments, options);
  CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const Chip& chip =
      chip_of_call(device, kernels(), execution, [&](const Chip& of, const auto& visit) {
        for_each_trial(plan_moe(x, parts_of(x, options, of), of), visit);
      });
  const MoeParts parts = parts_of(x, options, chip);
  const Execution with = with_workspace(execution, parts.workspace_bytes);
  if (parts.workspace_bytes != 0) {
    check_workspace(with, parts.workspace_bytes, device);
    check_apart({"execution.workspace", line_of(with.workspace, parts.workspace_bytes)},
                regions_of(x));
  }
  MoePlan plan = plan_moe(x, parts, chip, with.workspace);
  const DeviceScope scope(device.ordinal());
  for (MoePartPlan& part : plan.parts) launch_part(part, plan.architecture, with);
}

std::string describe_moe(const MoeArguments& arguments, const MoeOptions& options,
                         const Chip& chip) {
  using namespace moe_detail;
  const MoeArguments x = validated(arguments, options);
  const Chip& of = checked(chip, kernels());
  const MoeParts parts = parts_of(x, options, of);
  const MoePlan plan = plan_moe(x, parts, of);
  if (plan.parts.empty()) return plan.str();
  return with_proof(plan.str() + text_of(work_of(x, parts), of, plan.parts[0].is_fp8()), of);
}

}  // namespace cuda
}  // namespace blockscale
