// blockscale bench: rates of the library's operations on this machine.
#include "blockscale/bench.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "blockscale/parallel.h"
#include "blockscale/system.h"
#include "command.h"
#include "gemm.h"
#include "output.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {

int parse_repeats(const std::string& text) {
  return static_cast<int>(parse_integer(text, 1, 1'000'000));
}

namespace {

constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;

std::int64_t parse_size(const std::string& text) {
  return parse_integer(text, 1, kLargestSize);
}
ExitCode print_result(const Json& json, const std::string& text, bool as_json) {
  if (as_json) {
    print_json(json);
  } else {
    print(text);
  }
  return ExitCode::success;
}

ExitCode print_result(const Json& json, const Table& table, bool as_json) {
  return print_result(json, table.str(), as_json);
}

// --- bench quantize ------------------------------------------------------------------------------

const char* name_of(InputTransform transform) {
  return kInputTransformNames[static_cast<int>(transform)];
}

struct BenchQuantize {
  QuantizeBenchmarkOptions options;
  bool cuda = false;
  std::vector<std::uint64_t> sizes;  // of the input, on CUDA
  bool plan = false;                 // on CUDA: only what would be launched
  bool json = false;
};

std::uint64_t parse_input_bytes(const std::string& text) {
  const std::uint64_t bytes = parse_bytes(text);
  if (bytes > 0 && bytes <= std::uint64_t{1} << 36) return bytes;
  throw ParseError("'" + text + "' is out of range; 1B to 64GiB are allowed");
}

/// A row of either benchmark: what its case is called, as the first entries of its JSON object and
/// the first cells of its line.
struct CaseNames {
  Json json;
  std::vector<std::string> cells;
};

template <class Row>
CaseNames case_names(const Row& row) {
  const std::pair<const char*, std::string> names[] = {
      {"recipe", recipe_traits(row.recipe).name},
      {"dtype", format_traits(row.dtype).name},
      {"layout", scale_layout_traits(row.layout).name},
      {"transform", name_of(row.transform)}};
  CaseNames result;
  for (const auto& [key, name] : names) {
    result.json[key] = name;
    result.cells.push_back(name);
  }
  return result;
}

void add_case(const CaseNames& names, const Json& numbers, const std::vector<std::string>& cells,
              Json& json, Table& table) {
  json["cases"].push_back(names.json);
  json["cases"].back().update(numbers);
  std::vector<std::string> line = names.cells;
  line.insert(line.end(), cells.begin(), cells.end());
  table.add_row(line);
}

cuda::QuantizeBenchmarkOptions cuda_options(const BenchQuantize& command) {
  cuda::QuantizeBenchmarkOptions options;
  options.recipes = command.options.recipes;
  options.dtypes = command.options.dtypes;
  options.layouts = command.options.layouts;
  options.transforms = command.options.transforms;
  options.input_bytes.assign(command.sizes.begin(), command.sizes.end());
  options.k = command.options.k;
  options.repeats = command.options.repeats;
  return options;
}

/// Needs no GPU.
ExitCode print_plans(const BenchQuantize& command) {
  const auto plans = cuda::describe_benchmark(cuda_options(command));
  if (plans.empty()) throw UsageError("no recipe that was chosen has that --layout");
  Json json = {{"cases", Json::array()}};
  std::string text;
  for (const cuda::QuantizeBenchmarkPlan& p : plans) {
    CaseNames names = case_names(p);
    names.json.update({{"rows", p.rows}, {"k", p.k}, {"plan", p.plan}});
    json["cases"].push_back(names.json);
    for (const std::string& cell : names.cells) text += cell + ' ';
    text += std::to_string(p.rows) + " x " + std::to_string(p.k) + '\n' + p.plan + '\n';
  }
  return print_result(json, text, command.json);
}

ExitCode run_quantize_cuda(const BenchQuantize& command) {
  if (command.plan) return print_plans(command);
  const cuda::DeviceScope scope(0);
  const auto rows = cuda::benchmark_quantize(cuda_options(command));
  Json json = {{"device", cuda::current_device().name}, {"cases", Json::array()}};
  Table table({{"Recipe"},
               {"From"},
               {"Scale layout"},
               {"Fused"},
               {"Input", Align::right},
               {"Time", Align::right},
               {"Read + written GB/s", Align::right},
               {"Copy kernel", Align::right},
               {"Of copy", Align::right}});
  for (const cuda::QuantizeBenchmarkRow& row : rows) {
    const Json numbers = {{"rows", row.rows},
                          {"k", row.k},
                          {"input_bytes", row.input_bytes},
                          {"moved_bytes", row.moved_bytes},
                          {"seconds", row.seconds},
                          {"copy_seconds", row.copy_seconds},
                          {"dependent_copy_seconds", row.dependent_copy_seconds},
                          {"bytes_per_second", row.bytes_per_second},
                          {"copy_share", row.copy_share}};
    add_case(case_names(row), numbers,
             {format_bytes(static_cast<double>(row.input_bytes)), format_duration(row.seconds),
              format_rate(row.bytes_per_second), format_duration(row.copy_seconds),
              format_fixed(row.copy_share, 3)},
             json, table);
  }
  return print_result(json, table, command.json);
}

ExitCode run_quantize(const BenchQuantize& command) {
  if (command.cuda && command.options.scale_choice != ScaleChoice::amax) {
    throw UsageError("--scales goes with --device cpu");
  }
  if (command.cuda) return run_quantize_cuda(command);
  if (!command.sizes.empty()) throw UsageError("--size goes with --device cuda");
  if (command.plan) throw UsageError("--plan goes with --device cuda");
  const std::vector<QuantizeBenchmarkRow> rows = benchmark_quantize(command.options);
  Json json = {{"rows", command.options.rows},
               {"k", command.options.k},
               {"scales", scale_choice_name(command.options.scale_choice)},
               {"simd_target", simd_target()},
               {"cases", Json::array()}};
  Table table({{"Recipe"},
               {"From"},
               {"Scale layout"},
               {"Fused"},
               {"Threads", Align::right},
               {"Time", Align::right},
               {"Input GB/s", Align::right},
               {"Read + written GB/s", Align::right},
               {"Of memcpy", Align::right}});
  for (const QuantizeBenchmarkRow& row : rows) {
    const Json numbers = {{"threads", row.threads},
                          {"seconds", row.seconds},
                          {"input_gb_per_second", row.input_gb_per_second},
                          {"bytes_per_second", row.bytes_per_second},
                          {"memcpy_share", row.memcpy_share}};
    add_case(case_names(row), numbers,
             {std::to_string(row.threads), format_duration(row.seconds),
              format_fixed(row.input_gb_per_second, 2), format_rate(row.bytes_per_second),
              format_fixed(row.memcpy_share, 2)},
             json, table);
  }
  return print_result(json, table, command.json);
}

constexpr const char* kQuantizeExamples = R"help(Examples:
  Every recipe from bf16, on one thread:
    blockscale bench quantize

