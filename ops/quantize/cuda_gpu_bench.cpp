// The rates of the CUDA quantisers next to a copy kernel, as one JSON object: every recipe and
// layout, from bf16 at seven sizes and from f16 at four; fused inputs from both at seven, and in
// all layouts at one; before them the process's first call. Without a GPU it exits with 77.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "runtime/measure.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

void print(const cuda::QuantizeBenchmarkRow& row) {
  std::fprintf(stderr, "%-18s %-4s %-14s %-9s %7.2f MiB %9.2f us, copy %9.2f us: %.3f\n",
               recipe_traits(row.recipe).name, format_traits(row.dtype).name,
               scale_layout_traits(row.layout).name,
               kInputTransformNames[static_cast<int>(row.transform)],
               static_cast<double>(row.input_bytes) / (1 << 20), row.seconds * 1e6,
               row.copy_seconds * 1e6, row.copy_share);
}

/// Measures the cases, and prints each.
nlohmann::json cases(cuda::QuantizeBenchmarkOptions options) {
  options.after_case = print;
  nlohmann::json result = nlohmann::json::array();
  for (const cuda::QuantizeBenchmarkRow& row : cuda::benchmark_quantize(options)) {
    result.push_back({{"recipe", recipe_traits(row.recipe).name},
                      {"dtype", format_traits(row.dtype).name},
                      {"layout", scale_layout_traits(row.layout).name},
                      {"input", kInputTransformNames[static_cast<int>(row.transform)]},
                      {"rows", row.rows},
                      {"k", row.k},
                      {"moved_bytes", row.moved_bytes},
                      {"microseconds", row.seconds * 1e6},
                      {"copy_microseconds", row.copy_seconds * 1e6},
                      {"dependent_copy_microseconds", row.dependent_copy_seconds * 1e6},
                      {"terabytes_per_second", row.bytes_per_second * 1e-12},
                      {"copy_share", row.copy_share}});
  }
  return result;
}

/// The process's first calls, with the pack: nvfp4, whose scale is computed, which takes two
/// kernels.
nlohmann::json first_calls() {
  constexpr std::int64_t kRows = 128, kColumns = 1024;
  const runtime::DeviceBuffer x(kRows * kColumns * 2), values(kRows * kColumns / 2),
      scales(kRows * kColumns / 16), workspace(1 << 20);
  runtime::DeviceBuffer tensor_scale(sizeof(float));
  const runtime::DeviceStream stream;
  MutableScaledTensorView out;
  out.recipe = Recipe::nvfp4;
  out.rows = kRows;
  out.k = kColumns;
  out.values = values.data();
  out.scales = scales.data();
  out.tensor_scale = reinterpret_cast<float*>(tensor_scale.data());
  const auto milliseconds_of_call = [&] {
    const auto start = std::chrono::steady_clock::now();
    cuda::quantize({x.data(), Format::bf16, kRows, kColumns}, out, {},
                   {stream.handle(), workspace.data(), 1 << 20});
    stream.wait();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const double first = milliseconds_of_call();
  const double second = milliseconds_of_call();
  std::fprintf(stderr, "first call of the process %.2f ms, second %.3f ms\n", first, second);
  return {{"first_call_ms", first}, {"second_call_ms", second}};
}

nlohmann::json measure_all() {
  const nlohmann::json first = first_calls();
  cuda::QuantizeBenchmarkOptions from_bf16;
  from_bf16.input_bytes = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20, 512 << 20};
  cuda::QuantizeBenchmarkOptions from_f16;
  from_f16.dtypes = {Format::f16};
  from_f16.input_bytes = {1 << 20, 4 << 20, 16 << 20, 64 << 20};
  cuda::QuantizeBenchmarkOptions fused;
  fused.recipes = {Recipe::mxfp4,     Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3,  Recipe::nvfp4,
                   Recipe::fp8_1x128, Recipe::fp8_row,    Recipe::fp8_128x128, Recipe::fp8_tensor};
  fused.layouts = {ScaleLayout::row_major};
  fused.dtypes = {Format::bf16, Format::f16};
  fused.input_bytes = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20, 256 << 20};
  fused.transforms = {InputTransform::gelu_tanh, InputTransform::gelu_erf, InputTransform::swiglu,
                      InputTransform::modulate, InputTransform::rms_norm};
  cuda::QuantizeBenchmarkOptions other_layouts = fused;
  other_layouts.layouts = {ScaleLayout::mn_major, ScaleLayout::swizzled_128x4};
  other_layouts.dtypes = {Format::bf16};
  other_layouts.input_bytes = {64 << 20};
  return {{"first_calls", first},
          {"bf16", cases(from_bf16)},
          {"f16", cases(from_f16)},
          {"fused", cases(fused)},
          {"fused_other_layouts", cases(other_layouts)}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
