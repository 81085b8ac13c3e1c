#include "ops/quantize/cuda_measure.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "blockscale/bench.h"
#include "blockscale/device.h"
#include "ops/quantize/cuda_kernels.h"
#include "ops/quantize/kernels_sm90.h"
#include "runtime/kernel.h"
#include "runtime/measure.h"

namespace blockscale {
namespace quantize_detail {
namespace {

std::int64_t format_bytes(Format dtype) {
  return format_traits(dtype).bits / 8;
}

std::size_t size_of(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes);
}

/// Random normal numbers, the same in every run.
std::vector<std::uint8_t> normal_numbers(Format dtype, std::int64_t bytes) {
  const std::size_t size = size_of(format_bytes(dtype));
  std::vector<std::uint8_t> result(size_of(bytes));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i + size <= result.size(); i += size) {
    const std::uint32_t code = encode(dtype, normal(random));
    for (std::size_t j = 0; j < size; ++j) {
      result[i + j] = static_cast<std::uint8_t>(code >> (8 * j));
    }
  }
  return result;
}

runtime::KernelSpec copy_spec() {
  runtime::KernelSpec spec;
  spec.name = "quantize_yardstick_copy";
  spec.header = "ops/quantize/kernel_sm90_copy.cuh";
  spec.call = "blockscale::copy_vectors";
  spec.threads = kCopyThreads;
  return runtime::with_parameters<CopyParams>(std::move(spec), "blockscale::CopyParams");
}

/// What one call reads and writes. Buffers of different sets are cold to each other.
struct BufferSet {
  runtime::DeviceBuffer x;      // also what the copy reads
  runtime::DeviceBuffer out;    // values, then scales; also what the copy writes
  runtime::DeviceBuffer small;  // operands of the transform, tensor scale, workspace
};

class Bench {
 public:
  explicit Bench(const MeasuredProblem& problem) : problem_(problem) {
    const MeasuredProblem& m = problem;
    const std::int64_t x_columns = m.transform == InputTransform::swiglu ? 2 * m.k : m.k;
    const std::int64_t reads =
        m.scale_source == ScaleSource::dynamic &&
                (recipe_traits(m.recipe).block_rows == 0 || recipe_traits(m.recipe).tensor_scale)
            ? 2
            : 1;
    result_.input_bytes = m.rows * x_columns * format_bytes(m.dtype);
    values_ = round_up(value_bytes(m.recipe, m.rows, m.k));
    written_ = value_bytes(m.recipe, m.rows, m.k) + scale_bytes(m.recipe, m.layout, m.rows, m.k);
    result_.moved_bytes = reads * result_.input_bytes + written_;
    copied_ = round_up(result_.moved_bytes / 2);
    const std::int64_t l2 = std::max<std::int64_t>(cuda::current_device().l2_bytes, 1 << 20);
    const std::int64_t footprint = std::min(result_.input_bytes + written_, 2 * copied_);
    const std::int64_t count = std::clamp<std::int64_t>(3 * l2 / footprint + 1, 2, 128);
    allocate(count);
  }

  Measurement run(const std::vector<PlanTuning>& tunings, int repeats) {
    static const runtime::Kernel copy(copy_spec(), runtime::KernelStore::instance());
    std::vector<runtime::TimedWork> works;
    const int parts = static_cast<int>(sets_.size());
    works.push_back({[this](void* stream, int i) { launch_copy(copy, stream, i); }, parts});
    for (const PlanTuning& tuning : tunings) {
      result_.tunings.push_back({tuning, {}, {}, 0});
      try {
        prepare(result_.tunings.back(), works);
      } catch (const Error& error) {
        result_.tunings.back().failed = error.what();
      }
    }
    const std::vector<double> seconds = runtime::median_seconds(works, repeats);
    result_.copy_seconds = seconds[0];
    std::size_t next = 1;
    for (MeasuredTuning& tuning : result_.tunings) {
      if (tuning.failed.empty()) tuning.seconds = seconds[next++];
    }
    return result_;
  }

 private:
  /// The kernels of a plan, those of the list or others.
  using Kernels = std::vector<std::shared_ptr<const runtime::Kernel>>;

  static std::int64_t round_up(std::int64_t bytes) { return ceil_div(bytes, 256) * 256; }

