// CPU time of cuda::quantize and cuda::gemm, whose plans were made before, against a bare
// cuLaunchKernelEx of the same kernel: at most 1 us above it is asked.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/validate.h"
#include "runtime/cuda/measure.h"
#include "tests/gpu_benchmark.h"
#include "tests/launch_time.h"

namespace blockscale {
namespace {

using Json = nlohmann::json;
using runtime::DeviceBuffer;

Json entry(const std::string& name, const test::LaunchTimes& times) {
  return {{"case", name},
          {"bare_us", times.bare},
          {"blockscale_us", times.ours},
          {"above_bare_us", times.above_bare},
          {"passed", times.above_bare <= 1}};
}

/// Small products: the queue of a stream is not what is measured. `device`: of cuda::Execution.
Json measure_gemm(std::int64_t m, std::int64_t n, std::int64_t k, void* stream, int device) {
  const auto scales = [&](std::int64_t rows) { return static_cast<std::size_t>(rows * k / 32); };
  DeviceBuffer a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(n * k)),
      a_scales(scales(m)), b_scales(scales(n)), d(static_cast<std::size_t>(m * n * 2));
  for (DeviceBuffer* const x : {&a, &b, &a_scales, &b_scales}) x->fill(0);
  GemmArguments x;
  x.a = {Recipe::fp8_1x128, m, k};
  x.b = {Recipe::fp8_128x128, n, k};
  x.a.values = a.data();
  x.a.scales = a_scales.data();
  x.b.values = b.data();
  x.b.scales = b_scales.data();
  x.d = {d.data(), Format::bf16, m, n};

  gemm_detail::Fp8GemmPlan plan =
      gemm_detail::plan_fp8_gemm(gemm_detail::validated(x, {}), cuda::current_device());
  std::vector<std::function<void()>> bare;  // launches
  for (gemm_detail::GemmStep& step : plan.steps) {
    gemm_detail::find_tensor_maps(step);
    const runtime::Kernel& kernel = gemm_detail::kernels().get(step.kernel, plan.architecture);
    std::visit(
        [&](const auto& params) {
          runtime::launch(kernel, step.shape, stream, params);  // which allows shared memory
          bare.push_back(test::bare_launch(kernel, step.shape, stream, params));
        },
        step.params);
  }
  cuda::Execution execution{stream};
  execution.device = device;
  const std::string shape =
      std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
  return entry("gemm " + shape + (device < 0 ? "" : ", device given"),
               test::time_launches(
                   [&] {
                     for (const auto& launch : bare) launch();
                   },
                   [&] { cuda::gemm(x, execution); }));
}

Json measure_quantize(Recipe recipe, void* stream) {
  constexpr std::int64_t kRows = 64, kColumns = 2048;
  DeviceBuffer input(kRows * kColumns * 2), values(kRows * kColumns), scales(kRows * kColumns / 4);
  input.fill(0);
  const MatrixView x = {input.data(), Format::bf16, kRows, kColumns};
  MutableScaledTensorView out;
  out.recipe = recipe;
  out.rows = kRows;
  out.k = kColumns;
  out.values = values.data();
  out.scales = scales.data();
  const auto plan = quantize_detail::plan_quantize(quantize_detail::validated(x, out, {}), {},
                                                   cuda::current_device(), nullptr);
  const auto& step = plan.last();
  const runtime::Kernel& kernel = quantize_detail::quantize_kernels().get(
      static_cast<std::size_t>(step.kernel), plan.architecture);
  return entry(std::string("quantize ") + recipe_traits(recipe).name,
               test::time_launches(test::bare_launch(kernel, step.shape, stream, step.params),
                                   [&] { cuda::quantize(x, out, {}, {stream}); }));
}

Json measure() {
  const runtime::DeviceStream stream;
  Json cases = Json::array();
  for (const int device : {-1, cuda::current_device().ordinal}) {
    cases.push_back(measure_gemm(1, 576, 512, stream.handle(), device));
    cases.push_back(measure_gemm(64, 2112, 512, stream.handle(), device));
  }
  cases.push_back(measure_quantize(Recipe::fp8_1x128, stream.handle()));
  cases.push_back(measure_quantize(Recipe::mxfp8_e4m3, stream.handle()));
  return {{"cases", cases}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main([] { return blockscale::measure(); });
}
