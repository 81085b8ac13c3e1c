// blockscale bench moe: rates of mixture-of-experts layers that models have.
#include <spdlog/spdlog.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "output.h"
#include "products/moe.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

struct NamedLayer {
  const char* name;
  std::int64_t hidden, inner, experts, of;
};

/// All of 8 experts a token, on one device.
constexpr NamedLayer kLayers[] = {
    {"deepseek-v3-ep8", 7168, 2048, 32, 256},  // experts divided among 8 devices
    {"deepseek-v3-tp8", 7168, 256, 256, 256},  // each expert divided among 8
    {"qwen3-30b-a3b", 2048, 768, 128, 128},
};

std::vector<std::string> layer_names() {
  return names_of(kLayers, [](const NamedLayer& layer) { return layer.name; });
}

struct BenchMoe {
  std::vector<NamedLayer> layers;
  std::vector<std::int64_t> tokens;
  std::vector<Routing> routings;
  Layer kind;  // recipes and types of all
  int threads = 1;
  int repeats = 3;
  bool cuda = false;
  bool plan = false;
  std::string chip;
  BenchOutput output;

  Layer layer(const NamedLayer& named) const {
    Layer layer = kind;
    layer.hidden = named.hidden;
    layer.inner = named.inner;
    layer.experts = named.experts;
    layer.of = named.of;
    layer.tokens = tokens.front();
    layer.routing = routings.front();
    return layer;
  }
};

/// A case in JSON: what it is of.
Json case_json(const NamedLayer& named, const Layer& layer) {
  Json json = {{"layer", named.name}};
  json.update(layer_json(layer));
  return json;
}

/// Calls visit(name, layer, tokens, routing) for each case, the layer routed so.
void for_each_case(const BenchMoe& command, const auto& visit) {
  for (const NamedLayer& named : command.layers) {
    RandomLayer layer(command.layer(named), command.threads);
    for (const Routing routing : command.routings) {
      for (const std::int64_t tokens : command.tokens) {
        layer.route(tokens, routing);
        visit(named, layer, tokens, routing);
      }
    }
  }
}

ExitCode print_plans(const BenchMoe& command, Json json) {
  std::string text;
  for (const NamedLayer& named : command.layers) {
    for (const std::int64_t tokens : command.tokens) {
      Layer layer = command.layer(named);
      layer.tokens = tokens;
      const MoeArguments arguments = layer.imagined();
      const std::string plan = command.cuda
                                   ? cuda::describe_moe(arguments, {}, chip_of(command.chip))
                                   : describe_moe(arguments, {.threads = command.threads});
      Json row = case_json(named, layer);
      row.update({{"tokens", tokens}, {"plan", plan}});
      json["cases"].push_back(row);
      text += std::string(named.name) + ", " + plural(tokens, "token") + "\n" + plan;
    }
  }
  return print_result(json, text, command.output);
}

/// What all tables begin with.
std::vector<std::string> cells_of(const NamedLayer& named, std::int64_t tokens, Routing routing,
                                  const Hit& hit) {
  return {named.name, std::to_string(tokens), kRoutingNames[static_cast<int>(routing)],
          std::to_string(hit.rows), std::to_string(hit.experts)};
}
std::vector<Table::Column> columns_with(const std::vector<Table::Column>& more) {
  std::vector<Table::Column> columns = {{"Layer"},
                                        {"Tokens", Align::right},
                                        {"Routing"},
                                        {"Rows", Align::right},
                                        {"Experts", Align::right},
                                        {"Time", Align::right}};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}

ExitCode run_on_cuda(const BenchMoe& command, Json json) {
  const cuda::DeviceScope scope(0);
  json["device"] = cuda::current_device().name;
  Table table(columns_with({{"GB/s", Align::right}, {"TFLOP/s", Align::right}}));
  for_each_case(command, [&](const NamedLayer& named, const RandomLayer& layer, std::int64_t tokens,
                             Routing routing) {
    const Hit hit = hit_of(layer.rows());
    const GemmWork work = moe_work(layer.arguments());
    const double seconds = cuda::benchmark_moe(layer.arguments(), command.repeats);
    Json row = case_json(named, command.layer(named));
    row.update(routing_json(tokens, routing, hit));
    row.update({{"median_seconds", seconds}, {"gflops", work.operations / seconds * 1e-9}});
    row.update(roofline_json(work));
    json["cases"].push_back(row);
    std::vector<std::string> cells = cells_of(named, tokens, routing, hit);
    cells.insert(cells.end(),
                 {format_duration(seconds), format_rate(static_cast<double>(work.bytes) / seconds),
                  format_fixed(work.operations / seconds * 1e-12, 1)});
    table.add_row(cells);
  });
  return print_result(json, table.str(), command.output);
}

