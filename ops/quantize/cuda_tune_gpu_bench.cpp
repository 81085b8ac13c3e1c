// Compares ways of launching the CUDA quantisers on this machine's GPU: the tuning of
// ops/quantize/kernels_sm90.h rests on what it prints. Kernels that are not in the list are
// compiled by NVRTC as it runs.
//
//   ops_quantize_cuda_tune_gpu_bench [RECIPE | INPUT | computed | behind]...
//
// Names of inputs (gelu_tanh, swiglu) ask for the kernels that these are fused with instead,
// `computed` for nvfp4 and fp8_tensor with scales that are computed, from 1 to 512 MiB. `behind`:
// each call behind an ordinary kernel that writes its x, whose time is taken off. Prints one JSON
// object to standard output, and to standard error a line for each variant, the best first: its
// share of the rate of a copy kernel that moves as many bytes, in turns with which it was timed.
// Without a GPU it exits with 77.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "ops/quantize/cuda_measure.h"
#include "tests/gpu_benchmark.h"

namespace blockscale {
namespace {

using quantize_detail::Choice;
using quantize_detail::MeasuredProblem;
using quantize_detail::MeasuredTuning;
using quantize_detail::Measurement;
using quantize_detail::PlanTuning;

std::string text_of(const PlanTuning& t) {
  if (t == PlanTuning{}) return "as listed";
  const auto part = [](const char* name, int value) {
    return value == 0 ? std::string() : std::string(" ") + name + " " + std::to_string(value);
  };
  return (part("chunk", t.chunk) + part("chunks", t.chunks) + part("threads", t.threads) +
          part("min_blocks", t.min_blocks) +
          (t.table == Choice::always  ? " table"
           : t.table == Choice::never ? " no table"
                                      : "") +
          (t.large == Choice::always  ? " large"
           : t.large == Choice::never ? " small"
                                      : ""))
      .substr(1);
}

/// Ways of launching the kernels whose threads hold one chunk.
std::vector<PlanTuning> chunk_tunings() {
  std::vector<PlanTuning> tunings = {{}};
  for (const int chunk : {16, 32}) {
    for (const int threads : {128, 256}) {
      for (const int blocks : {4, 6, 8}) {
        if (threads * blocks * 24 > 65536) continue;
        tunings.push_back({chunk, 1, threads, threads == 128 ? 2 * blocks : blocks});
      }
    }
  }
  return tunings;
}

std::vector<PlanTuning> tunings_of(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  const bool row = t.block_rows == 1 && t.block_k == 0;
  if (t.block_rows > 1) return {{}, {0, 0, 0, 2}, {0, 0, 0, 3}, {0, 0, 0, 4}};
  if (row) {
    return {{},
            {8, 8, 512, 1},
            {8, 8, 512, 2},
            {8, 4, 512, 2},
            {16, 4, 512, 1},
            {16, 2, 512, 2},
            {32, 1, 512, 2},
            {32, 2, 512, 1}};
  }
  return chunk_tunings();
}

/// Ways of launching the kernels of functions of x that tables hold, but for GELU.
std::vector<PlanTuning> function_tunings() {
  PlanTuning computed, small, looked_up, more_threads, most_threads;
  computed.table = small.table = Choice::never;
  small.large = Choice::never;
  looked_up.table = more_threads.table = most_threads.table = Choice::always;
  more_threads.threads = 768;
  most_threads.threads = 1024;
  return {computed, small, looked_up, more_threads, most_threads};
}

/// Of GELU after a maximum: exact or approximate values with more or fewer registers, or a table
/// with more threads.
std::vector<PlanTuning> computed_gelu_tunings() {
  std::vector<PlanTuning> tunings = {{}, {0, 0, 128, 8}, {}, {0, 0, 0, 9}};
  tunings[0].large = tunings[1].large = Choice::never;
  tunings[2].large = tunings[3].large = Choice::always;
  for (PlanTuning& tuning : tunings) tuning.table = Choice::never;
  for (const int threads : {512, 768, 1024}) {
    tunings.push_back({0, 0, threads});
    tunings.back().table = Choice::always;
  }
  return tunings;
}

/// Ways of launching the kernels of GELU without a table, and with one.
std::vector<PlanTuning> gelu_tunings(const RecipeTraits& t) {
  std::vector<PlanTuning> tunings = {{}};
  if (t.block_k == 0) {
    tunings[0].large = Choice::never;
    tunings.push_back({});
    tunings.back().large = Choice::always;
    tunings.push_back({8, 8, 512, 2});
  } else if (t.block_rows == 1) {
    tunings.push_back({16, 1, 128, 12});
    tunings.push_back({32, 1, 128, 6});
    tunings.push_back({32, 1, 256, 4});
  }
  for (PlanTuning& tuning : tunings) tuning.table = Choice::never;
  tunings.push_back({});
  tunings.back().table = Choice::always;
  return tunings;
}

/// Ways of launching the kernels that keep operands of rows: registers against threads.
std::vector<PlanTuning> row_tunings() {
  std::vector<PlanTuning> tunings = {
      {}, {}, {16, 0, 512, 3}, {}, {0, 0, 512, 1}, {0, 0, 768, 1}, {0, 0, 1024, 1}};
  for (std::size_t i = 1; i < 3; ++i) tunings[i].large = Choice::never;
  for (std::size_t i = 3; i < tunings.size(); ++i) tunings[i].large = Choice::always;
  return tunings;
}

/// The same of those whose threads hold chunks of a few rows, or one in the form for small inputs:
/// more threads, smaller chunks.
std::vector<PlanTuning> modulate_tunings() {
  std::vector<PlanTuning> tunings = {
      {},
      {},
      {0, 0, 256, 4},
      {16, 0, 128, 12},
      {16, 0, 128, 8},
      {},
      {16, 2, 128, 8},
      {32, 2, 128, 4},
  };
  for (std::size_t i = 1; i < 5; ++i) tunings[i].large = Choice::never;
  for (std::size_t i = 5; i < tunings.size(); ++i) tunings[i].large = Choice::always;
  return tunings;
}

/// Ways of launching the second kernel where a tensor scale is computed.
std::vector<PlanTuning> computed_scale_tunings() {
  return {
      {}, {16, 1, 128, 12}, {16, 1, 256, 4}, {32, 1, 128, 8}, {32, 1, 128, 12}, {32, 1, 256, 4}};
}

/// The forms of tall blocks for small and for large inputs, registers against threads, and a table.
std::vector<PlanTuning> tall_tunings() {
  std::vector<PlanTuning> tunings = {{}, {}, {}, {0, 0, 0, 2}, {0, 0, 0, 3}};
  tunings[1].large = Choice::never;
  tunings[1].table = Choice::never;
  for (std::size_t i = 2; i < tunings.size(); ++i) {
    tunings[i].large = Choice::always;
    tunings[i].table = Choice::never;
  }
  tunings.push_back({});
  tunings.back().table = Choice::always;
  return tunings;
}

/// Ways of launching the second kernel where the scale of a whole tensor is computed of rms_norm or
/// modulate: by size, small ones, the large one.
std::vector<PlanTuning> computed_operand_tunings() {
  std::vector<PlanTuning> tunings = {{}, {}, {16, 1, 128, 8}, {16, 2, 128, 8}, {}};
  for (std::size_t i = 1; i < 4; ++i) tunings[i].large = Choice::never;
  tunings[4].large = Choice::always;
  return tunings;
}

/// Ways of doing rms_norm with blocks of several rows: by size, in two launches, from one read.
std::vector<PlanTuning> stripe_tunings() {
  std::vector<PlanTuning> tunings(3);
  tunings[1].large = Choice::never;
  tunings[2].large = Choice::always;
  return tunings;
}

std::vector<PlanTuning> fused_tunings(Recipe recipe, InputTransform transform) {
  const RecipeTraits& t = recipe_traits(recipe);
  if (shared_operands(transform) > 0 && (t.tensor_scale || t.block_rows == 0)) {
    return computed_operand_tunings();
  }
  const bool norm = transform == InputTransform::rms_norm;
  if (t.block_rows > 1) return norm ? stripe_tunings() : tall_tunings();
  if (is_gelu(transform) && !t.tensor_scale && t.block_rows != 0) return gelu_tunings(t);
  if (is_gelu(transform)) return computed_gelu_tunings();
  const bool modulate = transform == InputTransform::modulate;
  if (norm || (modulate && recipe == Recipe::fp8_row)) {
    return row_tunings();
  }
  return modulate ? modulate_tunings() : function_tunings();
}

nlohmann::json measure(quantize_detail::Workbench& workbench, const MeasuredProblem& problem,
                       const std::vector<PlanTuning>& tunings) {
  constexpr int kRepeats = 5;
  Measurement m = measure_quantize(workbench, problem, tunings, kRepeats);
  const std::string name = std::string(recipe_traits(problem.recipe).name) + " " +
                           format_traits(problem.dtype).name + " " +
                           scale_layout_traits(problem.layout).name + " " +
                           kInputTransformNames[static_cast<int>(problem.transform)] + " " +
                           std::to_string(problem.rows) + "x" + std::to_string(problem.k);
  const double copy_rate = static_cast<double>(m.moved_bytes) / m.copy_seconds * 1e-12;
  std::fprintf(stderr, "\n%s: copy %.2f us, %.3f TB/s\n", name.c_str(), m.copy_seconds * 1e6,
               copy_rate);
  std::sort(m.tunings.begin(), m.tunings.end(), [](const auto& a, const auto& b) {
    return std::pair(a.failed.has_value(), a.seconds) < std::pair(b.failed.has_value(), b.seconds);
  });
  nlohmann::json json = {{"problem", name},
                         {"moved_bytes", m.moved_bytes},
                         {"copy_seconds", m.copy_seconds},
                         {"variants", nlohmann::json::array()}};
  for (const MeasuredTuning& t : m.tunings) {
    const std::string text = text_of(t.tuning);
    const std::string failed = t.failed ? t.failed->what() : "";
    if (!t.failed) {
      std::fprintf(stderr, "  %.3f  %9.2f us  %s\n", m.copy_seconds / t.seconds, t.seconds * 1e6,
                   text.c_str());
    } else {
      std::fprintf(stderr, "  failed  %s: %s\n", text.c_str(), failed.substr(0, 300).c_str());
    }
    json["variants"].push_back({{"tuning", text},
                                {"seconds", t.seconds},
                                {"copy_share", t.failed ? 0 : m.copy_seconds / t.seconds},
                                {"failed", failed},
                                {"plan", t.plan}});
  }
  return json;
}

/// Recipes and fused inputs that are named on the command line.
struct Wanted {
  Wanted(int count, char** names) {
    for (int i = 0; i < count; ++i) {
      const std::string name = names[i];
      if (name == "computed") computed = true;
      if (name == "behind") behind = true;
      for (const RecipeTraits& t : kRecipes) {
        if (name == t.name) recipes.push_back(t.recipe);
      }
      for (int t = 1; t < kInputTransformCount; ++t) {
        if (name == kInputTransformNames[t]) transforms.push_back(static_cast<InputTransform>(t));
      }
    }
    if (!recipes.empty()) return;
    if (computed) {
      recipes = {Recipe::nvfp4, Recipe::fp8_tensor};
      return;
    }
    recipes = {Recipe::mxfp4,     Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3,  Recipe::nvfp4,
               Recipe::fp8_1x128, Recipe::fp8_row,    Recipe::fp8_128x128, Recipe::fp8_tensor};
  }
  std::vector<Recipe> recipes;
  std::vector<InputTransform> transforms;
  bool computed = false;
  bool behind = false;
};

/// Every layout of a recipe at two sizes.
std::vector<MeasuredProblem> plain_problems(Recipe recipe) {
  std::vector<MeasuredProblem> problems;
  const bool given = has_tensor_wide_scale(recipe_traits(recipe));
  for (const ScaleLayout layout : quantize_detail::measured_layouts(recipe)) {
    for (const std::int64_t rows : {4096, 32768}) {
      problems.push_back({recipe, Format::bf16, layout, rows, 8192});
      if (given) problems.back().scale_source = ScaleSource::given;
    }
  }
  return problems;
}

/// An input at sizes of x from 1 to 256 MiB.
std::vector<MeasuredProblem> fused_problems(Recipe recipe, InputTransform transform) {
  std::vector<MeasuredProblem> problems;
  for (const Format dtype : {Format::bf16, Format::f16}) {
    for (const std::int64_t mebibytes : {1, 2, 4, 8, 16, 64, 256}) {
      const std::int64_t rows = mebibytes * 64 / (transform == InputTransform::swiglu ? 2 : 1);
      problems.push_back({recipe, dtype, ScaleLayout::row_major, rows, 8192, transform});
    }
  }
  return problems;
}

nlohmann::json measure_all(int argc, char** argv) {
  std::fprintf(stderr, "%s\n", cuda::current_device().name.c_str());
  const Wanted wanted(std::max(0, argc - 1), argv + 1);
  nlohmann::json results = nlohmann::json::array();
  std::vector<MeasuredProblem> problems;
  std::vector<std::vector<PlanTuning>> tunings;
  for (const Recipe recipe : wanted.recipes) {
    for (const InputTransform transform : wanted.transforms) {
      for (const MeasuredProblem& problem : fused_problems(recipe, transform)) {
        problems.push_back(problem);
        tunings.push_back(fused_tunings(recipe, transform));
      }
    }
    if (!wanted.transforms.empty()) continue;
    if (wanted.computed) {
      for (const std::int64_t rows : {64, 512, 1024, 4096, 32768}) {
        problems.push_back({recipe, Format::bf16, ScaleLayout::row_major, rows, 8192});
        tunings.push_back(computed_scale_tunings());
      }
      continue;
    }
    for (const MeasuredProblem& problem : plain_problems(recipe)) {
      problems.push_back(problem);
      tunings.push_back(tunings_of(recipe));
    }
  }
  if (wanted.behind) {
    for (MeasuredProblem& problem : problems) problem.behind_producer = true;
  }
  compile_tunings(problems, tunings);
  quantize_detail::Workbench workbench;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    results.push_back(measure(workbench, problems[i], tunings[i]));
  }
  return nlohmann::json::object({{"problems", results}});
}

}  // namespace
}  // namespace blockscale

int main(int argc, char** argv) {
  return blockscale::test::gpu_benchmark_main([&] { return blockscale::measure_all(argc, argv); });
}
