// Routing and sorting on CUDA devices: arguments -> plan -> launch.
#include <cstdint>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/regions.h"
#include "ops/moe/cuda/launch.h"
#include "ops/moe/cuda/routing.h"
#include "ops/moe/routing_memory.h"
#include "ops/moe/validate_routing.h"

namespace blockscale {
namespace moe_detail {

runtime::KernelSet& kernels() {
  static auto& set = *new runtime::KernelSet(kernel_specs());
  return set;
}

namespace {

/// All memory of a call must lie on the call's device.
template <class Arguments>
cuda::CallDevice device_of_call(const Arguments& x, const cuda::Execution& execution) {
  cuda::CallDevice device(execution);
  for_each_memory(x, [&](const char* argument, gemm_detail::Access, const void* pointer,
                         const auto&) { device.add(argument, pointer); });
  return device;
}

std::vector<Region> regions_of(const MoeSortArguments& x) {
  return call_regions([&](const auto& visit) { for_each_memory(x, visit); }).all();
}

}  // namespace

void launch_steps(const SortPlan& plan, const cuda::Execution& execution) {
  for (const SortStep& step : plan.steps) {
    const runtime::Kernel& kernel = kernels().get(step.kernel, plan.architecture);
    std::visit([&](const auto& params) { cuda::launch(kernel, step.shape, execution, params); },
               step.params);
  }
}

}  // namespace moe_detail

namespace cuda {

void route(const RouteArguments& arguments, const Execution& execution) {
  using namespace moe_detail;
  const RouteArguments x = validated(arguments);
  const CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const RoutePlan plan = plan_route(x, device.chip(kernels()));
  if (!plan.is_needed()) return;
  const DeviceScope scope(device.ordinal());
  launch(kernels().get(kRouteKernel, plan.architecture), plan.shape, execution, plan.params);
}

std::int64_t moe_sort_workspace_bytes(const MoeSortArguments& arguments) {
  return moe_detail::plan_sort(moe_detail::validated(arguments), default_chip()).workspace_bytes;
}

void moe_sort(const MoeSortArguments& arguments, const Execution& execution) {
  using namespace moe_detail;
  const MoeSortArguments x = validated(arguments);
  CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const Chip& chip = device.chip(kernels());
  SortPlan plan = plan_sort(x, chip, execution.workspace);
  const Execution with = with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) plan = plan_sort(x, chip, with.workspace);
  if (plan.workspace_bytes != 0) {
    check_workspace(with, plan.workspace_bytes, device);
    check_apart({"execution.workspace", line_of(with.workspace, plan.workspace_bytes)},
                regions_of(x));
  }
  const DeviceScope scope(device.ordinal());
  launch_steps(plan, with);
}

}  // namespace cuda
}  // namespace blockscale
