// The layer on CUDA devices: arguments -> plan -> launches.
#include "ops/moe/cuda/launch.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/kept_plans.h"
#include "ops/common/cuda/trials.h"
#include "ops/common/regions.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/cuda/launch.h"
#include "ops/grouped_gemm/cuda/trials.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/cuda/layer_key.h"
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

void find_tensor_maps(MoePlan& plan) {
  for (MoePartPlan& part : plan.parts) {
    if (part.shared) {
      gemm_detail::find_tensor_maps(part.shared->up);
      gemm_detail::find_tensor_maps(part.shared->down);
    }
    grouped_gemm_detail::find_tensor_maps(part.up);
    grouped_gemm_detail::find_tensor_maps(part.down);
  }
}

void launch_part(const MoePartPlan& part, int architecture, const cuda::Execution& execution) {
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
    grouped_gemm_detail::for_each_trial(part.up, visit);
    grouped_gemm_detail::for_each_trial(part.down, visit);
    if (!part.shared) continue;
    gemm_detail::for_each_trial(part.shared->up, visit);
    gemm_detail::for_each_trial(part.shared->down, visit);
  }
}

/// How a layer is computed on a device, and its launches in the workspace of the last call.
struct LayerPlan {
  int device = -1;
  const cuda::Chip* chip = nullptr;
  MoeParts parts;
  void* workspace = nullptr;
  std::optional<MoePlan> plan;  // with tensor maps
};

using KeptLayers = cuda::KeptPlans<256, LayerKey, LayerPlan>;

/// Of validated arguments; nothing is planned in a workspace yet.
LayerPlan plan_on(const cuda::CallDevice& device, const MoeArguments& x, const MoeOptions& options,
                  const cuda::Execution& execution) {
  LayerPlan layer;
  layer.device = device.ordinal();
  layer.chip = &cuda::chip_of_call(
      device, kernels(), execution, [&](const cuda::Chip& of, const auto& visit) {
        for_each_trial(plan_moe(x, parts_of(x, options, of), of), visit);
      });
  layer.parts = parts_of(x, options, *layer.chip);
  return layer;
}

/// Launches a layer of these arguments in the execution's workspace, or one that is allocated.
void launch_layer(LayerPlan& layer, const MoeArguments& arguments, const MoeOptions& options,
                  cuda::CallDevice& device, const cuda::Execution& execution) {
  const std::int64_t bytes = layer.parts.workspace_bytes;
  const cuda::Execution with = cuda::with_workspace(execution, bytes);
  cuda::check_workspace(with, bytes, device);
  const cuda::DeviceScope scope(device.ordinal());
  if (!layer.plan || with.workspace != layer.workspace) {
    const MoeArguments x = validated(arguments, options);
    if (bytes != 0) {
      check_apart({"execution.workspace", line_of(with.workspace, bytes)}, regions_of(x));
    }
    layer.plan.reset();
    layer.workspace = with.workspace;
    MoePlan plan = plan_moe(x, layer.parts, *layer.chip, with.workspace);
    find_tensor_maps(plan);
    layer.plan = std::move(plan);
  }
  for (const MoePartPlan& part : layer.plan->parts) {
    launch_part(part, layer.plan->architecture, with);
  }
}

/// Plans are kept, but for those of several parts, which are large, and of chips where kernels are
/// tried first: what may be launched there depends on whether the stream is captured.
bool may_be_kept(const LayerPlan& layer) {
  return layer.plan && layer.plan->parts.size() <= 1 &&
         !runtime::is_emulated_only(layer.chip->architecture);
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
  const LayerKey key(arguments, options);
  KeptLayers& layers = KeptLayers::of_thread();
  if (LayerPlan* const kept = layers.find(key)) {
    // The memory behind an address may have become another device's, or the host's.
    CallDevice device = device_of_call(arguments, execution);
    if (device.ordinal() == kept->device) {
      launch_layer(*kept, arguments, options, device, execution);
      return;
    }
  }
  const MoeArguments x = validated(arguments, options);
  CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  LayerPlan layer = plan_on(device, x, options, execution);
  launch_layer(layer, arguments, options, device, execution);
  if (may_be_kept(layer)) layers.keep(key, std::move(layer));
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
