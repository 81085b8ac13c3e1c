// What benchmarks of the CUDA quantizers write of a case.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/input_transform.h"
#include "core/recipe.h"
#include "ops/quantize/bench/cuda_measure.h"

namespace blockscale::quantize_detail {

/// A case as JSON, and as a line on standard error.
inline nlohmann::json report(const MeasuredProblem& problem, const Measurement& m) {
  const char* const recipe = recipe_traits(problem.recipe).name;
  const char* const dtype = format_traits(problem.dtype).name;
  const char* const layout = scale_layout_traits(problem.layout).name;
  const char* const input = kInputTransformNames[static_cast<int>(problem.transform)];
  const double share = m.copy_seconds / m.seconds;
  std::fprintf(stderr,
               "%-18s %-4s %-14s %-9s %6lld x %6lld %7.2f MiB %9.2f us, copy %9.2f us: %.3f\n",
               recipe, dtype, layout, input, static_cast<long long>(problem.rows),
               static_cast<long long>(problem.k), static_cast<double>(m.input_bytes) / (1 << 20),
               m.seconds * 1e6, m.copy_seconds * 1e6, share);
  return {{"recipe", recipe},
          {"dtype", dtype},
          {"layout", layout},
          {"input", input},
          {"rows", problem.rows},
          {"k", problem.k},
          {"plan", m.plan},
          {"input_bytes", m.input_bytes},
          {"moved_bytes", m.moved_bytes},
          {"microseconds", m.seconds * 1e6},
          {"copy_microseconds", m.copy_seconds * 1e6},
          {"dependent_copy_microseconds", m.dependent_copy_seconds * 1e6},
          {"terabytes_per_second", static_cast<double>(m.moved_bytes) / m.seconds * 1e-12},
          {"copy_share", share},
          {"behind_producer", problem.behind_producer},
          {"scales_given", problem.scale_source == ScaleSource::given},
          {"columns_too", problem.columns_too}};
}

}  // namespace blockscale::quantize_detail
