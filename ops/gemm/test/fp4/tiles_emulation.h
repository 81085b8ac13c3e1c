// Runs products of many rows with weights in FP4, or in 16 bits, in the emulator, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
#include "ops/quantize/test/emulation.h"
#include "tests/chip.h"

namespace blockscale::test {

/// Runs a problem, whose launches `change` may spoil. False if the emulator has something to
/// report.
inline bool run_fp4_tiles(PlainOperands& operands, const emulator::Options& options,
                          std::optional<gemm_detail::Fp4TilesDivision> division = std::nullopt,
                          const std::function<void(gemm_detail::Fp4TilesPlan&)>& change = nullptr) {
  const GemmArguments x = gemm_detail::validated(operands.arguments(), {});
  const auto plan_in = [&](void* workspace) {
    return gemm_detail::plan_fp4_tiles(x, chip_of(2), workspace, division);
  };
  std::optional<gemm_detail::Fp4TilesPlan> plan = plan_in(nullptr);
  if (!plan) {
    ADD_FAILURE() << "no kernel of many rows";
    return false;
  }
  const auto bytes = static_cast<std::size_t>(plan->workspace_bytes);
  AlignedCopy workspace(nullptr, plan->workspace_bytes, 0);
  std::memset(workspace.at(), 0xFF, bytes);
  plan = plan_in(workspace.at());
  gemm_detail::resolve_tensor_maps(plan->maps, emulator::encode_tensor_map, plan->params);
  if (change) change(*plan);
  if (bytes == 0) return launch_emulated(*plan, plan->params, operands, options);
  std::vector<emulator::Buffer> buffers = buffers_of(operands);
  buffers.push_back(
      emulator::buffer("workspace", workspace.at(), bytes, emulator::BufferUse::output));
  for (const auto& conversion : {plan->conversion, plan->b_conversion}) {
    if (!conversion) continue;
    const emulator::Report report = emulator::launch(
        conversion->shape, buffers, emulator::compiled_for(conversion->architecture, options),
        [&] { dequantize_function(conversion->kernel)(conversion->params); });
    EXPECT_TRUE(report.ok()) << plan->str() << report.text();
    if (!report.ok()) return false;
  }
  buffers.back().use = emulator::BufferUse::input;
  return launch_emulated(*plan, plan->params, operands, options, {buffers.back()});
}

/// Checks a problem against the float64 reference.
inline void check_fp4_tiles(const PlainProblem& p,
                            const emulator::Options& options = emulator::in_order(),
                            std::optional<gemm_detail::Fp4TilesDivision> division = std::nullopt) {
  const bool in_fp8 = division && division->in_fp8;
  const auto path =
      in_fp8 ? gemm_detail::GemmPath::sm90_fp8 : gemm_detail::GemmPath::sm90_fp4_tiles;
  check_emulated(
      p, path, [&](PlainOperands& operands) { return run_fp4_tiles(operands, options, division); });
}

}  // namespace blockscale::test