  Every recipe and layout on a GPU, next to a copy kernel, as JSON:
    blockscale bench quantize --device cuda --json

  Which kernels NVFP4 of RMSNorm takes there, and why:
    blockscale bench quantize --device cuda --plan --recipe nvfp4 --transform rms_norm --size 8MiB
)help";

void add_quantize(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchQuantize>();
  CLI::App* const command =
      bench.add_subcommand("quantize", "Rate of quantization, and its share of memcpy's");
  QuantizeBenchmarkOptions& options = state->options;
  add_repeated(*command, "--recipe", "R", options.recipes, parse_recipe,
               "Only this recipe. Repeatable. Default: every one that has scales");
  add_repeated(*command, "--dtype", "T", options.dtypes, parse_plain_format,
               "Type of the input: f32, f16 or bf16 (the default). Repeatable");
  add_repeated(*command, "--layout", "L", options.layouts, parse_scale_layout,
               help_text("Scale layout: " + comma_list(scale_layout_names()) +
                         ". Repeatable. Default: swizzled_128x4 where the recipe allows it, else "
                         "row_major"));
  add_repeated(*command, "--transform", "F", options.transforms, parse_input_transform,
               help_text("What is fused with the input: " + comma_list(input_transform_names()) +
                         ". Repeatable. Default: identity"));
  add_parsed(*command, "--scales", "CHOICE", options.scale_choice, parse_scale_choice,
             help_text("Which scale a block takes in MX recipes and nvfp4: amax (the default), mse "
                       "or weighted"));
  add_parsed(*command, "--rows", "N", options.rows, parse_size, "Rows of the input. Default: 8192");
  add_parsed(*command, "--k", "K", options.k, parse_size,
             "Columns of what is quantized. Default: 8192");
  add_parsed(*command, "--repeats", "N", options.repeats, parse_repeats,
             "Timed runs of each case, of which the fastest counts. Default: 5");
  add_threads(*command, options.threads, 1);
  add_parsed(*command, "--device", "D", state->cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device. There every layout is "
                       "measured unless --layout is given, medians count, and --rows and "
                       "--threads are not used"));
  add_repeated(*command, "--size", "SIZE", state->sizes, parse_input_bytes,
               help_text("With --device cuda: bytes of the input. Repeatable. Default: 1MiB, 8MiB, "
                         "64MiB and 512MiB"));
  command->add_flag("--plan", state->plan,
                    help_text("With --device cuda: print what would be launched on an H200, and "
                              "why; measures nothing and needs no GPU"));
  add_json(*command, state->json);
  command->footer(kQuantizeExamples);
  command->callback([&action, state] { action = [state] { return run_quantize(*state); }; });
}

