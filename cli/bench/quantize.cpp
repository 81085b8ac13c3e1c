// blockscale bench quantize and bench dequantize: rates of both, next to memcpy's.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "blockscale/system.h"
#include "command.h"
#include "output.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

const char* name_of(InputTransform transform) {
  return kInputTransformNames[static_cast<int>(transform)];
}

struct BenchQuantize {
  QuantizeBenchmarkOptions options;
  bool cuda = false;
  std::vector<std::uint64_t> sizes;  // of the input, on CUDA
  bool plan = false;                 // on CUDA: only what would be launched
  std::string chip;                  // there; empty: this machine's
  BenchOutput output;
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
  const auto plans = cuda::describe_benchmark(cuda_options(command), chip_of(command.chip));
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
  return print_result(json, text, command.output);
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
  return print_result(json, table.str(), command.output);
}

/// Rows of `quantize`, or of its inverse.
ExitCode print_cpu_rows(const BenchQuantize& command, const std::vector<QuantizeBenchmarkRow>& rows,
                        bool is_inverse) {
  Json json = {{"rows", command.options.rows},
               {"k", command.options.k},
               {"simd_target", simd_target()},
               {"cases", Json::array()}};
  std::vector<Table::Column> columns = {{"Recipe"}, {is_inverse ? "To" : "From"}, {"Scale layout"}};
  if (!is_inverse) {
    json["scales"] = scale_choice_name(command.options.scale_choice);
    columns.push_back({"Fused"});
  }
  for (const char* const title : {"Threads", "Time", is_inverse ? "Result GB/s" : "Input GB/s",
                                  "Read + written GB/s", "Of memcpy"}) {
    columns.push_back({title, Align::right});
  }
  Table table(columns);
  for (const QuantizeBenchmarkRow& row : rows) {
    CaseNames names = case_names(row);
    if (is_inverse) {
      names.json.erase("transform");
      names.cells.pop_back();
    }
    const Json numbers = {
        {"threads", row.threads},
        {"seconds", row.seconds},
        {"median_seconds", row.median_seconds},
        {"quartile_seconds", row.quartile_seconds},
        {is_inverse ? "result_gb_per_second" : "input_gb_per_second", row.input_gb_per_second},
        {"bytes_per_second", row.bytes_per_second},
        {"memcpy_share", row.memcpy_share}};
    add_case(names, numbers,
             {std::to_string(row.threads), format_duration(row.seconds),
              format_fixed(row.input_gb_per_second, 2), format_rate(row.bytes_per_second),
              format_fixed(row.memcpy_share, 2)},
             json, table);
  }
  return print_result(json, table.str(), command.output);
}

ExitCode run_quantize(const BenchQuantize& command) {
  if (command.cuda && command.options.scale_choice != ScaleChoice::amax) {
    throw UsageError("--scales goes with --device cpu");
  }
  if (!command.chip.empty() && !command.plan) throw UsageError("--chip goes with --plan");
  if (command.cuda) return run_quantize_cuda(command);
  if (!command.sizes.empty()) throw UsageError("--size goes with --device cuda");
  if (command.plan) throw UsageError("--plan goes with --device cuda");
  return print_cpu_rows(command, benchmark_quantize(command.options), false);
}

constexpr const char* kQuantizeExamples = R"help(Examples:
  Every recipe from bf16, on one thread:
    blockscale bench quantize

  Every recipe and layout on a GPU, next to a copy kernel, as JSON:
    blockscale bench quantize --device cuda --json

  Which kernels NVFP4 of RMSNorm takes there, and why:
    blockscale bench quantize --device cuda --plan --recipe nvfp4 --transform rms_norm --size 8MiB
)help";

constexpr const char* kDequantizeExamples = R"help(Examples:
  Every recipe to bf16, on one thread:
    blockscale bench dequantize

  NVFP4 to f32 on all threads, as JSON:
    blockscale bench dequantize --recipe nvfp4 --dtype f32 --threads 0 --json
)help";

/// Options of both commands.
void add_common_options(CLI::App& command, BenchQuantize& state, const char* dtype_help) {
  QuantizeBenchmarkOptions& options = state.options;
  add_repeated(command, "--recipe", "R", options.recipes, parse_recipe,
               "Only this recipe. Repeatable. Default: every one that has scales");
  add_repeated(command, "--dtype", "T", options.dtypes, parse_plain_format, dtype_help);
  add_repeated(command, "--layout", "L", options.layouts, parse_scale_layout,
               help_text("Scale layout: " + comma_list(scale_layout_names()) +
                         ". Repeatable. Default: swizzled_128x4 where the recipe allows it, else "
                         "row_major"));
  add_parsed(command, "--rows", "N", options.rows, parse_size, "Rows of the matrix. Default: 8192");
  add_parsed(command, "--k", "K", options.k, parse_size,
             "Columns of what is quantized. Default: 8192");
  add_parsed(command, "--repeats", "N", options.repeats, parse_repeats,
             "Timed runs of each case, of which the fastest counts. Default: 5");
  add_threads(command, options.threads, 1);
  add_output(command, state.output);
}

}  // namespace

void add_quantize(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchQuantize>();
  CLI::App* const command =
      bench.add_subcommand("quantize", "Rate of quantization, and its share of memcpy's");
  QuantizeBenchmarkOptions& options = state->options;
  add_common_options(*command, *state,
                     "Type of the input: f32, f16 or bf16 (the default). Repeatable");
  add_repeated(*command, "--transform", "F", options.transforms, parse_input_transform,
               help_text("What is fused with the input: " + comma_list(input_transform_names()) +
                         ". Repeatable. Default: identity"));
  add_parsed(*command, "--scales", "CHOICE", options.scale_choice, parse_scale_choice,
             help_text("Which scale a block takes in MX recipes and nvfp4: amax (the default), mse "
                       "or weighted"));
  add_parsed(*command, "--device", "D", state->cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device. There every layout is "
                       "measured unless --layout is given, medians count, and --rows and "
                       "--threads are not used"));
  add_repeated(*command, "--size", "SIZE", state->sizes, parse_input_bytes,
               help_text("With --device cuda: bytes of the input. Repeatable. Default: 1MiB, 8MiB, "
                         "64MiB and 512MiB"));
  command->add_flag("--plan", state->plan,
                    help_text("With --device cuda: print what would be launched on the first "
                              "GPU, else on an H200, and why; measures nothing and needs no GPU"));
  add_chip(*command, state->chip);
  command->footer(kQuantizeExamples);
  command->callback([&action, state] { action = [state] { return run_quantize(*state); }; });
}

void add_dequantize(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchQuantize>();
  CLI::App* const command = bench.add_subcommand(
      "dequantize", "Rate of dequantization on the CPU, and its share of memcpy's");
  add_common_options(*command, *state,
                     "Type of the result: f32, f16 or bf16 (the default). Repeatable");
  command->footer(kDequantizeExamples);
  command->callback([&action, state] {
    action = [state] { return print_cpu_rows(*state, benchmark_dequantize(state->options), true); };
  });
}

}  // namespace blockscale::cli
