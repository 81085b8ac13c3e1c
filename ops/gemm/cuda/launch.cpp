// Products on CUDA devices: arguments -> plan -> launch.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/tensor_map.h"
#include "runtime/hash.h"
#include "runtime/kernels/kernel.h"

namespace blockscale {
namespace gemm_detail {
namespace {

runtime::KernelSet& kernels() {
  static auto& set = *new runtime::KernelSet(fp8_gemm_kernel_specs());
  return set;
}

cuda::CallDevice device_of_call(const GemmArguments& x) {
  cuda::CallDevice device;
  device.add("d.data", x.d.data);
  device.add("a.values", x.a.values);
  device.add("a.scales", x.a.scales);
  device.add("b.values", x.b.values);
  device.add("b.scales", x.b.scales);
  device.add("bias", x.bias);
  device.add("alpha_factor", x.alpha_factor);
  if (x.beta != 0) device.add("c.data", x.c.data);
  return device;
}

/// What a plan's choice may depend on: the problem, how memory is aligned, and the chip.
using PlanKey = std::array<std::int64_t, 28>;

PlanKey key_of(const GemmArguments& x, int multiprocessors) {
  PlanKey key{};
  std::size_t count = 0;
  const auto add = [&](auto value) { key.at(count++) = static_cast<std::int64_t>(value); };
  const auto add_address = [&](const void* p) { add(reinterpret_cast<std::uintptr_t>(p) % 128); };
  for (const ScaledTensorView* operand : {&x.a, &x.b}) {
    add(operand->recipe);
    add(operand->layout);
    add(operand->rows);
    add(operand->k);
    add(operand->batch);
    add_address(operand->values);
    add_address(operand->scales);
    add(operand->value_row_stride);
    add(operand->value_batch_stride);
    add(operand->scale_leading_stride);
    add(operand->scale_batch_stride);
  }
  add(x.d.dtype);
  add_address(x.d.data);
  add(x.d.row_stride);
  add(x.d.batch_stride);
  add(x.beta != 0);
  add(multiprocessors);
  return key;
}

/// The plan of a call. To compare all choices takes as long as a launch; what was chosen before in
/// this thread is kept, in a slot for each value of a hash.
Fp8GemmPlan plan_of_call(const GemmArguments& x, int multiprocessors) {
  struct Slot {
    PlanKey key{};
    std::optional<Fp8GemmChoice> choice;
  };
  constexpr std::size_t kSlots = 256;
  thread_local std::vector<Slot> slots(kSlots);
  const PlanKey key = key_of(x, multiprocessors);
  Slot& slot = slots[runtime::hash_bytes(std::as_bytes(std::span(key))).low % kSlots];
  if (slot.choice && slot.key == key) return plan_fp8_gemm(x, multiprocessors, slot.choice);
  const Fp8GemmPlan plan = plan_fp8_gemm(x, multiprocessors);
  if (plan.kernel >= 0) slot = {key, plan.choice};
  return plan;
}

}  // namespace

void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8GemmChoice>& choice,
                 const cuda::Execution& execution) {
  const GemmArguments x = validated(arguments, {});
  const cuda::CallDevice device = device_of_call(x);
  if (!device.is_known()) return;  // D has no element
  const int multiprocessors = device.traits().multiprocessors;
  Fp8GemmPlan plan =
      choice ? plan_fp8_gemm(x, multiprocessors, choice) : plan_of_call(x, multiprocessors);
  if (plan.kernel < 0) return;
  const cuda::DeviceScope scope(device.ordinal());
  const runtime::Kernel& kernel = kernels().get(static_cast<std::size_t>(plan.kernel));
  runtime::TensorMapCache& maps = runtime::TensorMapCache::instance();
  if (plan.a.rank != 0) plan.params.a = maps.get(plan.a);
  if (plan.b.rank != 0) plan.params.b = maps.get(plan.b);
  if (plan.d.rank != 0) plan.params.d = maps.get(plan.d);
  runtime::launch(kernel, plan.shape, execution.stream, plan.params);
}

}  // namespace gemm_detail

namespace cuda {

std::int64_t gemm_workspace_bytes(const GemmArguments& arguments) {
  const GemmArguments x = gemm_detail::validated(arguments, {});
  (void)gemm_detail::plan_fp8_gemm(x, 132);
  return 0;
}

void gemm(const GemmArguments& arguments, const Execution& execution) {
  gemm_detail::launch_gemm(arguments, {}, execution);
}

std::string describe_gemm(const GemmArguments& arguments, int multiprocessors) {
  check_multiprocessors(multiprocessors);
  return gemm_detail::plan_fp8_gemm(gemm_detail::validated(arguments, {}), multiprocessors).str();
}

}  // namespace cuda
}  // namespace blockscale
