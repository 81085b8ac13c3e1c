// blockscale bench grouped_gemm: rates of products of groups.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "output.h"
#include "products/grouped_gemm.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

struct BenchGroupedGemm {
  std::vector<Groups> groups;
  std::int64_t n = 2048;
  std::int64_t k = 2048;
  std::vector<RecipePair> pairs;
  Format output_dtype = Format::bf16;
  QuantizedTo to;
  int threads = 1;
  int repeats = 3;
  bool cuda = false;
  bool plan = false;
  std::string chip;
  BenchOutput output;
};

/// One pair of each kind that experts' weights are kept in.
std::vector<RecipePair> usual_pairs() {
  return {{Recipe::bf16, Recipe::bf16},
          {Recipe::fp8_1x128, Recipe::fp8_128x128},
          {Recipe::mxfp8_e4m3, Recipe::mxfp4},
          {Recipe::nvfp4, Recipe::nvfp4},
          {Recipe::bf16, Recipe::mxfp4}};
}

std::string groups_text(const Groups& groups) {
  return std::to_string(groups.count) + "x" + std::to_string(groups.rows);
}

/// A case in JSON: what it is of.
Json case_json(const Groups& groups, const RecipePair& pair) {
  return {{"groups", groups.count},
          {"m", groups.count * groups.rows},
          {"recipe_a", recipe_traits(pair.first).name},
          {"recipe_b", recipe_traits(pair.second).name}};
}

/// Calls visit(groups, pair) for each case.
void for_each_case(const BenchGroupedGemm& command, const auto& visit) {
  for (const Groups& groups : command.groups) {
    for (const RecipePair& pair : command.pairs) visit(groups, pair);
  }
}

/// The least time of all groups' products: A and D once, B of groups that have rows, and all
/// multiplications.
double bound_seconds_of(const RandomGroupedProduct& product, const BenchGroupedGemm& command,
                        const RecipePair& pair, const CpuPeaks& peaks) {
  double reading = 0, multiplying = 0;
  const std::vector<std::int32_t>& offsets = product.offsets();
  for (std::size_t g = 1; g < offsets.size(); ++g) {
    const std::int64_t rows = offsets[g] - offsets[g - 1];
    if (rows == 0) continue;
    const GemmWork work =
        gemm_work(imagined_gemm(rows, command.n, command.k, pair.first, pair.second,
                                command.output_dtype, 1, {}, command.to.input()));
    reading += bound_seconds({work.bytes, 0, work.multiplier}, peaks);
    multiplying += bound_seconds({0, work.operations, work.multiplier}, peaks);
  }
  return std::max(reading, multiplying);
}

ExitCode print_plans(const BenchGroupedGemm& command, Json json) {
  std::string text;
  for_each_case(command, [&](const Groups& groups, const RecipePair& pair) {
    const GroupedGemmArguments arguments =
        imagined_grouped_gemm(groups.count, groups.count * groups.rows, command.n, command.k,
                              pair.first, pair.second, command.output_dtype, command.to.input());
    const std::string plan = command.cuda
                                 ? cuda::describe_grouped_gemm(arguments, chip_of(command.chip))
                                 : describe_grouped_gemm(arguments);
    json["cases"].push_back(case_json(groups, pair));
    json["cases"].back()["plan"] = plan;
    text += groups_text(groups) + " " + recipe_traits(pair.first).name + " x " +
            recipe_traits(pair.second).name + "\n" + plan;
  });
  return print_result(json, text, command.output);
}

RandomGroupedProduct product_of(const BenchGroupedGemm& command, const Groups& groups,
                                const RecipePair& pair) {
  return {groups,     command.n,      command.k, pair.first, pair.second, command.output_dtype,
          command.to, command.threads};
}

ExitCode run_on_cuda(const BenchGroupedGemm& command, Json json) {
  const cuda::DeviceScope scope(0);
  json["device"] = cuda::current_device().name;
  Table table({{"Groups"}, {"A"}, {"B"}, {"Time", Align::right}, {"TFLOP/s", Align::right}});
  for_each_case(command, [&](const Groups& groups, const RecipePair& pair) {
    const RandomGroupedProduct product = product_of(command, groups, pair);
    const double seconds = cuda::benchmark_grouped_gemm(product.arguments(), command.repeats);
    const double gflops = gemm_gflops(groups.count * groups.rows, command.n, command.k, seconds);
    Json row = case_json(groups, pair);
    row.update({{"median_seconds", seconds}, {"gflops", gflops}});
    json["cases"].push_back(row);
    table.add_row({groups_text(groups), recipe_traits(pair.first).name,
                   recipe_traits(pair.second).name, format_duration(seconds),
                   format_fixed(gflops * 1e-3, 1)});
  });
  return print_result(json, table.str(), command.output);
}