ExitCode run_on_cpu(const BenchMoe& command, Json json) {
  const CpuPeaks peaks = measure_cpu_peaks(command.threads);
  json.update(cpu_json(command.threads, peaks));
  Table table(columns_with(
      {{"Median", Align::right}, {"GFLOP/s", Align::right}, {"Of the bound", Align::right}}));
  for_each_case(command, [&](const NamedLayer& named, const RandomLayer& layer, std::int64_t tokens,
                             Routing routing) {
    const Hit hit = hit_of(layer.rows());
    const GemmWork work = moe_work(layer.arguments());
    const GemmTime time = time_moe(layer.arguments(), command.threads, command.repeats, false);
    const double share = bound_seconds(work, peaks) / time.median;
    const double gflops = work.operations / time.fastest * 1e-9;
    spdlog::info("{}, {} tokens: {}", named.name, tokens, format_duration(time.fastest));
    Json row = case_json(named, command.layer(named));
    row.update(routing_json(tokens, routing, hit));
    row.update({{"seconds", time.fastest},
                {"median_seconds", time.median},
                {"quartile_seconds", time.quartiles},
                {"gflops", gflops},
                {"bound_share", share}});
    row.update(roofline_json(work));
    json["cases"].push_back(row);
    std::vector<std::string> cells = cells_of(named, tokens, routing, hit);
    cells.insert(cells.end(), {format_duration(time.fastest), format_duration(time.median),
                               format_fixed(gflops, 1), format_fixed(share, 2)});
    table.add_row(cells);
  });
  return print_result(json, table.str(), command.output);
}

ExitCode run(const BenchMoe& command) {
  if (!command.chip.empty() && !command.plan) throw UsageError("--chip goes with --plan");
  Json json = {{"cases", Json::array()}};
  if (command.plan) return print_plans(command, json);
  return command.cuda ? run_on_cuda(command, json) : run_on_cpu(command, json);
}

constexpr const char* kExamples = R"help(Examples:
  Few tokens through layers of DeepSeek-V3 and Qwen3, on all threads:
    blockscale bench moe --threads 0

  One layer, from few tokens to many, alike and to few experts:
    blockscale bench moe --layer qwen3-30b-a3b --tokens 1 --tokens 64 --routing uniform \
        --routing zipf

  On a GPU; with --plan by which kernels:
    blockscale bench moe --device cuda --repeats 20
)help";

NamedLayer parse_layer(const std::string& name) {
  return kLayers[index_of(name, "layer", layer_names())];
}

void set_defaults(BenchMoe& command) {
  if (command.layers.empty()) command.layers = {std::begin(kLayers), std::end(kLayers)};
  if (command.routings.empty()) command.routings = {Routing::uniform};
  if (!command.tokens.empty()) return;
  command.tokens = {1, 4, 16};
  if (command.cuda) command.tokens = {1, 4, 8, 64, 512, 4096};
}

}  // namespace

void add_moe_bench(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchMoe>();
  CLI::App* const command =
      bench.add_subcommand("moe", "Rate of mixture-of-experts layers, by tokens");
  add_repeated(*command, "--layer", "L", state->layers, parse_layer,
               help_text("One of " + comma_list(layer_names()) +
                         ": what one device has. Repeatable. Default: all of them"));
  const auto parse_tokens = [](const std::string& text) {
    return parse_integer(text, 1, std::int64_t{1} << 20);
  };
  add_repeated(*command, "-t,--tokens", "T", state->tokens, parse_tokens,
               help_text("Rows of x, each of which has 8 experts. Repeatable. Default: 1, 4, 16; "
                         "with --device cuda 1, 4, 8, 64, 512, 4096"));
  add_repeated(*command, "--routing", "R", state->routings, parse_routing,
               help_text("To which experts tokens go: uniform, zipf (the r-th most wanted one by "
                         "r^-1.2) or one-hot (all tokens to the same ones). Repeatable. Default: "
                         "uniform"));
  add_layer_kind(*command, state->kind);
  add_product_repeats(*command, state->repeats, "case");
  add_device_and_plan(*command, state->cuda, state->plan);
  add_chip(*command, state->chip);
  add_threads(*command, state->threads, 1);
  add_output(*command, state->output);
  command->footer(recipe_help() + "\n" + kExamples);
  command->callback([&action, state] {
    set_defaults(*state);
    action = [state] { return run(*state); };
  });
}

}  // namespace blockscale::cli
