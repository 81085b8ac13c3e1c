// The rates of the CUDA quantisers next to a copy kernel, as one JSON object: every recipe and
// layout, from bf16 at seven sizes and from f16 at four; fused inputs from both at seven, and in
// all layouts at two; before them the process's first call. Without a GPU it exits with 77.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/cuda_measure.h"
#include "ops/quantize/cuda_measure_report.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using quantize_detail::MeasuredProblem;
using quantize_detail::Measurement;
using quantize_detail::Workbench;

constexpr std::int64_t kMebi = 1 << 20;
constexpr std::int64_t kColumns = 8192;

/// All of these with each other, as far as a recipe has the layout.
struct Cases {
  std::vector<InputTransform> transforms;
  std::vector<Recipe> recipes;
  std::vector<Format> dtypes;
  std::vector<ScaleLayout> layouts;
  std::vector<std::int64_t> mebibytes;  // of x
};

nlohmann::json measured(Workbench& workbench, const MeasuredProblem& problem) {
  constexpr int kRepeats = 20;
  const Measurement m = measure_quantize(workbench, problem, {{}}, kRepeats);
  nlohmann::json report = report_of(problem, m, m.tunings[0]);
  report.erase("plan");  // tests have it
  std::fprintf(stderr, "%-18s %-4s %-14s %-9s %7.2f MiB %9.2f us, copy %9.2f us: %.3f\n",
               recipe_traits(problem.recipe).name, format_traits(problem.dtype).name,
               scale_layout_traits(problem.layout).name,
               kInputTransformNames[static_cast<int>(problem.transform)],
               static_cast<double>(m.input_bytes) / kMebi, m.tunings[0].seconds * 1e6,
               m.copy_seconds * 1e6, m.copy_seconds / m.tunings[0].seconds);
  return report;
}

nlohmann::json measured(Workbench& workbench, const Cases& cases) {
  nlohmann::json results = nlohmann::json::array();
  for (const InputTransform transform : cases.transforms) {
    // Another dtype seldom: all x is then filled again.
    for (const Format dtype : cases.dtypes) {
      for (const Recipe recipe : cases.recipes) {
        const auto allowed = quantize_detail::measured_layouts(recipe);
        for (const ScaleLayout layout : cases.layouts) {
          if (std::find(allowed.begin(), allowed.end(), layout) == allowed.end()) continue;
          MeasuredProblem problem{recipe, dtype, layout, 0, kColumns, transform};
          const std::int64_t row = x_columns_of(problem) * format_traits(dtype).bits / 8;
          for (const std::int64_t size : cases.mebibytes) {
            problem.rows = size * kMebi / row;
            results.push_back(measured(workbench, problem));
          }
        }
      }
    }
  }
  return results;
}

/// The process's first calls, with the pack: nvfp4, whose scale is computed, which takes two
/// kernels.
nlohmann::json first_calls(Workbench& workbench) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kWorkspaceBytes = 4096;
  const std::byte* const x = workbench.numbers(Format::bf16, kRows * kColumns * 2);
  std::byte* const results = workbench.results(kRows * kColumns);
  MutableScaledTensorView out;
  out.recipe = Recipe::nvfp4;
  out.rows = kRows;
  out.k = kColumns;
  out.tensor_scale = reinterpret_cast<float*>(results);
  out.scales = results + 256 + kWorkspaceBytes;
  out.values = results + kRows * kColumns / 2;
  const auto milliseconds_of_call = [&] {
    const auto start = std::chrono::steady_clock::now();
    cuda::quantize({x, Format::bf16, kRows, kColumns}, out, {},
                   {workbench.stream().handle(), results + 256, kWorkspaceBytes});
    workbench.stream().wait();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const double first = milliseconds_of_call();
  const double second = milliseconds_of_call();
  std::fprintf(stderr, "first call of the process %.2f ms, second %.3f ms\n", first, second);
  return {{"first_call_ms", first}, {"second_call_ms", second}};
}

nlohmann::json measure_all() {
  // One for all: streams that come later can take 0.3 us more a launch (docs/performance.md).
  Workbench workbench;
  const nlohmann::json first = first_calls(workbench);
  std::vector<Recipe> all;
  for (const RecipeTraits& t : kRecipes) {
    if (!is_plain(t.recipe)) all.push_back(t.recipe);
  }
  const std::vector<ScaleLayout> layouts = {ScaleLayout::row_major, ScaleLayout::mn_major,
                                            ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4};
  const std::vector<InputTransform> identity = {InputTransform::identity};
  const std::vector<InputTransform> transforms = {
      InputTransform::gelu_tanh, InputTransform::gelu_erf, InputTransform::swiglu,
      InputTransform::modulate, InputTransform::rms_norm};
  const std::vector<Recipe> fused = {Recipe::mxfp4,       Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3,
                                     Recipe::nvfp4,       Recipe::fp8_1x128,  Recipe::fp8_row,
                                     Recipe::fp8_128x128, Recipe::fp8_tensor};
  const auto of = [&](const Cases& cases) { return measured(workbench, cases); };
  return {{"first_calls", first},
          {"bf16", of({identity, all, {Format::bf16}, layouts, {1, 2, 4, 8, 16, 64, 512}})},
          {"f16", of({identity, all, {Format::f16}, layouts, {1, 4, 16, 64}})},
          {"fused", of({transforms,
                        fused,
                        {Format::bf16, Format::f16},
                        {ScaleLayout::row_major},
                        {1, 2, 4, 8, 16, 64, 256}})},
          {"fused_other_layouts", of({transforms,
                                      fused,
                                      {Format::bf16},
                                      {ScaleLayout::mn_major, ScaleLayout::swizzled_128x4},
                                      {64, 256}})}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
