// The rate of cuda::quantize_rows_and_columns next to a copy kernel that moves as many bytes, as
// one JSON object. Without a GPU it exits with 77.
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "ops/quantize/cuda_measure.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

constexpr int kRepeats = 20;

nlohmann::json measured(const quantize_detail::MeasuredProblem& problem) {
  const quantize_detail::Measurement m = measure_quantize(problem, {{}}, kRepeats);
  const quantize_detail::MeasuredTuning& result = m.tunings.front();
  if (result.failed) throw Error(*result.failed);
  const double share = m.copy_seconds / result.seconds;
  const char* const name = recipe_traits(problem.recipe).name;
  const char* const dtype = format_traits(problem.dtype).name;
  const char* const layout = scale_layout_traits(problem.layout).name;
  std::fprintf(stderr, "%-16s %-4s %-14s %6lld x %6lld %9.2f us, copy %9.2f us: %.3f\n", name,
               dtype, layout, static_cast<long long>(problem.rows),
               static_cast<long long>(problem.k), result.seconds * 1e6, m.copy_seconds * 1e6,
               share);
  return {{"recipe", name},
          {"dtype", dtype},
          {"layout", layout},
          {"rows", problem.rows},
          {"k", problem.k},
          {"moved_bytes", m.moved_bytes},
          {"microseconds", result.seconds * 1e6},
          {"copy_microseconds", m.copy_seconds * 1e6},
          {"terabytes_per_second", static_cast<double>(m.moved_bytes) / result.seconds * 1e-12},
          {"copy_share", share}};
}

nlohmann::json measure_all() {
  nlohmann::json cases = nlohmann::json::array();
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const auto& [recipe, layout] :
         {std::pair{Recipe::fp8_1x128, ScaleLayout::row_major},
          std::pair{Recipe::fp8_1x128, ScaleLayout::mn_major},
          std::pair{Recipe::fp8_1x128_ue8m0, ScaleLayout::swizzled_128x4}}) {
      for (const std::int64_t rows : {512, 4096, 32768}) {
        if (dtype != Format::bf16 && rows != 4096) continue;
        quantize_detail::MeasuredProblem problem;
        problem.recipe = recipe;
        problem.dtype = dtype;
        problem.layout = layout;
        problem.rows = rows;
        problem.k = 8192;
        problem.columns_too = true;
        cases.push_back(measured(problem));
      }
    }
  }
  return nlohmann::json::object({{"rows_and_columns", cases}});
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
