#include "ops/quantize/bench/cuda_measure.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "ops/quantize/bench/copy.cuh"
#include "ops/quantize/cuda/kernel_sets.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"
#include "ops/quantize/cuda/tiles.h"
#include "runtime/cuda/measure.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::quantize_detail {
namespace {

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

/// The copy's kernel, for all chips that are measured.
runtime::KernelSet& copy_kernels() {
  const auto spec = runtime::with_parameters<CopyParams>({.name = "quantize_yardstick_copy",
                                                          .header = "ops/quantize/bench/copy.cuh",
                                                          .call = "blockscale::copy_vectors",
                                                          .threads = kCopyThreads},
                                                         "blockscale::CopyParams");
  static auto& kernels =
      *new runtime::KernelSet(runtime::for_architectures({spec}, kQuantizeArchitectures));
  return kernels;
}

/// What one call reads and writes, but for its workspace, which is that of all calls, as a stream
/// has one. Those of different sets are cold to each other.
struct BufferSet {
  std::byte* x;    // also what the copy reads
  std::byte* out;  // values, then scales; also what the copy writes
  std::byte* tensor_scale;
};

/// What is fused, with operands that begin at `ones`.
QuantizeInput input_of(const MeasuredProblem& m, const std::byte* ones) {
  // As wide as x; where that is 16 bits wide, zeros alternate with numbers near 1.
  const MatrixView operand{ones, m.dtype, 1, m.k};
  return quantize_detail::input_of(m.transform, operand, operand, operand);
}

QuantizeOptions options_of(const MeasuredProblem& m, const std::byte* ones) {
  QuantizeOptions options;
  options.scale_source = m.scale_source;
  options.input = input_of(m, ones);
  return options;
}

MutableScaledTensorView output_of(const MeasuredProblem& m, std::byte* values, std::byte* scales,
                                  std::byte* tensor_scale) {
  MutableScaledTensorView out;
  out.recipe = m.recipe;
  out.rows = m.rows;
  out.k = m.k;
  out.layout = m.layout;
  out.values = values;
  out.scales = scales;
  if (recipe_traits(m.recipe).tensor_scale) {
    out.tensor_scale = reinterpret_cast<float*>(tensor_scale);
  }
  return out;
}

/// The same of columns, as quantize_rows_and_columns writes them.
MutableScaledTensorView columns_of(const MeasuredProblem& m, std::byte* values, std::byte* scales) {
  MutableScaledTensorView out = output_of(m, values, scales, nullptr);
  std::swap(out.rows, out.k);
  return out;
}

class Bench {
 public:
  Bench(Workbench& workbench, const MeasuredProblem& problem)
      : problem_(problem), device_(workbench.device()), stream_(workbench.stream()) {
    const MeasuredProblem& m = problem;
    const bool twice =
        m.scale_source == ScaleSource::dynamic && has_tensor_wide_scale(recipe_traits(m.recipe));
    const std::int64_t reads = twice ? 2 : 1;
    const std::int64_t scales = scale_bytes(m.recipe, m.layout, m.rows, m.k);
    result_.input_bytes = m.rows * x_columns() * format_bytes(m.dtype);
    values_ = round_up(value_bytes(m.recipe, m.rows, m.k));
    std::int64_t written = value_bytes(m.recipe, m.rows, m.k) + scales;
    std::int64_t out_bytes = values_ + scales;
    if (m.columns_too) {
      columns_ = round_up(out_bytes);
      const std::int64_t column_scales = scale_bytes(m.recipe, m.layout, m.k, m.rows);
      written += value_bytes(m.recipe, m.k, m.rows) + column_scales;
      column_scales_ = columns_ + round_up(value_bytes(m.recipe, m.k, m.rows));
      out_bytes = column_scales_ + column_scales;
    }
    result_.moved_bytes = reads * result_.input_bytes + written;
    copied_ = round_up(result_.moved_bytes / 2);
    constexpr auto kMost = static_cast<std::int64_t>(Workbench::kOnes);
    const bool has_operands =
        m.transform == InputTransform::modulate || m.transform == InputTransform::rms_norm;
    if (has_operands && m.k > kMost) {
      throw Error(ErrorCode::unsupported, "options.k",
                  "is " + std::to_string(m.k) + "; with operands at most " + std::to_string(kMost) +
                      " are measured");
    }
    make_sets(workbench, std::max(result_.input_bytes, copied_), std::max(out_bytes, copied_));
  }