// --- bench gemm ----------------------------------------------------------------------------------

struct BenchGemm {
  std::int64_t m = 512;
  std::int64_t n = 4096;
  std::int64_t k = 4096;
  std::vector<std::pair<Recipe, Recipe>> pairs;
  Format output_dtype = Format::bf16;
  QuantizedTo to;
  int threads = 1;
  int repeats = 3;
  bool cuda = false;
  bool plan = false;  // only how the work is divided
  bool tune = false;  // on CUDA: keep what is faster than the plan
  bool json = false;
};

/// One pair of each kind that models use.
std::vector<std::pair<Recipe, Recipe>> usual_pairs() {
  return {{Recipe::f32, Recipe::f32},
          {Recipe::bf16, Recipe::bf16},
          {Recipe::fp8_tensor, Recipe::fp8_tensor},
          {Recipe::fp8_row, Recipe::fp8_row},
          {Recipe::fp8_1x128, Recipe::fp8_128x128},
          {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3},
          {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
          {Recipe::mxfp8_e4m3, Recipe::mxfp4},
          {Recipe::mxfp4, Recipe::mxfp4},
          {Recipe::nvfp4, Recipe::nvfp4},
          {Recipe::bf16, Recipe::nvfp4}};
}

/// One pair of each kind that has kernels for GPUs.
std::vector<std::pair<Recipe, Recipe>> usual_cuda_pairs() {
  return {{Recipe::fp8_tensor, Recipe::fp8_tensor},
          {Recipe::fp8_row, Recipe::fp8_row},
          {Recipe::fp8_1x128, Recipe::fp8_128x128}};
}

/// "RECIPE" for both sides, or "RECIPE_A:RECIPE_B".
std::pair<Recipe, Recipe> parse_pair(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {parse_recipe(text), parse_recipe(text)};
  return {parse_recipe(std::string_view(text).substr(0, colon)),
          parse_recipe(std::string_view(text).substr(colon + 1))};
}

ExitCode print_gemm_plans(const BenchGemm& command) {
  Json json = {{"m", command.m}, {"n", command.n}, {"k", command.k}, {"cases", Json::array()}};
  std::string text;
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const GemmArguments arguments =
        imagined_gemm(command.m, command.n, command.k, recipe_a, recipe_b, command.output_dtype, 1,
                      command.to.recipe, command.to.input());
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    const std::string plan =
        command.cuda ? cuda::describe_gemm(arguments) : describe_gemm(arguments);
    json["cases"].push_back({{"recipe_a", name_a}, {"recipe_b", name_b}, {"plan", plan}});
    if (command.cuda) text += std::string(name_a) + " x " + name_b + '\n';
    text += plan;
  }
  return print_result(json, text, command.json);
}

