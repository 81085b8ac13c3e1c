#include "ops/moe/test/emulation.h"

#include <gtest/gtest.h>

#include <variant>

namespace blockscale::test {
namespace {

void run_kernel(const SortParams& params) {
  moe_sort_kernel(params);
}
void run_kernel(const PadParams& params) {
  moe_pad_kernel(params);
}

}  // namespace

emulator::Report report_of(const moe_detail::RoutePlan& plan,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options) {
  return emulator::launch(plan.shape, buffers, emulator::compiled_for(plan.architecture, options),
                          [&] { moe_route_kernel(plan.params); });
}

emulator::Report report_of(const moe_detail::SortStep& step, int architecture,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options) {
  return std::visit(
      [&](const auto& params) {
        return emulator::launch(step.shape, buffers, emulator::compiled_for(architecture, options),
                                [&] { run_kernel(params); });
      },
      step.params);
}

bool emulate(const moe_detail::RoutePlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options) {
  if (!plan.is_needed()) return true;
  const emulator::Report report = report_of(plan, buffers, options);
  EXPECT_TRUE(report.ok()) << plan.str() << report.text();
  return report.ok();
}

bool emulate(const moe_detail::SortPlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options) {
  for (const moe_detail::SortStep& step : plan.steps) {
    const emulator::Report report = report_of(step, plan.architecture, buffers, options);
    EXPECT_TRUE(report.ok()) << step.str() << report.text();
    if (!report.ok()) return false;
  }
  return true;
}

}  // namespace blockscale::test
