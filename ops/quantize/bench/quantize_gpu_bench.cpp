// What is asked of the CUDA quantizers, next to a copy kernel that moves as many bytes: one JSON
// object with every case and its limit; on standard error a line each, and the cases that miss
// theirs. Without a GPU it exits with 77.
//
//   line     inputs                                            from 64 MiB     below
//   unfused  kAsked, bf16 and f16, every layout                copy / 0.90     1.2 copy + 1.5 us
//   fused    kAsked x kAskedInputs, bf16, the usual layouts    copy / 0.80     1.2 copy + 2 us
//   rest     every other recipe, input and layout              2 copy + 3 us   2 copy + 3 us
//
// Fused inputs below 64 MiB stand behind an ordinary kernel that writes x, as in a model. Rows and
// columns are a part of the rest; what rms_norm reads twice for them counts once.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/bench/cuda_measure.h"
#include "ops/quantize/bench/cuda_measure_report.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using quantize_detail::MeasuredProblem;
using quantize_detail::Measurement;
using quantize_detail::Workbench;

constexpr std::int64_t kKibi = 1 << 10;
constexpr std::int64_t kMebi = 1 << 20;
constexpr std::int64_t kLarge = 64 * kMebi;
constexpr std::int64_t kColumns = 8192;
constexpr int kRepeats = 20;

constexpr Recipe kAsked[] = {Recipe::fp8_1x128, Recipe::fp8_row, Recipe::mxfp8_e4m3, Recipe::mxfp4,
                             Recipe::nvfp4};
constexpr InputTransform kAskedInputs[] = {InputTransform::swiglu, InputTransform::rms_norm,
                                           InputTransform::gelu_tanh, InputTransform::modulate};

/// What a call may take: share of the copy's rate, and the same as a multiple and microseconds.
struct Line {
  const char* name;
  double share;
  double multiple, microseconds;

  double allowed(double copy, std::int64_t input_bytes) const {
    if (share > 0 && input_bytes >= kLarge) return copy / share;
    return multiple * copy + microseconds * 1e-6;
  }
};
constexpr Line kUnfused = {"unfused", 0.90, 1.2, 1.5};
constexpr Line kFused = {"fused", 0.80, 1.2, 2.0};
constexpr Line kRest = {"rest", 0, 2.0, 3.0};

class Report {
 public:
  /// Measures a problem of x with so many bytes.
  void add(const Line& line, MeasuredProblem problem, std::int64_t input_bytes) {
    const std::int64_t row = x_columns_of(problem) * (format_traits(problem.dtype).bits / 8);
    if (row > input_bytes) problem.k = problem.k * input_bytes / row;
    problem.rows = std::max<std::int64_t>(1, input_bytes / row);
    problem.behind_producer = line.name == kFused.name && input_bytes < kLarge;
    const Measurement m = measure_quantize(workbench_, problem, kRepeats);
    const double allowed = line.allowed(m.copy_seconds, m.input_bytes);
    nlohmann::json entry = report(problem, m);
    entry["line"] = line.name;
    entry["allowed_microseconds"] = allowed * 1e6;
    entry["holds"] = m.seconds <= allowed;
    if (m.seconds > allowed) {
      const std::string tensor_scale = problem.scale_source == ScaleSource::given ? " given" : "";
      missed_.push_back(
          entry["recipe"].get<std::string>() + tensor_scale + " " +
          entry["dtype"].get<std::string>() + " " + entry["layout"].get<std::string>() + " " +
          entry["input"].get<std::string>() + " " + std::to_string(m.input_bytes >> 10) + " KiB: " +
          std::to_string(m.seconds * 1e6) + " us, allowed " + std::to_string(allowed * 1e6));
    }
    cases_.push_back(entry);
  }

  nlohmann::json finish() {
    for (const std::string& miss : missed_) std::fprintf(stderr, "MISS %s\n", miss.c_str());
    std::fprintf(stderr, "%zu cases, %zu miss their limit\n", cases_.size(), missed_.size());
    return {{"cases", cases_}, {"missed", missed_}};
  }

  Workbench& workbench() { return workbench_; }

 private:
  // One for all: streams that come later can take 0.3 us more a launch (docs/log).
  Workbench workbench_;
  nlohmann::json cases_ = nlohmann::json::array();
  std::vector<std::string> missed_;
};

/// The layout that engines use.
ScaleLayout usual_layout(Recipe recipe) {
  if (recipe == Recipe::fp8_1x128) return ScaleLayout::mn_major;
  return has_swizzled_scales(recipe_traits(recipe)) ? ScaleLayout::swizzled_128x4
                                                    : ScaleLayout::row_major;
}

