// The rate of cuda::quantize_rows_and_columns next to a copy kernel that moves as many bytes, as
// one JSON object. Without a GPU it exits with 77. With `tune` as its argument it compares ways of
// launching it, which NVRTC compiles as it runs. (rms_norm reads x twice, which counts once.)
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "ops/quantize/cuda_measure.h"
#include "ops/quantize/cuda_measure_report.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

constexpr int kRepeats = 20;

using quantize_detail::Choice;
using quantize_detail::MeasuredProblem;
using quantize_detail::PlanTuning;

/// The listed kernel, and with `tune` others: columns a thread, threads, thread blocks that fit.
std::vector<PlanTuning> tunings_of(const MeasuredProblem& problem, bool tune) {
  std::vector<PlanTuning> tunings = {{}};
  if (!tune) return tunings;
  const auto add = [&](int chunk, int threads, int min_blocks) {
    PlanTuning tuning;
    tuning.chunk = chunk;
    tuning.threads = threads;
    tuning.min_blocks = min_blocks;
    tuning.large = Choice::always;
    tunings.push_back(tuning);
  };
  if (problem.dtype == Format::f32) {
    add(16, 256, 2);
    return tunings;
  }
  add(8, 128, 4);
  add(8, 256, 3);
  add(16, 256, 2);
  add(16, 256, 3);
  return tunings;
}

void measure(quantize_detail::Workbench& workbench, const MeasuredProblem& problem, bool tune,
             nlohmann::json& cases) {
  const quantize_detail::Measurement m =
      measure_quantize(workbench, problem, tunings_of(problem, tune), kRepeats);
  for (const quantize_detail::MeasuredTuning& result : m.tunings) {
    if (tune) {
      std::fprintf(stderr, "%d columns, %d threads x %d: ", result.tuning.chunk,
                   result.tuning.threads, result.tuning.min_blocks);
    }
    cases.push_back(report(problem, m, result));
  }
}

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

nlohmann::json measure_all(bool tune) {
  nlohmann::json cases = nlohmann::json::array();
  if (tune) {
    std::vector<std::vector<PlanTuning>> tunings;
    for (const MeasuredProblem& problem : problems()) tunings.push_back(tunings_of(problem, tune));
    quantize_detail::compile_tunings(problems(), tunings);
  }
  quantize_detail::Workbench workbench;
  for (const MeasuredProblem& problem : problems()) measure(workbench, problem, tune, cases);
  return nlohmann::json::object({{"rows_and_columns", cases}});
}

}  // namespace
}  // namespace blockscale

int main(int argc, char** argv) {
  const bool tune = argc > 1 && std::string_view(argv[1]) == "tune";
  return blockscale::test::gpu_benchmark_main([&] { return blockscale::measure_all(tune); });
}
