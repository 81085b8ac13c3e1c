// Times of the CUDA quantisers next to a copy kernel, for benchmarks and tuning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/quantize.h"
#include "ops/quantize/cuda_plan.h"

namespace blockscale::quantize_detail {

struct MeasuredProblem {
  Recipe recipe = Recipe::mxfp4;
  Format dtype = Format::bf16;
  ScaleLayout layout = ScaleLayout::row_major;
  std::int64_t rows = 0;
  std::int64_t k = 0;  // of the result
  InputTransform transform = InputTransform::identity;
  ScaleSource scale_source = ScaleSource::dynamic;
  bool columns_too = false;  // quantize_rows_and_columns
  /// Each call follows an ordinary kernel that writes x, as a producer does: it lets nobody start
  /// early, and leaves x in level 2 as far as that holds it. Its own time is taken off.
  bool behind_producer = false;
};

/// Columns of its x.
std::int64_t x_columns_of(const MeasuredProblem& problem);

/// How one way of doing it fared.
struct MeasuredTuning {
  PlanTuning tuning;
  std::string plan;             // as QuantizePlan::str
  std::optional<Error> failed;  // why there is no time
  double seconds = 0;
};

struct Measurement {
  std::int64_t input_bytes = 0;
  std::int64_t moved_bytes = 0;       // the input as often as it is read, and all that is written
  double copy_seconds = 0;            // of a copy that moves as many
  double dependent_copy_seconds = 0;  // of the same, which starts as early as our kernels may
  std::vector<MeasuredTuning> tunings;
};

/// The scale layouts of a recipe that differ in memory.
std::vector<ScaleLayout> measured_layouts(Recipe recipe);

/// Compiles the kernels of all tunings of these problems that are not in the list, on all of the
/// machine's threads.
void compile_tunings(const std::vector<MeasuredProblem>& problems,
                     const std::vector<std::vector<PlanTuning>>& tunings);

/// Times each tuning of a problem, and a copy, in turns on cold buffers of the current device.
Measurement measure_quantize(const MeasuredProblem& problem, const std::vector<PlanTuning>& tunings,
                             int repeats);

}  // namespace blockscale::quantize_detail
