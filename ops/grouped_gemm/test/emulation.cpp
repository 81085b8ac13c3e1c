#include "ops/grouped_gemm/test/emulation.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <variant>

#include "ops/gemm/test/emulation.h"
#include "ops/quantize/test/emulation.h"

namespace blockscale::test {

void run_grouped_kernel(std::size_t kernel, const Fp4TilesParams& params) {
  run_kernel(kernel, params);
}

void run_grouped_kernel(std::size_t kernel, const BlockScaledParams& params) {
  run_kernel(kernel, params);
}

void run_grouped_kernel(std::size_t, const GroupedTransformParams& params) {
  grouped_transform_kernel(params);
}

void run_grouped_kernel(std::size_t, const CopyRowsParams& params) {
  copy_rows_kernel(params);
}

emulator::Report report_of(grouped_gemm_detail::GroupedStep& step, int architecture,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options) {
  return std::visit(
      [&](auto& params) {
        gemm_detail::resolve_tensor_maps(step.maps, emulator::encode_tensor_map, params);
        return emulator::launch(step.shape, buffers, emulator::compiled_for(architecture, options),
                                [&] { run_grouped_kernel(step.kernel, params); });
      },
      step.params);
}

bool emulate(grouped_gemm_detail::GroupedPlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options) {
  bool is_ok = true;
  grouped_gemm_detail::for_each_launch(plan, [&](auto& part) {
    if (!is_ok) return;
    if constexpr (std::is_same_v<decltype(part), grouped_gemm_detail::GroupedStep&>) {
      const emulator::Report report = report_of(part, plan.architecture, buffers, options);
      EXPECT_TRUE(report.ok()) << report.text();
      is_ok = report.ok();
    } else {
      is_ok = emulate(part, buffers, options);
    }
  });
  return is_ok;
}

bool emulate(const GroupedGemmArguments& x, const cuda::Chip& chip,
             std::vector<emulator::Buffer> buffers, const emulator::Options& options) {
  const std::int64_t bytes = grouped_gemm_detail::plan_grouped(x, chip).workspace_bytes;
  std::vector<std::uint8_t> workspace(static_cast<std::size_t>(bytes));
  auto plan = grouped_gemm_detail::plan_grouped(x, chip, workspace.data());
  if (bytes != 0) buffers.push_back(emulator::in_out("workspace", workspace));
  return emulate(plan, buffers, options);
}

}  // namespace blockscale::test