  Measurement run(int repeats) {
    const runtime::Kernel& copy = copy_kernels().get(0, device_.architecture);
    std::vector<runtime::TimedWork> works;
    for (const bool dependent : {false, true}) {
      const auto launch = [this, dependent, &copy](void* stream, int part) {
        launch_copy(copy, dependent, stream, part);
      };
      works.push_back({launch, parts()});
    }
    works.push_back(problem_.columns_too ? rows_and_columns_work() : quantize_work());
    if (problem_.behind_producer) put_behind_producer(copy, works);
    const std::vector<double> seconds = runtime::median_seconds(stream_, works, repeats);
    result_.copy_seconds = seconds[0];
    result_.dependent_copy_seconds = seconds[1];
    result_.seconds = seconds[2] - (problem_.behind_producer ? seconds[3] : 0);
    return result_;
  }

 private:
  /// Of a graph, so that its launch counts little, and so do lines that the graph before wrote and
  /// left for this one to write back.
  static constexpr int kLeastParts = 100;
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{8} << 20;

  static std::int64_t round_up(std::int64_t bytes) { return ceil_div(bytes, 256) * 256; }
  std::int64_t x_columns() const { return x_columns_of(problem_); }
  int parts() const { return std::max(kLeastParts, static_cast<int>(sets_.size())); }
  const BufferSet& set_of(int part) const {
    return sets_[static_cast<std::size_t>(part) % sets_.size()];
  }

  /// As many sets as are together larger than three times the level-2 cache.
  void make_sets(Workbench& workbench, std::int64_t x_bytes, std::int64_t out_bytes) {
    x_bytes = round_up(x_bytes);
    out_bytes = round_up(out_bytes);
    const std::int64_t l2 = std::max<std::int64_t>(device_.l2_bytes, 1 << 20);
    const std::int64_t touched = std::min(result_.moved_bytes, 2 * copied_);
    const std::int64_t count = std::clamp<std::int64_t>(3 * l2 / touched + 1, 2, 160);
    std::byte* const numbers = workbench.numbers(problem_.dtype, count * x_bytes);
    const std::int64_t set_bytes = out_bytes + round_up(sizeof(float));
    workspace_ = workbench.results(kWorkspaceBytes + count * set_bytes);
    ones_ = workbench.ones();
    for (std::int64_t i = 0; i < count; ++i) {
      std::byte* const out = workspace_ + kWorkspaceBytes + i * set_bytes;
      sets_.push_back({numbers + i * x_bytes, out, out + out_bytes});
    }
  }

  MutableScaledTensorView out_of(const BufferSet& set) const {
    const bool given = problem_.scale_source == ScaleSource::given;
    std::byte* const one = ones_ + Workbench::kOnes * sizeof(float);
    return output_of(problem_, set.out, set.out + values_, given ? one : set.tensor_scale);
  }

  static void check_workspace(std::int64_t bytes) {
    if (bytes <= kWorkspaceBytes) return;
    throw Error(ErrorCode::unsupported, "rows", "need a larger workspace than is measured");
  }

  /// A work that runs the plan on every set.
  runtime::TimedWork quantize_work() {
    auto plans = std::make_shared<std::vector<QuantizePlan>>();
    const QuantizeOptions o = options_of(problem_, ones_);
    for (const BufferSet& set : sets_) {
      const MatrixView x{set.x, problem_.dtype, problem_.rows, x_columns()};
      plans->push_back(plan_quantize(validated(x, out_of(set), o), o, device_, workspace_));
      check_workspace(plans->back().workspace_bytes);
    }
    result_.plan = plans->front().str();
    const auto launch = [plans](void* stream, int part) {
      launch_steps((*plans)[static_cast<std::size_t>(part) % plans->size()], {stream});
    };
    return {launch, parts()};
  }

  /// The same for both results.
  runtime::TimedWork rows_and_columns_work() {
    auto plans = std::make_shared<std::vector<RowsAndColumnsPlan>>();
    const QuantizeOptions o = options_of(problem_, ones_);
    for (const BufferSet& set : sets_) {
      const MatrixView x{set.x, problem_.dtype, problem_.rows, x_columns()};
      const auto columns = columns_of(problem_, set.out + columns_, set.out + column_scales_);
      plans->push_back(
          plan_rows_and_columns(validated(x, out_of(set), columns, o), o, device_, workspace_));
      check_workspace(plans->back().workspace_bytes);
    }
    result_.plan = plans->front().str();
    const auto launch = [plans](void* stream, int part) {
      launch_plan((*plans)[static_cast<std::size_t>(part) % plans->size()], {stream});
    };
    return {launch, parts()};
  }