  void allocate(std::int64_t count) {
    const MeasuredProblem& m = problem_;
    const std::int64_t piece = std::min<std::int64_t>(result_.input_bytes, 32 << 20);
    const std::vector<std::uint8_t> numbers = normal_numbers(m.dtype, piece);
    for (std::int64_t i = 0; i < count; ++i) {
      BufferSet set;
      const std::int64_t scales = scale_bytes(m.recipe, m.layout, m.rows, m.k);
      set.x = runtime::DeviceBuffer(size_of(std::max(result_.input_bytes, copied_)));
      set.out = runtime::DeviceBuffer(size_of(std::max(values_ + scales, copied_)));
      set.small = runtime::DeviceBuffer(size_of(kSmallBytes + 8 * m.k));
      for (std::int64_t at = 0; at < result_.input_bytes; at += piece) {
        set.x.copy_from_host(numbers.data(), size_of(std::min(piece, result_.input_bytes - at)),
                             size_of(at));
      }
      // 1 as a given scale, and as bf16 a small number: 1.0f is 0x3F800000.
      const std::vector<float> ones(size_of(2 * m.k) + 64, 1.0f);
      set.small.copy_from_host(ones.data(), ones.size() * sizeof(float));
      sets_.push_back(std::move(set));
    }
  }

  MatrixView x_of(const BufferSet& set) const {
    const std::int64_t columns =
        problem_.transform == InputTransform::swiglu ? 2 * problem_.k : problem_.k;
    return {set.x.data(), problem_.dtype, problem_.rows, columns};
  }

  MutableScaledTensorView out_of(const BufferSet& set) const {
    MutableScaledTensorView out;
    out.recipe = problem_.recipe;
    out.rows = problem_.rows;
    out.k = problem_.k;
    out.layout = problem_.layout;
    out.values = set.out.data();
    out.scales = set.out.data() + values_;
    if (recipe_traits(problem_.recipe).tensor_scale) {
      out.tensor_scale = reinterpret_cast<float*>(set.small.data());
    }
    return out;
  }

  QuantizeOptions options_of(const BufferSet& set) const {
    QuantizeOptions options;
    options.scale_source = problem_.scale_source;
    options.input.transform = problem_.transform;
    const MatrixView ones{set.small.data() + 256, Format::f32, 1, problem_.k};
    if (problem_.transform == InputTransform::modulate) options.input.scale = ones;
    if (problem_.transform == InputTransform::modulate) options.input.shift = ones;
    if (problem_.transform == InputTransform::rms_norm) options.input.weight = ones;
    return options;
  }

  /// Adds a work that runs the tuning's plan on every set.
  void prepare(MeasuredTuning& tuning, std::vector<runtime::TimedWork>& works) {
    auto plans = std::make_shared<std::vector<QuantizePlan>>();
    const DeviceTraits device{cuda::current_device().multiprocessors};
    for (const BufferSet& set : sets_) {
      const QuantizeOptions options = options_of(set);
      const QuantizeArguments a = validated(x_of(set), out_of(set), options);
      const std::int64_t offset = round_up(256 + 8 * problem_.k);
      plans->push_back(plan_quantize(a, options, device, set.small.data() + offset, tuning.tuning));
      if (offset + plans->back().workspace_bytes > static_cast<std::int64_t>(set.small.bytes())) {
        throw Error(ErrorCode::unsupported, "rows", "need a larger workspace than is measured");
      }
    }
    tuning.plan = plans->front().str();
    const Kernels kernels = kernels_of(plans->front());
    const auto launch = [plans, kernels](void* stream, int i) {
      const QuantizePlan& plan = (*plans)[static_cast<std::size_t>(i)];
      for (std::size_t s = 0; s < kernels.size(); ++s) {
        runtime::launch(*kernels[s], plan.steps[s].shape, stream, plan.steps[s].params);
      }
    };
    works.push_back({launch, static_cast<int>(sets_.size())});
  }

  static Kernels kernels_of(const QuantizePlan& plan) {
    static int tuned = 0;
    Kernels kernels;
    for (int i = 0; i < plan.count; ++i) {
      const QuantizePlan::Step& step = plan.steps[static_cast<std::size_t>(i)];
      if (step.config == kQuantizeKernels[step.kernel]) {
        const auto& kernel = quantize_kernels().get(static_cast<std::size_t>(step.kernel));
        kernels.push_back({std::shared_ptr<void>(), &kernel});
        continue;
      }
      auto spec = quantize_kernel_spec(
          step.config, quantize_kernel_name(step.config) + "_tuned" + std::to_string(++tuned));
      kernels.push_back(
          std::make_shared<runtime::Kernel>(std::move(spec), runtime::KernelStore::instance()));
    }
    return kernels;
  }

