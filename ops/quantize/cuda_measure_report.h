// What benchmarks of the CUDA quantisers write of a case.
#pragma once

#include <nlohmann/json.hpp>

#include "core/input_transform.h"
#include "core/recipe.h"
#include "ops/quantize/cuda_measure.h"

namespace blockscale::quantize_detail {

/// What is the same for all tunings of a problem.
inline nlohmann::json names_of(const MeasuredProblem& problem) {
  return {{"recipe", recipe_traits(problem.recipe).name},
          {"dtype", format_traits(problem.dtype).name},
          {"layout", scale_layout_traits(problem.layout).name},
          {"input", kInputTransformNames[static_cast<int>(problem.transform)]},
          {"rows", problem.rows},
          {"k", problem.k}};
}

/// A case as JSON. Throws what went wrong with the tuning, if something did.
inline nlohmann::json report_of(const MeasuredProblem& problem, const Measurement& m,
                                const MeasuredTuning& tuning) {
  if (tuning.failed) throw Error(*tuning.failed);
  nlohmann::json report = names_of(problem);
  report["plan"] = tuning.plan;
  report["input_bytes"] = m.input_bytes;
  report["moved_bytes"] = m.moved_bytes;
  report["microseconds"] = tuning.seconds * 1e6;
  report["copy_microseconds"] = m.copy_seconds * 1e6;
  report["dependent_copy_microseconds"] = m.dependent_copy_seconds * 1e6;
  report["terabytes_per_second"] = static_cast<double>(m.moved_bytes) / tuning.seconds * 1e-12;
  report["copy_share"] = m.copy_seconds / tuning.seconds;
  return report;
}

}  // namespace blockscale::quantize_detail