void measure_unfused(Report& report, bool quick) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    for (const Recipe recipe : kAsked) {
      for (const ScaleSource source : {ScaleSource::dynamic, ScaleSource::given}) {
        if (source == ScaleSource::given && recipe != Recipe::nvfp4) continue;
        for (const ScaleLayout layout : quantize_detail::measured_layouts(recipe)) {
          if (quick && (dtype == Format::f16 || layout == ScaleLayout::swizzled_8x4)) continue;
          for (const std::int64_t bytes :
               {8 * kKibi, 256 * kKibi, kMebi, 4 * kMebi, 16 * kMebi, kLarge, 512 * kMebi}) {
            if (quick && (bytes == 512 * kMebi || bytes == 256 * kKibi)) continue;
            MeasuredProblem problem{recipe, dtype, layout, 0, kColumns};
            problem.scale_source = source;
            report.add(kUnfused, problem, bytes);
          }
        }
      }
    }
  }
}

void measure_fused(Report& report, bool quick) {
  for (const InputTransform transform : kAskedInputs) {
    for (const Recipe recipe : kAsked) {
      for (const ScaleSource source : {ScaleSource::dynamic, ScaleSource::given}) {
        if (source == ScaleSource::given && recipe != Recipe::nvfp4) continue;
        for (const bool usual : {false, true}) {
          const ScaleLayout layout = usual ? usual_layout(recipe) : ScaleLayout::row_major;
          if (usual && layout == ScaleLayout::row_major) continue;
          for (const std::int64_t bytes : {8 * kKibi, 64 * kKibi, 512 * kKibi, 2 * kMebi, 8 * kMebi,
                                           16 * kMebi, kLarge, 256 * kMebi}) {
            if (quick && (bytes == 256 * kMebi || bytes == 64 * kKibi || bytes == 2 * kMebi)) {
              continue;
            }
            MeasuredProblem problem{recipe, Format::bf16, layout, 0, kColumns, transform};
            problem.scale_source = source;
            report.add(kFused, problem, bytes);
          }
        }
      }
    }
  }
}

/// One layout and three sizes of what nobody asks more of.
void measure_rest(Report& report) {
  const auto is_asked = [](Recipe recipe, Format dtype, InputTransform transform) {
    const bool recipe_is =
        std::find(std::begin(kAsked), std::end(kAsked), recipe) != std::end(kAsked);
    if (transform == InputTransform::identity) return recipe_is && dtype != Format::f32;
    const bool input_is =
        transform != InputTransform::gelu_erf && transform != InputTransform::silu;
    return recipe_is && input_is && dtype == Format::bf16;
  };
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (int t = 0; t < kInputTransformCount; ++t) {
      const auto transform = static_cast<InputTransform>(t);
      for (const Recipe recipe :
           {Recipe::mxfp4, Recipe::mxfp6_e2m3, Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3,
            Recipe::mxfp8_e5m2, Recipe::nvfp4, Recipe::fp8_1x128, Recipe::fp8_128x128,
            Recipe::fp8_32x128, Recipe::fp8_row, Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2}) {
        if (is_asked(recipe, dtype, transform)) continue;
        for (const std::int64_t bytes : {256 * kKibi, 8 * kMebi, kLarge}) {
          report.add(kRest, {recipe, dtype, ScaleLayout::row_major, 0, kColumns, transform}, bytes);
        }
      }
      MeasuredProblem both{Recipe::fp8_1x128, dtype,    ScaleLayout::row_major, 0,
                           kColumns,          transform};
      both.columns_too = true;
      for (const std::int64_t bytes : {8 * kMebi, kLarge}) report.add(kRest, both, bytes);
    }
  }
}

/// The process's first calls, with the pack: nvfp4, whose scale is computed, which takes two
/// kernels.
nlohmann::json first_calls(Workbench& workbench) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kWorkspaceBytes = 4096;
  const std::byte* const x = workbench.numbers(Format::bf16, kRows * kColumns * 2);
  std::byte* const results = workbench.results(kRows * kColumns);
  MutableScaledTensorView out;
  out.recipe = Recipe::nvfp4;
  out.rows = kRows;
  out.k = kColumns;
  out.tensor_scale = reinterpret_cast<float*>(results);
  out.scales = results + 256 + kWorkspaceBytes;
  out.values = results + kRows * kColumns / 2;
  const auto milliseconds_of_call = [&] {
    const auto start = std::chrono::steady_clock::now();
    cuda::quantize({x, Format::bf16, kRows, kColumns}, out, {},
                   {workbench.stream().handle(), results + 256, kWorkspaceBytes});
    workbench.stream().wait();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const double first = milliseconds_of_call();
  const double second = milliseconds_of_call();
  std::fprintf(stderr, "first call of the process %.2f ms, second %.3f ms\n", first, second);
  return {{"first_call_ms", first}, {"second_call_ms", second}};
}

nlohmann::json measure_all() {
  const bool quick = std::getenv("BLOCKSCALE_BENCH_QUICK") != nullptr;
  Report report;
  const nlohmann::json first = first_calls(report.workbench());
  measure_unfused(report, quick);
  measure_fused(report, quick);
  if (!quick) measure_rest(report);
  nlohmann::json result = report.finish();
  result["first_calls"] = first;
  return result;
}

}  // namespace
}  // namespace blockscale

int main() {
  return blockscale::test::gpu_benchmark_main(blockscale::measure_all);
}