  void launch_copy(const runtime::Kernel& copy, void* stream, int i) const {
    const BufferSet& set = sets_[static_cast<std::size_t>(i)];
    CopyParams params{set.x.data(), set.out.data(), static_cast<std::uint64_t>(copied_) / 16};
    LaunchShape shape;
    shape.grid.x = static_cast<std::uint32_t>(
        ceil_div(static_cast<std::int64_t>(params.vectors), kCopyThreads));
    shape.block.x = kCopyThreads;
    runtime::launch(copy, shape, stream, params);
  }

  static constexpr std::int64_t kSmallBytes = 1 << 20;

  MeasuredProblem problem_;
  Measurement result_;
  std::int64_t values_ = 0;  // bytes before the scales
  std::int64_t written_ = 0;
  std::int64_t copied_ = 0;  // bytes that the copy reads, and writes
  std::vector<BufferSet> sets_;
};

}  // namespace

Measurement measure_quantize(const MeasuredProblem& problem, const std::vector<PlanTuning>& tunings,
                             int repeats) {
  return Bench(problem).run(tunings, repeats);
}

}  // namespace quantize_detail

namespace cuda {
namespace {

std::vector<ScaleLayout> layouts_of(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  std::vector<ScaleLayout> layouts = {ScaleLayout::row_major, ScaleLayout::mn_major};
  if (t.block_k == 0) layouts.pop_back();  // one column of scales: the same
  if (t.scale != Format::f32 && t.block_rows == 1) {
    layouts.push_back(ScaleLayout::swizzled_128x4);
    layouts.push_back(ScaleLayout::swizzled_8x4);
  }
  return layouts;
}

void check(const QuantizeBenchmarkOptions& options) {
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

QuantizeBenchmarkRow measured(const quantize_detail::MeasuredProblem& problem, int repeats) {
  const quantize_detail::Measurement m = measure_quantize(problem, {{}}, repeats);
  if (!m.tunings[0].failed.empty()) {
    throw Error(ErrorCode::device, "quantize", m.tunings[0].failed);
  }
  QuantizeBenchmarkRow row;
  row.recipe = problem.recipe;
  row.dtype = problem.dtype;
  row.layout = problem.layout;
  row.transform = problem.transform;
  row.rows = problem.rows;
  row.k = problem.k;
  row.input_bytes = m.input_bytes;
  row.moved_bytes = m.moved_bytes;
  row.seconds = m.tunings[0].seconds;
  row.copy_seconds = m.copy_seconds;
  row.bytes_per_second = static_cast<double>(m.moved_bytes) / row.seconds;
  row.copy_share = row.copy_seconds / row.seconds;
  return row;
}

}  // namespace

std::vector<QuantizeBenchmarkRow> benchmark_quantize(const QuantizeBenchmarkOptions& options) {
  check(options);
  std::vector<Recipe> recipes = options.recipes;
  if (recipes.empty()) {
    for (const RecipeTraits& t : kRecipes) {
      if (t.family != Family::plain) recipes.push_back(t.recipe);
    }
  }
  const auto dtypes = options.dtypes.empty() ? std::vector{Format::bf16} : options.dtypes;
  std::vector<std::int64_t> sizes = options.input_bytes;
  if (sizes.empty()) sizes = {1 << 20, 8 << 20, 64 << 20, 512 << 20};
  const auto transforms =
      options.transforms.empty() ? std::vector{InputTransform::identity} : options.transforms;
  std::vector<quantize_detail::MeasuredProblem> problems;
  for (const InputTransform transform : transforms) {
    for (const Recipe recipe : recipes) {
      for (const Format dtype : dtypes) {
        for (const ScaleLayout layout : layouts_of(recipe)) {
          const auto& wanted = options.layouts;
          if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), layout) == wanted.end()) {
            continue;
          }
          problems.push_back({recipe, dtype, layout, 0, options.k, transform});
        }
      }
    }
  }
  std::vector<QuantizeBenchmarkRow> result;
  for (quantize_detail::MeasuredProblem& problem : problems) {
    const std::int64_t columns =
        problem.transform == InputTransform::swiglu ? 2 * problem.k : problem.k;
    const std::int64_t row = columns * (format_traits(problem.dtype).bits / 8);
    for (const std::int64_t bytes : sizes) {
      problem.rows = std::max<std::int64_t>(1, bytes / row);
      result.push_back(measured(problem, options.repeats));
    }
  }
  return result;
}

}  // namespace cuda
}  // namespace blockscale
