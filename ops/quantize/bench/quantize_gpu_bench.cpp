// The rates of the CUDA quantisers next to a copy kernel, as one JSON object: every recipe and
// layout, from bf16 at seven sizes and from f16 at four; fused inputs from both at seven, and in
// all layouts at two; before them the process's first call. Without a GPU it exits with 77.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/bench/cuda_measure.h"
#include "ops/quantize/bench/cuda_measure_report.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using quantize_detail::MeasuredProblem;
using quantize_detail::Measurement;
using quantize_detail::Workbench;

constexpr std::int64_t kMebi = 1 << 20;
constexpr std::int64_t kColumns = 8192;

/// Appends what the options ask for.
void measure(Workbench& workbench, const cuda::QuantizeBenchmarkOptions& options,
             nlohmann::json& cases) {
  for (const MeasuredProblem& problem : quantize_detail::measured_problems(options)) {
    const Measurement m = measure_quantize(workbench, problem, options.repeats);
    cases.push_back(report(problem, m));
  }
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
  nlohmann::json report = {{"first_calls", first}};
  cuda::QuantizeBenchmarkOptions unfused;
  unfused.k = kColumns;
  cuda::QuantizeBenchmarkOptions fused = unfused;
  fused.transforms = {InputTransform::gelu_tanh, InputTransform::gelu_erf, InputTransform::swiglu,
                      InputTransform::modulate, InputTransform::rms_norm};
  fused.recipes = {Recipe::mxfp4,     Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3,  Recipe::nvfp4,
                   Recipe::fp8_1x128, Recipe::fp8_row,    Recipe::fp8_128x128, Recipe::fp8_tensor};
  // One dtype after the other: all x is filled again for another one.
  for (const Format dtype : {Format::bf16, Format::f16}) {
    const bool bf16 = dtype == Format::bf16;
    unfused.dtypes = fused.dtypes = {dtype};
    unfused.input_bytes = {kMebi, 4 * kMebi, 16 * kMebi, 64 * kMebi};
    if (bf16) {
      unfused.input_bytes.insert(unfused.input_bytes.end(), {2 * kMebi, 8 * kMebi, 512 * kMebi});
    }
    measure(workbench, unfused, report[format_traits(dtype).name]);
    fused.layouts = {ScaleLayout::row_major};
    fused.input_bytes = {kMebi,      2 * kMebi,  4 * kMebi,  8 * kMebi,
                         16 * kMebi, 64 * kMebi, 256 * kMebi};
    measure(workbench, fused, report["fused"]);
    if (!bf16) continue;
    fused.layouts = {ScaleLayout::mn_major, ScaleLayout::swizzled_128x4};
    fused.input_bytes = {64 * kMebi, 256 * kMebi};
    measure(workbench, fused, report["fused_other_layouts"]);
  }
  return report;
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