ExitCode run_on_cpu(const BenchGroupedGemm& command, Json json) {
  const CpuPeaks peaks = measure_cpu_peaks(command.threads);
  json.update(cpu_json(command.threads, peaks));
  Table table({{"Groups"},
               {"A"},
               {"B"},
               {"Time", Align::right},
               {"Median", Align::right},
               {"GFLOP/s", Align::right},
               {"Of the bound", Align::right}});
  for_each_case(command, [&](const Groups& groups, const RecipePair& pair) {
    const RandomGroupedProduct product = product_of(command, groups, pair);
    const GemmTime time =
        time_grouped_gemm(product.arguments(), command.threads, command.repeats, false);
    const double share = bound_seconds_of(product, command, pair, peaks) / time.median;
    const double gflops =
        gemm_gflops(groups.count * groups.rows, command.n, command.k, time.fastest);
    const char* const name_a = recipe_traits(pair.first).name;
    const char* const name_b = recipe_traits(pair.second).name;
    spdlog::info("{} {} x {}: {}", groups_text(groups), name_a, name_b,
                 format_duration(time.fastest));
    Json row = case_json(groups, pair);
    row.update({{"seconds", time.fastest},
                {"median_seconds", time.median},
                {"quartile_seconds", time.quartiles},
                {"gflops", gflops},
                {"bound_share", share}});
    json["cases"].push_back(row);
    table.add_row({groups_text(groups), name_a, name_b, format_duration(time.fastest),
                   format_duration(time.median), format_fixed(gflops, 1), format_fixed(share, 2)});
  });
  return print_result(json, table.str(), command.output);
}

ExitCode run(const BenchGroupedGemm& command) {
  if (!command.chip.empty() && !command.plan) throw UsageError("--chip goes with --plan");
  Json json = {{"n", command.n}, {"k", command.k}, {"cases", Json::array()}};
  name_result(command.output_dtype, command.to, json);
  if (command.plan) return print_plans(command, json);
  return command.cuda ? run_on_cuda(command, json) : run_on_cpu(command, json);
}

constexpr const char* kExamples = R"help(Examples:
  The pairs that experts' weights are kept in, 16 experts of 32 tokens, on one thread:
    blockscale bench grouped_gemm

  From few tokens to many, on all threads:
    blockscale bench grouped_gemm --groups 32x2 --groups 32x20 --pair mxfp8_e4m3:mxfp4 --threads 0

  On a GPU; with --plan by which kernels:
    blockscale bench grouped_gemm --device cuda --groups 32x20 -n 4096 -k 7168 --repeats 20
)help";

}  // namespace

void add_grouped_gemm_bench(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchGroupedGemm>();
  CLI::App* const command =
      bench.add_subcommand("grouped_gemm", "Rate of products of groups, by recipe");
  add_repeated(*command, "--groups", "GxM", state->groups, parse_groups,
               help_text("So many groups, of so many rows on average: to which group a row "
                         "belongs, is random. Repeatable. Default: 16x32"));
  add_parsed(*command, "-n", "N", state->n, parse_size,
             "Rows of the B of each group. Default: 2048");
  add_parsed(*command, "-k", "K", state->k, parse_size, "Columns of A and B. Default: 2048");
  add_pairs(*command, state->pairs);
  add_parsed(*command, "--dtype", "T", state->output_dtype, parse_plain_format,
             "Type of D: f32, f16 or bf16 (the default)");
  add_product_transform(*command, state->to);
  add_product_repeats(*command, state->repeats, "case");
  add_device_and_plan(*command, state->cuda, state->plan);
  add_chip(*command, state->chip);
  add_threads(*command, state->threads, 1);
  add_output(*command, state->output);
  command->footer(recipe_help() + "\n" + kExamples);
  command->callback([&action, state] {
    if (state->groups.empty()) state->groups = {{16, 32}};
    if (state->pairs.empty()) state->pairs = state->cuda ? usual_cuda_pairs() : usual_pairs();
    action = [state] { return run(*state); };
  });
}

}  // namespace blockscale::cli
