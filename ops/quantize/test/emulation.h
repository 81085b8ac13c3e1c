// Runs plans of the quantizers in the emulator, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/kernels/config.h"
#include "ops/quantize/kernels/dequantize_config.h"
#include "tests/chip.h"

namespace blockscale::test {

using QuantizeFunction = void (*)(const QuantizeParams&);

/// A kernel of kQuantizeKernels as a host function.
QuantizeFunction quantize_function(int kernel);

using DequantizeFunction = void (*)(const DequantizeParams&);

/// A kernel of kDequantizeKernels as a host function.
DequantizeFunction dequantize_function(int kernel);

/// Indices of the kernels that this process has emulated.
inline std::set<int>& emulated_kernels() {
  static std::set<int> kernels;
  return kernels;
}

/// What a plan's kernels may touch.
class PlanBuffers {
 public:
  void add(const char* name, const void* data, std::int64_t bytes, emulator::BufferUse use) {
    if (bytes <= 0 || data == nullptr) return;
    buffers_.push_back(emulator::buffer(name, data, static_cast<std::size_t>(bytes), use));
  }
  /// For a step of the plan: the first waits for whoever wrote its inputs, before it lets the
  /// others start.
  std::vector<emulator::Buffer> of_step(int step) const {
    std::vector<emulator::Buffer> buffers = buffers_;
    for (emulator::Buffer& buffer : buffers) {
      buffer.dependent = step == 0 || buffer.use != emulator::BufferUse::input;
    }
    return buffers;
  }

 private:
  std::vector<emulator::Buffer> buffers_;
};

/// Runs a plan's steps in their order. `buffers` are what they read and write. True if the emulator
/// has nothing to report.
inline bool emulate(const quantize_detail::QuantizePlan& plan,
                    const std::vector<emulator::Buffer>& buffers,
                    const emulator::Options& options) {
  for (int i = 0; i < plan.count; ++i) {
    const auto& step = plan.steps[static_cast<std::size_t>(i)];
    const QuantizeFunction function = quantize_function(step.kernel);
    const emulator::Report report =
        emulator::launch(step.shape, buffers, emulator::compiled_for(plan.architecture, options),
                         [&] { function(step.params); });
    EXPECT_TRUE(report.ok()) << plan.str() << report.text();
    if (!report.ok()) return false;
  }
  return true;
}

/// Makes a plan with a workspace of its own, and runs it in order (seed 0) or in a random order.
/// `plan_with(workspace)` is called twice. True if the emulator has nothing to report.
template <class PlanWith>
bool emulate_plan(const PlanWith& plan_with, PlanBuffers buffers, std::uint64_t seed) {
  const std::int64_t bytes = plan_with(nullptr).workspace_bytes;
  std::vector<std::uint32_t> workspace(static_cast<std::size_t>(bytes / 4), 0xFFFFFFFFu);
  const quantize_detail::QuantizePlan plan = plan_with(workspace.data());
  buffers.add("workspace", workspace.data(), bytes, emulator::BufferUse::both);
  for (int i = 0; i < plan.count; ++i) {
    const auto& step = plan.steps[static_cast<std::size_t>(i)];
    const emulator::Options order = emulator::compiled_for(
        plan.architecture, seed == 0 ? emulator::in_order() : emulator::random_order(seed));
    const QuantizeFunction function = quantize_function(step.kernel);
    emulated_kernels().insert(step.kernel);
    const QuantizeParams params = step.params;
    const emulator::Report report =
        emulator::launch(step.shape, buffers.of_step(i), order, [&] { function(params); });
    EXPECT_TRUE(report.ok()) << plan.str() << report.text();
    if (!report.ok()) return false;
  }
  return true;
}

inline bool emulate_quantize(const MatrixView& x, const MutableScaledTensorView& out,
                             const QuantizeOptions& options, const PlanBuffers& buffers,
                             std::uint64_t seed = 0, const cuda::Chip& chip = chip_of(3)) {
  const quantize_detail::QuantizeArguments a = quantize_detail::validated(x, out, options);
  return emulate_plan(
      [&](void* workspace) { return quantize_detail::plan_quantize(a, options, chip, workspace); },
      buffers, seed);
}

}  // namespace blockscale::test
