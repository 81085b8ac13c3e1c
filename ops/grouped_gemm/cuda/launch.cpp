// Grouped products on CUDA devices: arguments -> plan -> launch.
#include "ops/grouped_gemm/cuda/launch.h"

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/regions.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/cuda/trials.h"
#include "ops/grouped_gemm/validate.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/tensor_map.h"

namespace blockscale {
namespace grouped_gemm_detail {

runtime::KernelSet& kernels() {
  static auto& set = *new runtime::KernelSet(kernel_specs());
  return set;
}

namespace {

template <class Arguments>
std::vector<Region> regions_of(const Arguments& x) {
  return call_regions([&](const auto& visit) { for_each_memory(x, visit); }).all();
}

GroupedPlan plan_of(const GroupedGemmArguments& x, const cuda::Chip& chip, void* workspace) {
  return plan_grouped(x, chip, workspace);
}
GroupedPlan plan_of(const KGroupedGemmArguments& x, const cuda::Chip& chip, void*) {
  return plan_k_grouped(x, chip);
}

/// All memory of a call must lie on the call's device.
template <class Arguments>
cuda::CallDevice device_of_call(const Arguments& x, const cuda::Execution& execution) {
  cuda::CallDevice device(execution);
  for_each_memory(x, [&](const char* argument, Access, const void* pointer, const auto&) {
    device.add(argument, pointer);
  });
  return device;
}

template <class Arguments>
void plan_and_launch(const Arguments& arguments, const cuda::Execution& execution) {
  const Arguments x = validated(arguments);
  cuda::CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const cuda::Chip& chip = cuda::chip_of_call(device, kernels(), execution,
                                              [&](const cuda::Chip& of, const auto& visit) {
                                                for_each_trial(plan_of(x, of, nullptr), visit);
                                              });
  GroupedPlan plan = plan_of(x, chip, execution.workspace);
  const cuda::Execution with = cuda::with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) plan = plan_of(x, chip, with.workspace);
  if (plan.workspace_bytes != 0) {
    cuda::check_workspace(with, plan.workspace_bytes, device);
    check_apart({"execution.workspace", line_of(with.workspace, plan.workspace_bytes)},
                regions_of(x));
  }
  const cuda::DeviceScope scope(device.ordinal());
  find_tensor_maps(plan);
  launch_steps(plan, with);
}

/// Numbers of the device that a host reads, once its stream has been waited for.
class HostCopies {
 public:
  explicit HostCopies(void* stream) : stream_(static_cast<runtime::cu::Stream>(stream)) {}

  void replace(const std::int32_t*& numbers, std::int64_t count) {
    if (numbers == nullptr) return;
    std::vector<std::int32_t>& copy = copies_.emplace_back(static_cast<std::size_t>(count));
    const auto from = reinterpret_cast<std::uintptr_t>(numbers);
    numbers = copy.data();
    if (count == 0) return;
    runtime::driver().copy_to_host(copy.data(), from, copy.size() * sizeof(std::int32_t), stream_);
  }
  void wait() const { cuda::synchronize(stream_); }

 private:
  runtime::cu::Stream stream_;
  std::vector<std::vector<std::int32_t>> copies_;
};

/// Those that a step is launched from.
runtime::KernelSet& kernels_of(const GroupedStep& step) {
  if (std::holds_alternative<Fp4TilesParams>(step.params)) {
    return gemm_detail::fp4_tiles_kernels();
  }
  if (std::holds_alternative<BlockScaledParams>(step.params)) {
    return gemm_detail::block_scaled_kernels();
  }
  return kernels();
}

}  // namespace

void find_tensor_maps(GroupedPlan& plan) {
  runtime::TensorMapCache& cache = runtime::TensorMapCache::instance();
  const auto encode = [&](const TensorMapDescription& map) { return cache.get(map); };
  for (GroupedStep& step : plan.steps) {
    std::visit([&](auto& params) { gemm_detail::resolve_tensor_maps(step.maps, encode, params); },
               step.params);
  }
}

void launch_steps(const GroupedPlan& plan, const cuda::Execution& execution) {
  for_each_launch(plan, [&](const auto& part) {
    if constexpr (std::is_same_v<decltype(part), const GroupedStep&>) {
      const runtime::Kernel& kernel = kernels_of(part).get(part.kernel, plan.architecture);
      std::visit([&](const auto& params) { cuda::launch(kernel, part.shape, execution, params); },
                 part.params);
    } else {
      quantize_detail::launch_steps(part, execution);
    }
  });
}

}  // namespace grouped_gemm_detail

namespace cuda {

void check_groups(const GroupedGemmArguments& arguments, const Execution& execution) {
  using namespace grouped_gemm_detail;
  GroupedGemmArguments x = validated(arguments);
  const CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const DeviceScope scope(device.ordinal());
  HostCopies copies(execution.stream);
  const std::int64_t groups = groups_of(x);
  copies.replace(x.offsets, x.lengths == nullptr ? groups + 1 : groups);
  copies.replace(x.lengths, groups);
  copies.replace(x.index, x.rows);
  copies.replace(x.destinations, x.rows);
  copies.wait();
  grouped_gemm_detail::check_groups(x);
}

std::int64_t grouped_gemm_workspace_bytes(const GroupedGemmArguments& arguments) {
  using namespace grouped_gemm_detail;
  const GroupedGemmArguments x = validated(arguments);
  return workspace_bytes_on(
      default_chip(), [&](const Chip& chip) { return plan_grouped(x, chip).workspace_bytes; });
}

void grouped_gemm(const GroupedGemmArguments& arguments, const Execution& execution) {
  grouped_gemm_detail::plan_and_launch(arguments, execution);
}

void k_grouped_gemm(const KGroupedGemmArguments& arguments, const Execution& execution) {
  grouped_gemm_detail::plan_and_launch(arguments, execution);
}

std::string describe_grouped_gemm(const GroupedGemmArguments& arguments, const Chip& chip) {
  using namespace grouped_gemm_detail;
  return with_proof(
      plan_grouped(validated(arguments), checked(chip, grouped_gemm_detail::kernels())).str(),
      chip);
}

}  // namespace cuda
}  // namespace blockscale