ExitCode run_gemm_cuda(const BenchGemm& command) {
  const cuda::DeviceScope scope(0);
  Json json = {{"m", command.m},
               {"n", command.n},
               {"k", command.k},
               {"device", cuda::current_device().name}};
  name_result(command.output_dtype, command.to, json);
  Table table({{"A"}, {"B"}, {"Time", Align::right}, {"TFLOP/s", Align::right}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const double seconds = cuda::benchmark_gemm(product.arguments(), command.repeats);
    const double gflops = gemm_gflops(command.m, command.n, command.k, seconds);
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    json["cases"].push_back({{"recipe_a", name_a},
                             {"recipe_b", name_b},
                             {"median_seconds", seconds},
                             {"gflops", gflops}});
    table.add_row({name_a, name_b, format_duration(seconds), format_fixed(gflops * 1e-3, 1)});
  }
  return print_result(json, table, command.json);
}

ExitCode tune_gemms(const BenchGemm& command) {
  const cuda::DeviceScope scope(0);
  Json json = {{"m", command.m},
               {"n", command.n},
               {"k", command.k},
               {"device", cuda::current_device().name},
               {"cases", Json::array()}};
  Table table({{"A"},
               {"B"},
               {"Plan", Align::right},
               {"Best", Align::right},
               {"Choices", Align::right},
               {"Kept"}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const cuda::GemmTuning t = cuda::tune_gemm(product.arguments(), command.repeats);
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    json["path"] = t.path;
    json["cases"].push_back({{"recipe_a", name_a},
                             {"recipe_b", name_b},
                             {"planned_seconds", t.planned_seconds},
                             {"best_seconds", t.best_seconds},
                             {"tried", t.tried},
                             {"kept", t.kept}});
    table.add_row({name_a, name_b, format_duration(t.planned_seconds),
                   format_duration(t.best_seconds), std::to_string(t.tried),
                   t.kept.empty() ? "the plan's own" : t.kept});
    spdlog::info("{} x {}: kept in {}", name_a, name_b, t.path);
  }
  return print_result(json, table, command.json);
}

ExitCode run_gemm(const BenchGemm& command) {
  if (command.tune && (command.plan || !command.cuda)) {
    throw UsageError("--tune goes with --device cuda, and without --plan");
  }
  if (command.tune) return tune_gemms(command);
  if (command.plan) return print_gemm_plans(command);
  if (command.cuda) return run_gemm_cuda(command);
  Json json = {{"m", command.m},
               {"n", command.n},
               {"k", command.k},
               {"threads", effective_threads(command.threads)},
               {"simd_target", simd_target()}};
  name_result(command.output_dtype, command.to, json);
  Table table(
      {{"A"}, {"B"}, {"Time", Align::right}, {"Median", Align::right}, {"GFLOP/s", Align::right}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const GemmTime time = time_gemm(product.arguments(), command.threads, command.repeats);
    spdlog::info("{} x {}: {}", recipe_traits(recipe_a).name, recipe_traits(recipe_b).name,
                 format_duration(time.fastest));
    const double gflops = gemm_gflops(command.m, command.n, command.k, time.fastest);
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    json["cases"].push_back({{"recipe_a", name_a},
                             {"recipe_b", name_b},
                             {"seconds", time.fastest},
                             {"median_seconds", time.median},
                             {"gflops", gflops}});
    table.add_row({name_a, name_b, format_duration(time.fastest), format_duration(time.median),
                   format_fixed(gflops, 1)});
  }
  return print_result(json, table, command.json);
}

constexpr const char* kGemmExamples = R"help(Examples:
  The pairs that models use, 512 x 4096 x 4096, on one thread:
    blockscale bench gemm

  Two pairs of one's own choice:
    blockscale bench gemm --pair mxfp8_e4m3 --pair bf16:mxfp4 -m 64 --threads 0

  As on a CPU without AVX-512 (doctor lists the instruction sets):
    BLOCKSCALE_SIMD=AVX2 blockscale bench gemm

  How long a product with block scales takes on a GPU; with --plan by which kernel, with --tune
  whether another is faster, which is then kept for 33 to 64 rows:
    blockscale bench gemm --device cuda --pair fp8_1x128:fp8_128x128 -m 64 --repeats 20
)help";

void add_gemm_bench(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchGemm>();
  CLI::App* const command = bench.add_subcommand("gemm", "Rate of multiplication, by recipe");
  add_parsed(*command, "-m", "M", state->m, parse_size, "Rows of A and D. Default: 512");
  add_parsed(*command, "-n", "N", state->n, parse_size, "Rows of B. Default: 4096");
  add_parsed(*command, "-k", "K", state->k, parse_size, "Columns of A and B. Default: 4096");
  add_repeated(*command, "--pair", "A[:B]", state->pairs, parse_pair,
               help_text("Recipes of A and B, or one for both. Repeatable. Default: a pair of each "
                         "kind that models use"));
  add_quantized_options(*command,
                        add_parsed(*command, "--dtype", "T", state->output_dtype,
                                   parse_plain_format, "Type of D: f32, f16 or bf16 (the default)"),
                        state->to);
  add_parsed(*command, "--repeats", "N", state->repeats, parse_repeats,
             "Timed runs of each pair, of which the fastest counts. Default: 3");
  add_parsed(*command, "--device", "D", state->cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device, which takes the FP8 "
                       "recipes of e4m3. There caches are cold and medians count"));
  command->add_flag("--plan", state->plan,
                    help_text("Print how the work is divided, and for which instruction set, or "
                              "what would be launched on an H200; measures nothing and needs no "
                              "GPU"));
  command->add_flag("--tune", state->tune,
                    help_text("With --device cuda: time every choice of tile, stages and division "
                              "of K, and keep what is 3 % faster than the plan's for later "
                              "processes, in the file that BLOCKSCALE_TUNING names (default: "
                              "gemm-tuning.json beside cached kernels)"));
  add_threads(*command, state->threads, 1);
  add_json(*command, state->json);
  command->footer(recipe_help() + "\n" + kGemmExamples);
  command->callback([&action, state] {
    if (state->pairs.empty()) state->pairs = state->cuda ? usual_cuda_pairs() : usual_pairs();
    action = [state] { return run_gemm(*state); };
  });
}

constexpr const char* kExamples = R"help(Examples:
  How fast weights are quantized here, next to memcpy:
    blockscale bench quantize

  How fast products are, by recipe:
    blockscale bench gemm --json > gemm.json
)help";

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure rates on this machine");
  bench->require_subcommand(1);
  add_quantize(*bench, action);
  add_gemm_bench(*bench, action);
  add_copy(*bench, action);
  bench->footer(kExamples);
}

}  // namespace blockscale::cli
