// Times of the CUDA quantizers next to a copy kernel, for benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/device.h"
#include "blockscale/quantize.h"
#include "ops/quantize/cuda/plan.h"
#include "runtime/cuda/measure.h"

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

struct Measurement {
  std::int64_t input_bytes = 0;
  std::int64_t moved_bytes = 0;       // the input, twice for the scale of a whole tensor, and all
                                      // that is written
  double copy_seconds = 0;            // of a copy that moves as many
  double dependent_copy_seconds = 0;  // of the same, which starts as early as our kernels may
  double seconds = 0;                 // of the call
  std::string plan;                   // as QuantizePlan::str
};

/// Memory and a stream of the device that is current when it is made, which measurements share: the
/// memory is allocated and filled once.
class Workbench {
 public:
  /// Memory of random numbers of `dtype`.
  std::byte* numbers(Format dtype, std::int64_t bytes);
  /// Memory that is written.
  std::byte* results(std::int64_t bytes);
  /// kOnes floats of 1, operands of transforms, and one more, a given tensor scale.
  std::byte* ones();
  static constexpr std::size_t kOnes = std::size_t{1} << 20;

  const cuda::DeviceTraits& device() const { return device_; }
  const runtime::DeviceStream& stream() const { return stream_; }

 private:
  static constexpr std::int64_t kPiece = std::int64_t{8} << 20;
  const cuda::DeviceTraits& device_ = cuda::current_device();
  runtime::DeviceStream stream_;
  runtime::DeviceBuffer numbers_, results_, ones_;
  Format dtype_ = Format::e2m1;  // of the numbers; none of the inputs' at first
};

/// The problems that options of a benchmark ask for, of x of so many bytes each. Throws
/// invalid_argument for options that are not allowed.
std::vector<MeasuredProblem> measured_problems(const cuda::QuantizeBenchmarkOptions& options);

/// The scale layouts of a recipe that differ in memory.
std::vector<ScaleLayout> measured_layouts(Recipe recipe);

/// The plan of a problem, whose memory would begin at multiples of 2^40.
std::string describe(const MeasuredProblem& problem, const cuda::Chip& chip);

/// Times a problem, and a copy, in turns on cold buffers of the workbench's device.
Measurement measure_quantize(Workbench& workbench, const MeasuredProblem& problem, int repeats);

}  // namespace blockscale::quantize_detail