  /// Lets the work behind the copies follow a producer of its x, and adds the producer alone.
  void put_behind_producer(const runtime::Kernel& copy,
                           std::vector<runtime::TimedWork>& works) const {
    const auto produce = [this, &copy](void* stream, int part) {
      // From the x of the next set, which is as good.
      const CopyParams params{set_of(part + 1).x, set_of(part).x,
                              static_cast<std::uint64_t>(result_.input_bytes) / 16};
      launch_copy_of(copy, params, false, stream);
    };
    works[2].launch = [produce, call = std::move(works[2].launch)](void* stream, int part) {
      produce(stream, part);
      call(stream, part);
    };
    works.push_back({produce, parts()});
  }

  /// `dependent`: with programmatic dependent launch, as our kernels are launched.
  void launch_copy(const runtime::Kernel& copy, bool dependent, void* stream, int part) const {
    const BufferSet& set = set_of(part);
    launch_copy_of(copy, {set.x, set.out, static_cast<std::uint64_t>(copied_) / 16}, dependent,
                   stream);
  }

  static void launch_copy_of(const runtime::Kernel& copy, const CopyParams& params, bool dependent,
                             void* stream) {
    LaunchShape shape;
    shape.grid.x = static_cast<std::uint32_t>(
        ceil_div(static_cast<std::int64_t>(params.vectors), kCopyThreads));
    shape.block.x = kCopyThreads;
    shape.programmatic_dependent_launch = dependent;
    runtime::launch(copy, shape, stream, params);
  }

  MeasuredProblem problem_;
  const cuda::DeviceTraits& device_;
  const runtime::DeviceStream& stream_;
  Measurement result_;
  std::int64_t values_ = 0;         // bytes before the scales
  std::int64_t columns_ = 0;        // bytes before the values of the transpose
  std::int64_t column_scales_ = 0;  // and before its scales
  std::int64_t copied_ = 0;         // bytes that the copy reads, and writes
  std::byte* workspace_ = nullptr;
  std::byte* ones_ = nullptr;
  std::vector<BufferSet> sets_;
};

}  // namespace

std::byte* Workbench::numbers(Format dtype, std::int64_t bytes) {
  const bool fits = static_cast<std::int64_t>(numbers_.bytes()) >= bytes;
  if (fits && dtype == dtype_) return numbers_.data();
  if (!fits) {
    numbers_ = {};
    numbers_ = runtime::DeviceBuffer(size_of(bytes));
  }
  const std::vector<std::uint8_t> some = normal_numbers(dtype, kPiece);
  for (std::size_t at = 0; at < numbers_.bytes(); at += some.size()) {
    numbers_.copy_from_host(some.data(), std::min(some.size(), numbers_.bytes() - at), at);
  }
  dtype_ = dtype;
  return numbers_.data();
}

std::byte* Workbench::results(std::int64_t bytes) {
  if (static_cast<std::int64_t>(results_.bytes()) < bytes) {
    results_ = {};
    results_ = runtime::DeviceBuffer(size_of(bytes));
    results_.fill(0);
  }
  return results_.data();
}

std::byte* Workbench::ones() {
  if (ones_.bytes() == 0) {
    const std::vector<float> values(kOnes + 1, 1.0f);
    ones_ = runtime::DeviceBuffer(values.size() * sizeof(float));
    ones_.copy_from_host(values.data(), values.size() * sizeof(float));
  }
  return ones_.data();
}

std::int64_t x_columns_of(const MeasuredProblem& m) {
  return m.transform == InputTransform::swiglu ? 2 * m.k : m.k;
}

std::string describe(const MeasuredProblem& problem, const cuda::Chip& chip) {
  // No two overlap, and nobody reads them.
  const auto somewhere = [](std::uintptr_t i) { return reinterpret_cast<std::byte*>(i << 40); };
  const MatrixView x{somewhere(1), problem.dtype, problem.rows, x_columns_of(problem)};
  const auto out = output_of(problem, somewhere(2), somewhere(3), somewhere(4));
  return cuda::describe_quantize(x, out, options_of(problem, somewhere(5)), chip);
}

Measurement measure_quantize(Workbench& workbench, const MeasuredProblem& problem, int repeats) {
  const cuda::DeviceScope scope(workbench.device().ordinal);
  return Bench(workbench, problem).run(repeats);
}

std::vector<ScaleLayout> measured_layouts(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  std::vector<ScaleLayout> layouts = {ScaleLayout::row_major, ScaleLayout::mn_major};
  if (t.block_k == 0) layouts.pop_back();  // one column of scales: the same
  if (has_swizzled_scales(t)) {
    layouts.push_back(ScaleLayout::swizzled_128x4);
    layouts.push_back(ScaleLayout::swizzled_8x4);
  }
  return layouts;
}

}  // namespace blockscale::quantize_detail
