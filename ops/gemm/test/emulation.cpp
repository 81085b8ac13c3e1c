#include "ops/gemm/test/emulation.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <variant>

#include "ops/quantize/test/emulation.h"

namespace blockscale::test {
namespace {

bool is_ok(const emulator::Report& report) {
  EXPECT_TRUE(report.ok()) << report.text();
  return report.ok();
}

}  // namespace

std::int64_t scale_bytes_of(const ScaledTensorView& x) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  return ((x.batch - 1) * x.scale_batch_stride +
          scale_count(x.layout, grid.rows, grid.columns, x.scale_leading_stride)) *
         size;
}

bool emulate(gemm_detail::Fp8GemmPlan& plan, std::vector<emulator::Buffer> buffers,
             const emulator::Options& options) {
  for (gemm_detail::GemmStep& step : plan.steps) {
    const auto* const copy = step.of<AlignRowsParams>();
    const auto* const tiles = step.of<Fp8GemmParams>();
    if (copy != nullptr) {
      const auto bytes = static_cast<std::size_t>(copy->rows * copy->batch * copy->to_row_stride());
      buffers.push_back(
          emulator::buffer("workspace", copy->to, bytes, emulator::BufferUse::output));
    }
    // A launch beside another begins while that runs, but behind what ran before it.
    for (emulator::Buffer& buffer : buffers) {
      buffer.dependent = tiles == nullptr || !tiles->is_beside;
    }
    const auto run = [&](auto& params) {
      gemm_detail::resolve_tensor_maps(step.maps, emulator::encode_tensor_map, params);
      return emulator::launch(step.shape, buffers,
                              emulator::compiled_for(plan.architecture, options),
                              [&] { run_kernel(step.kernel, params); });
    };
    if (!is_ok(std::visit(run, step.params))) return false;
    if (copy != nullptr) buffers.back().use = emulator::BufferUse::input;
  }
  return true;
}

bool emulate(gemm_detail::Fp4TilesPlan& plan, std::vector<emulator::Buffer> buffers,
             const emulator::Options& options) {
  const auto run = [&](const LaunchShape& shape, const auto& kernel) {
    const emulator::Report report = emulator::launch(
        shape, buffers, emulator::compiled_for(plan.architecture, options), kernel);
    EXPECT_TRUE(report.ok()) << plan.str() << report.text();
    return report.ok();
  };
  for (const auto* const conversion : {&plan.conversion, &plan.b_conversion}) {
    if (!*conversion) continue;
    const quantize_detail::DequantizePlan& of = **conversion;
    if (!run(of.shape, [&] { dequantize_function(of.kernel)(of.params); })) return false;
  }
  for (const auto* const conversion : {&plan.conversion, &plan.b_conversion}) {
    for (emulator::Buffer& buffer : buffers) {
      const auto* const begin = static_cast<const std::uint8_t*>(buffer.data);
      const bool has_rows = *conversion && (*conversion)->params.out >= begin &&
                            (*conversion)->params.out < begin + buffer.bytes;
      if (has_rows && buffer.use == emulator::BufferUse::output) {
        buffer.use = emulator::BufferUse::input;
      }
    }
  }
  gemm_detail::resolve_tensor_maps(plan.maps, emulator::encode_tensor_map, plan.params);
  const auto kernel = static_cast<std::size_t>(plan.kernel);
  if (!run(plan.shape, [&] { run_kernel(kernel, plan.params); })) return false;
  if (!plan.fallback) return true;
  const gemm_detail::PlainGemmStep& fallback = *plan.fallback;
  return run(fallback.shape,
             [&] { run_kernel(static_cast<std::size_t>(fallback.kernel), fallback.params); });
}

}  // namespace blockscale::test
