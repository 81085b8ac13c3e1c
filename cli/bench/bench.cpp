// blockscale bench: rates of the library's operations on this machine.
#include "blockscale/bench.h"

#include <string>
#include <string_view>

#include "arguments.h"
#include "bench.h"
#include "blockscale/files.h"
#include "blockscale/parallel.h"
#include "blockscale/system.h"
#include "command.h"
#include "output.h"

namespace blockscale::cli {

int parse_repeats(const std::string& text) {
  return static_cast<int>(parse_integer(text, 1, 1'000'000));
}

std::int64_t parse_size(const std::string& text) {
  return parse_integer(text, 1, std::int64_t{1} << 24);
}

void add_output(CLI::App& command, BenchOutput& output) {
  add_json(command, output.json);
  const auto as_is = [](const std::string& text) {
    if (text.empty()) throw ParseError("must not be empty");
    return text;
  };
  add_parsed(command, "--output", "FILE", output.path, as_is,
             "Write what --json prints into FILE as well, replacing it");
}

void add_pairs(CLI::App& command, std::vector<RecipePair>& pairs) {
  add_repeated(command, "--pair", "A[:B]", pairs, parse_pair,
               help_text("Recipes of A and B, or one for both. Repeatable. Default: a pair of each "
                         "kind that models use"));
}

Json cpu_json(int threads, const CpuPeaks& peaks) {
  return {{"threads", effective_threads(threads)},
          {"simd_target", simd_target()},
          {"peaks", Json::array({peaks_json(peaks)})}};
}

void add_product_repeats(CLI::App& command, int& repeats, const std::string& what) {
  add_parsed(command, "--repeats", "N", repeats, parse_repeats,
             "Timed runs of each " + what + ", of which the fastest counts. Default: 3");
}

void add_device_and_plan(CLI::App& command, bool& cuda, bool& plan) {
  add_parsed(command, "--device", "D", cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device. There caches are cold "
                       "and medians count"));
  command.add_flag("--plan", plan,
                   help_text("Print how the work is divided, and for which instruction set, or "
                             "what would be launched on the first GPU, else on an H200; measures "
                             "nothing and needs no GPU"));
}

void add_chip(CLI::App& command, std::string& name) {
  command.add_option("--chip", name,
                     help_text("With --plan on CUDA: what the plan is for, such as H200, H100, "
                               "H20, B200, B300, 'RTX PRO 6000', 'RTX 5090' or GB10"));
}

cuda::Chip chip_of(const std::string& name) {
  return name.empty() ? cuda::default_chip() : cuda::chip_named(name);
}

RecipePair parse_pair(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {parse_recipe(text), parse_recipe(text)};
  return {parse_recipe(std::string_view(text).substr(0, colon)),
          parse_recipe(std::string_view(text).substr(colon + 1))};
}

std::vector<RecipePair> usual_cuda_pairs() {
  return {{Recipe::fp8_tensor, Recipe::fp8_tensor},
          {Recipe::fp8_row, Recipe::fp8_row},
          {Recipe::fp8_1x128, Recipe::fp8_128x128}};
}

ExitCode print_result(const Json& json, const std::string& text, const BenchOutput& output) {
  if (output.json) {
    print_json(json);
  } else {
    print(text);
  }
  if (!output.path.empty()) write_file_atomically(output.path, json_text(json));
  return ExitCode::success;
}

namespace {

constexpr const char* kExamples = R"help(Examples:
  How fast weights are quantized here, next to memcpy:
    blockscale bench quantize

  How fast products are, by recipe, and what this CPU could reach:
    blockscale bench gemm --output gemm.json
)help";

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure rates on this machine");
  bench->require_subcommand(1);
  add_quantize(*bench, action);
  add_dequantize(*bench, action);
  add_gemm_bench(*bench, action);
  add_grouped_gemm_bench(*bench, action);
  add_moe_bench(*bench, action);
  add_copy(*bench, action);
  add_peaks(*bench, action);
  bench->footer(kExamples);
}

}  // namespace blockscale::cli
