// The rate of cuda::quantize_rows_and_columns next to a copy kernel that moves as many bytes, as
// one JSON object. Without a GPU it exits with 77.
// (rms_norm reads x twice, which counts once.)
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "ops/quantize/bench/cuda_measure.h"
#include "ops/quantize/bench/cuda_measure_report.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

constexpr int kRepeats = 20;

using quantize_detail::MeasuredProblem;

std::vector<MeasuredProblem> problems() {
  std::vector<MeasuredProblem> list;
  const auto add = [&](Recipe recipe, Format dtype, ScaleLayout layout, std::int64_t rows,
                       InputTransform transform, std::int64_t k = 8192) {
    list.push_back({recipe, dtype, layout, rows, k, transform});
    list.back().columns_too = true;
  };
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const auto& [recipe, layout] :
         {std::pair{Recipe::fp8_1x128, ScaleLayout::row_major},
          std::pair{Recipe::fp8_1x128, ScaleLayout::mn_major},
          std::pair{Recipe::fp8_1x128_ue8m0, ScaleLayout::swizzled_128x4}}) {
      for (const std::int64_t rows : {512, 4096, 32768}) {
        if (dtype != Format::bf16 && rows != 4096) continue;
        add(recipe, dtype, layout, rows, InputTransform::identity);
      }
    }
  }
  for (const auto& [rows, k] : {std::pair{4096, 14336}, std::pair{16384, 7168},
                                std::pair{16384, 16384}, std::pair{4224, 8192}}) {
    add(Recipe::fp8_1x128, Format::bf16, ScaleLayout::row_major, rows, InputTransform::identity, k);
  }
  add(Recipe::fp8_1x128_ue8m0, Format::bf16, ScaleLayout::row_major, 4096,
      InputTransform::identity);
  for (int t = 1; t < kInputTransformCount; ++t) {
    for (const std::int64_t rows : {4096, 8192}) {
      add(Recipe::fp8_1x128, Format::bf16, ScaleLayout::row_major, rows,
          static_cast<InputTransform>(t));
    }
  }
  return list;
}

nlohmann::json measure_all() {
  nlohmann::json cases = nlohmann::json::array();
  quantize_detail::Workbench workbench;
  for (const MeasuredProblem& problem : problems()) {
    cases.push_back(report(problem, measure_quantize(workbench, problem, kRepeats)));
  }
  return nlohmann::json::object({{"rows_and_columns", cases}});
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
