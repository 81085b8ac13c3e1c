// The rates of the CUDA quantisers next to a copy kernel, as one JSON object: every recipe and
// layout, from bf16 at four sizes and from f16 at one; fused inputs from both at seven. Without a
// GPU it exits with 77.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "blockscale/bench.h"
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

nlohmann::json measure_all() {
  cuda::QuantizeBenchmarkOptions from_f16;
  from_f16.dtypes = {Format::f16};
  from_f16.input_bytes = {std::int64_t{64} << 20};
  cuda::QuantizeBenchmarkOptions fused;
  fused.recipes = {Recipe::mxfp4,     Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3,  Recipe::nvfp4,
                   Recipe::fp8_1x128, Recipe::fp8_row,    Recipe::fp8_128x128, Recipe::fp8_tensor};
  fused.layouts = {ScaleLayout::row_major};
  fused.dtypes = {Format::bf16, Format::f16};
  fused.input_bytes = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20, 256 << 20};
  fused.transforms = {InputTransform::gelu_tanh, InputTransform::gelu_erf, InputTransform::swiglu,
                      InputTransform::modulate, InputTransform::rms_norm};
  return {{"bf16", cases({})}, {"f16", cases(from_f16)}, {"fused", cases(fused)}};
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
