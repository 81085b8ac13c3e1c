// Runs plans of layers in the emulator, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/test/product_emulation.h"
#include "ops/grouped_gemm/test/emulation.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/cuda/plan.h"
#include "ops/moe/test/emulation.h"
#include "ops/moe/test/layer_problem.h"
#include "ops/quantize/test/emulation.h"

namespace blockscale::test {

inline void run_moe_kernel(const FinalizeParams& params) {
  moe_finalize_kernel(params);
}
inline void run_moe_kernel(const WeighParams& params) {
  moe_weigh_kernel(params);
}
inline void run_moe_kernel(const JoinScalesParams& params) {
  moe_join_scales_kernel(params);
}

/// Runs a part's launches in their order. True if the emulator has nothing to report.
inline bool emulate(moe_detail::MoePartPlan& part, int architecture,
                    const std::vector<emulator::Buffer>& buffers,
                    const emulator::Options& options) {
  const auto run = [&](const LaunchShape& shape, const auto& params) {
    const emulator::Report report =
        emulator::launch(shape, buffers, emulator::compiled_for(architecture, options),
                         [&] { run_moe_kernel(params); });
    EXPECT_TRUE(report.ok()) << part.str() << report.text();
    return report.ok();
  };
  if (part.join_scales && !run(part.join_scales->shape, part.join_scales->params)) return false;
  if (part.sort && !emulate(*part.sort, buffers, options)) return false;
  if (part.weigh && !run(part.weigh->shape, part.weigh->params)) return false;
  if (part.quantize && !emulate(*part.quantize, buffers, options)) return false;
  if (part.shared) {
    const auto& quantize = part.shared->quantize;
    if (quantize && !emulate(*quantize, buffers, options)) return false;
    if (!emulate(part.shared->up, buffers, options)) return false;
    if (!emulate(part.shared->down, buffers, options)) return false;
  }
  const auto finalize = [&] { return run(part.finalize.shape, part.finalize.params); };
  return (!part.adds || finalize()) && emulate(part.up, buffers, options) &&
         emulate(part.down, buffers, options) && (part.adds || finalize());
}

/// All memory of a layer's validated arguments, as launches may touch it.
inline std::vector<emulator::Buffer> buffers_of(const MoeArguments& x) {
  using enum emulator::BufferUse;
  std::vector<emulator::Buffer> buffers;
  const bool is_read = x.residual.data == x.y.data || moe_detail::adds_rows(x);
  moe_detail::for_each_memory(
      x, [&](const char* name, gemm_detail::Access access, const void* data, const auto& lines) {
        const std::int64_t bytes = extent_of(lines());
        const bool is_written = access == gemm_detail::Access::writes;
        if (bytes == 0 || data == nullptr || (data == x.y.data && !is_written)) return;
        const emulator::BufferUse use = !is_written ? input : is_read ? both : output;
        buffers.push_back(emulator::buffer(name, data, static_cast<std::size_t>(bytes), use));
      });
  return buffers;
}

/// A layer that the emulator ran, and the memory that it ran in.
struct EmulatedLayer {
  moe_detail::MoePlan plan;
  moe_detail::Gather gather = moe_detail::Gather::product;
  gemm_detail::Array<std::uint8_t> workspace;
  std::vector<emulator::Buffer> buffers;  // with the workspace
};

/// A change of a part's launches before they run.
using LayerPlant = std::function<void(moe_detail::MoePartPlan&)>;

/// Expects that the emulator has nothing to report.
inline EmulatedLayer emulate(
    LayerProblem& problem, const cuda::Chip& chip, const emulator::Options& options,
    const MoeOptions& limits = {}, const LayerPlant& plant = [](moe_detail::MoePartPlan&) {}) {
  EmulatedLayer ran;
  const MoeArguments x = moe_detail::validated(problem.arguments(), limits);
  const moe_detail::MoeParts parts = moe_detail::parts_of(x, limits, chip);
  const std::int64_t bytes = parts.workspace_bytes;
  ran.workspace = gemm_detail::allocate<std::uint8_t>(bytes);
  const std::span<std::uint8_t> workspace(ran.workspace.get(), static_cast<std::size_t>(bytes));
  std::fill(workspace.begin(), workspace.end(), std::uint8_t{0xFF});  // NaNs, and no rows
  ran.plan = moe_detail::plan_moe(x, parts, chip, workspace.data());
  ran.gather = parts.gather;
  ran.buffers = buffers_of(x);
  ran.buffers.push_back(emulator::in_out("workspace", workspace));
  for (moe_detail::MoePartPlan& part : ran.plan.parts) {
    plant(part);
    EXPECT_TRUE(emulate(part, ran.plan.architecture, ran.buffers, options));
  }
  return ran;
}

}  // namespace blockscale::test
