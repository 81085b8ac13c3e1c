// benchmark_quantize on CUDA devices.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/error.h"
#include "ops/quantize/bench/cases.h"
#include "ops/quantize/bench/cuda_measure.h"
#include "ops/quantize/cuda/tiles.h"

namespace blockscale {
namespace quantize_detail {
namespace {

void check(const cuda::QuantizeBenchmarkOptions& options) {
  const auto fail = [](const char* argument, std::int64_t value, const char* allowed) {
    throw Error(ErrorCode::invalid_argument, argument,
                "is " + std::to_string(value) + ", must be " + allowed);
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 36;
  for (const std::int64_t bytes : options.input_bytes) {
    if (bytes < 1 || bytes > kMost) fail("options.input_bytes", bytes, "in 1..2^36");
  }
  if (options.k < 1 || options.k >= 1 << 30) fail("options.k", options.k, "in 1..2^30-1");
  if (options.repeats < 1) fail("options.repeats", options.repeats, "at least 1");
}

}  // namespace

std::vector<MeasuredProblem> measured_problems(const cuda::QuantizeBenchmarkOptions& options) {
  check(options);
  const std::vector<Recipe> recipes = measured_recipes(options.recipes);
  const std::vector<Format> dtypes = measured_dtypes(options.dtypes);
  const std::vector<ScaleLayout>& layouts = options.layouts;
  std::vector<std::int64_t> sizes = options.input_bytes;
  if (sizes.empty()) sizes = {1 << 20, 8 << 20, 64 << 20, 512 << 20};
  std::vector<MeasuredProblem> problems;
  for (const InputTransform transform : measured_transforms(options.transforms)) {
    for (const Recipe recipe : recipes) {
      for (const Format dtype : dtypes) {
        for (const ScaleLayout layout : layouts.empty() ? measured_layouts(recipe) : layouts) {
          if (is_swizzled(layout) && !has_swizzled_scales(recipe_traits(recipe))) continue;
          MeasuredProblem problem{recipe, dtype, layout, 0, options.k, transform};
          const std::int64_t row = x_columns_of(problem) * format_bytes(dtype);
          for (const std::int64_t bytes : sizes) {
            problem.rows = std::max<std::int64_t>(1, bytes / row);
            problems.push_back(problem);
          }
        }
      }
    }
  }
  return problems;
}

}  // namespace quantize_detail

namespace cuda {
namespace {

QuantizeBenchmarkCase case_of(const quantize_detail::MeasuredProblem& p) {
  return {p.recipe, p.dtype, p.layout, p.transform, p.rows, p.k};
}

QuantizeBenchmarkRow measured(quantize_detail::Workbench& workbench,
                              const quantize_detail::MeasuredProblem& problem, int repeats) {
  const quantize_detail::Measurement m = measure_quantize(workbench, problem, repeats);
  QuantizeBenchmarkRow row{case_of(problem)};
  row.input_bytes = m.input_bytes;
  row.moved_bytes = m.moved_bytes;
  row.seconds = m.seconds;
  row.copy_seconds = m.copy_seconds;
  row.dependent_copy_seconds = m.dependent_copy_seconds;
  row.bytes_per_second = static_cast<double>(m.moved_bytes) / row.seconds;
  row.copy_share = row.copy_seconds / row.seconds;
  return row;
}

}  // namespace

std::vector<QuantizeBenchmarkPlan> describe_benchmark(const QuantizeBenchmarkOptions& options,
                                                      const Chip& chip) {
  std::vector<QuantizeBenchmarkPlan> result;
  for (const quantize_detail::MeasuredProblem& p : quantize_detail::measured_problems(options)) {
    result.push_back({case_of(p), quantize_detail::describe(p, chip)});
  }
  return result;
}

std::vector<QuantizeBenchmarkRow> benchmark_quantize(const QuantizeBenchmarkOptions& options) {
  const auto problems = quantize_detail::measured_problems(options);
  quantize_detail::Workbench workbench;
  std::vector<QuantizeBenchmarkRow> result;
  for (const quantize_detail::MeasuredProblem& problem : problems) {
    result.push_back(measured(workbench, problem, options.repeats));
  }
  return result;
}

}  // namespace cuda
}  // namespace blockscale
