// Runs products of many rows with weights in FP4, or in 16 bits, in the emulator, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "device/conversion_loss.h"
#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_emulation.h"
#include "ops/gemm/test/plain_problem.h"
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
  AlignedCopy workspace(nullptr, plan->workspace_bytes, 0);
  std::memset(workspace.at(), 0xFF, static_cast<std::size_t>(workspace.bytes()));
  plan = plan_in(workspace.at());
  if (change) change(*plan);
  const std::size_t of_loss = plan->fallback ? sizeof(ConversionLoss) : 0;
  const std::size_t of_rows = static_cast<std::size_t>(workspace.bytes()) - of_loss;
  std::vector<emulator::Buffer> buffers = buffers_of(operands);
  if (of_rows != 0) {
    buffers.push_back(
        emulator::buffer("workspace", workspace.at(), of_rows, emulator::BufferUse::output));
  }
  if (of_loss != 0) {
    buffers.push_back(
        emulator::buffer("loss", workspace.at() + of_rows, of_loss, emulator::BufferUse::both));
  }
  const bool is_ok = emulate(*plan, buffers, options);
  EXPECT_TRUE(operands.d().is_poison_intact());
  if (plan->params.loss != nullptr) {  // the next call finds no token
    EXPECT_NE(plan->params.loss->found, ConversionLoss::kToken);
  }
  return is_ok;
}

/// Checks a problem against the float64 reference.
inline void check_fp4_tiles(const PlainProblem& p,
                            const emulator::Options& options = emulator::in_order(),
                            std::optional<gemm_detail::Fp4TilesDivision> division = std::nullopt) {
  const bool in_fp8 = division && division->in_fp8;
  const auto path = !in_fp8               ? gemm_detail::GemmPath::sm90_fp4_tiles
                    : p.fast_accumulation ? gemm_detail::GemmPath::sm90_fp8_fast
                                          : gemm_detail::GemmPath::sm90_fp8;
  check_emulated(
      p, path, [&](PlainOperands& operands) { return run_fp4_tiles(operands, options, division); });
}

}  // namespace blockscale::test
