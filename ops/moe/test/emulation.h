// Runs plans of routing and sorting in the emulator, for tests.
#pragma once

#include <vector>

#include "device/emulator/emulator.h"
#include "ops/moe/cuda/routing.h"

namespace blockscale::test {

/// What the emulator has to say of one launch.
emulator::Report report_of(const moe_detail::RoutePlan& plan,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options);
emulator::Report report_of(const moe_detail::SortStep& step, int architecture,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options);

/// Runs a plan's steps in their order. `buffers` are what they read and write. True if the emulator
/// has nothing to report.
bool emulate(const moe_detail::RoutePlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options);
bool emulate(const moe_detail::SortPlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options);

}  // namespace blockscale::test
