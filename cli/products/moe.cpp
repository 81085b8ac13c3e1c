// blockscale moe: time a mixture-of-experts layer, and check it against float64.
#include "products/moe.h"

#include <memory>
#include <string>

#include "arguments.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "command.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

struct MoeCommand {
  Layer layer;
  int threads = 0;
  int repeats = 5;
  bool cuda = false;
  bool check = false;
  std::optional<int> samples;
  bool json = false;
};

constexpr int kSamples = 16;

struct MoeResult {
  std::string plan;
  Hit hit;
  GemmWork work;
  GemmTime time;
  GemmPlace place;
  std::optional<MoeCheck> check;

  double gflops() const { return work.operations / time.fastest * 1e-9; }
};

MoeResult measure(const MoeCommand& command) {
  const auto on_device = command.cuda ? std::make_unique<cuda::DeviceScope>(0) : nullptr;
  const RandomLayer layer(command.layer, command.threads);
  const MoeArguments& arguments = layer.arguments();
  MoeResult result;
  result.place = place_of(command.cuda, command.threads);
  result.plan = command.cuda ? cuda::describe_moe(arguments, {}, cuda::current_device())
                             : describe_moe(arguments, {.threads = command.threads});
  result.hit = hit_of(layer.rows());
  result.work = moe_work(arguments);
  result.time = time_moe(arguments, command.threads, command.repeats, command.cuda);
  if (command.check) {
    result.check = check_moe(arguments, command.samples.value_or(kSamples), command.threads);
  }
  return result;
}

Json result_json(const MoeCommand& command, const MoeResult& result) {
  Json json = layer_json(command.layer);
  json.update(routing_json(command.layer.tokens, command.layer.routing, result.hit));
  json.update(result.place.json);
  json.update({{"plan", result.plan},
               {"seconds", result.time.fastest},
               {"median_seconds", result.time.median},
               {"gflops", result.gflops()}});
  json.update(roofline_json(result.work));
  if (result.check) {
    json["check"] = {{"tokens", result.check->tokens},
                     {"error", result.check->error},
                     {"allowed", result.check->allowed},
                     {"passed", result.check->passed()}};
  }
  return json;
}

/// "y [64, 2048] bf16: 128 of 128 experts fp8_128x128, H 2048, I 768, swiglu; top 8, uniform: 512
/// rows of 125 experts, at most 12 each".
std::string layer_text(const Layer& layer, const Hit& hit) {
  return "y " + shape_text({layer.tokens, layer.hidden}) + " " + format_traits(layer.dtype).name +
         ": " + std::to_string(layer.experts) + " of " + plural(layer.all_experts(), "expert") +
         " " + recipe_traits(layer.recipe).name + ", H " + std::to_string(layer.hidden) + ", I " +
         std::to_string(layer.inner) + ", " +
         kInputTransformNames[static_cast<int>(layer.activation)] + "; top " +
         std::to_string(layer.top_k) + ", " + kRoutingNames[static_cast<int>(layer.routing)] +
         ": " + plural(hit.rows, "row") + " of " + plural(hit.experts, "expert") + ", at most " +
         std::to_string(hit.most) + " each\n";
}

/// The roofline's two numbers.
std::string work_text(const MoeResult& result) {
  const auto bytes = static_cast<double>(result.work.bytes);
  return "work   " + format_bytes(bytes) + " of weights that are hit, x and y, " +
         format_rate(bytes / result.time.fastest) + " GB/s; " +
         format_significant(result.work.operations * 1e-9, 3) + " GFLOP\n";
}

std::string moe_check_text(const MoeCheck& check) {
  return "check  " + plural(check.tokens, "token") +
         " against float64, quantized between the steps alike: error " +
         format_significant(check.error, 3) + " of y, allowed " +
         format_significant(check.allowed, 3) + ": " + (check.passed() ? "passed" : "FAILED") +
         "\n";
}

ExitCode run(const MoeCommand& command) {
  if (command.samples && !command.check) throw UsageError("--samples goes with --check");
  check_layer(command.layer);
  const MoeResult result = measure(command);
  if (command.json) {
    print_json(result_json(command, result));
  } else {
    print(
        layer_text(command.layer, result.hit) + result.plan +
        time_text(command.cuda, command.repeats, result.time, result.gflops(), result.place.text) +
        work_text(result) + (result.check ? moe_check_text(*result.check) : ""));
  }
  return exit_code_of("moe", !result.check || result.check->passed(),
                      "is further from float64 than allowed");
}

constexpr const char* kExamples = R"help(
The layer is y[t] = sum over a token's experts of weight * (activation(x w13^T) w2^T), of random
normal x in bf16 and random normal weights. Printed are the plan, the time, and what the layer takes
at least: the bytes of x, y and the weights of the experts that have rows, each once, and the
operations of both products. With --of, tokens are routed to more experts than are here, as where
other devices have the rest.
With --check, y of a sample of tokens is compared with the layer in float64, in which x and what
lies between the products are quantized as the library does; further from that, the exit code is 10.

Examples:
  A layer of Qwen3-30B-A3B, which the defaults are, checked:
    blockscale moe --tokens 16 --check

  DeepSeek-V3 on one GPU of eight, which has 32 of 256 experts:
    blockscale moe -t 512 --hidden 7168 --inner 2048 --experts 32 --of 256 --device cuda

  MXFP4 weights by MXFP8 activations, where a few experts have most of the tokens:
    blockscale moe --recipe mxfp4 --activations mxfp8_e4m3 --routing zipf --json
)help";

void add_sizes(CLI::App& command, Layer& layer) {
  const auto within = [](std::int64_t most) {
    return [most](const std::string& text) { return parse_integer(text, 1, most); };
  };
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 20, kMostColumns = 1 << 20;
  constexpr std::int64_t kMostExperts = 1024, kMostOfAll = 1 << 16;
  add_parsed(command, "-t,--tokens", "T", layer.tokens, within(kMostTokens),
             "Rows of x and y. Default: 64");
  add_parsed(command, "--hidden", "H", layer.hidden, within(kMostColumns),
             "Columns of x and y. Default: 2048");
  add_parsed(command, "--inner", "I", layer.inner, within(kMostColumns),
             "Columns between the products. Default: 768");
  add_parsed(command, "--experts", "E", layer.experts, within(kMostExperts),
             "Experts that are here. Default: 128");
  add_parsed(command, "--of", "N", layer.of, within(kMostOfAll),
             help_text("Experts that tokens are routed to, of which the first E are here. "
                       "Default: those that are here"));
  const auto top_k = [](const std::string& text) { return parse_count(text, 16); };
  add_parsed(command, "--top-k", "K", layer.top_k, top_k, "Experts of each token. Default: 8");
  add_parsed(command, "--routing", "R", layer.routing, parse_routing,
             help_text("To which experts tokens go: uniform (the default), zipf (the r-th most "
                       "wanted one by r^-1.2), or one-hot (all tokens to the same ones)"));
}

void add_measuring(CLI::App& command, MoeCommand& state) {
  add_timing(command, state.repeats, state.cuda);
  command.add_flag("--check", state.check, "Compare y of some tokens with float64");
  add_parsed(
      command, "--samples", "N", state.samples,
      [](const std::string& text) { return parse_count(text, 1 << 20); },
      "Tokens to check. Default: " + std::to_string(kSamples));
  add_threads(command, state.threads);
  add_json(command, state.json);
}

}  // namespace

Json layer_json(const Layer& layer) {
  Json json = {{"hidden", layer.hidden},
               {"inner", layer.inner},
               {"experts", layer.experts},
               {"of", layer.all_experts()},
               {"top_k", layer.top_k},
               {"recipe", recipe_traits(layer.recipe).name},
               {"activation", kInputTransformNames[static_cast<int>(layer.activation)]},
               {"dtype", format_traits(layer.dtype).name}};
  if (layer.activations) json["activations"] = recipe_traits(*layer.activations).name;
  return json;
}

Json routing_json(std::int64_t tokens, Routing routing, const Hit& hit) {
  return {{"tokens", tokens},
          {"routing", kRoutingNames[static_cast<int>(routing)]},
          {"rows", hit.rows},
          {"experts_hit", hit.experts},
          {"most_rows", hit.most}};
}

Json roofline_json(const GemmWork& work) {
  return {{"bytes", work.bytes}, {"operations", work.operations}};
}

void add_moe(CLI::App& app, Action& action) {
  const auto state = std::make_shared<MoeCommand>();
  CLI::App* const command =
      app.add_subcommand("moe", "Compute a mixture-of-experts layer, time it, and check it");
  add_sizes(*command, state->layer);
  add_layer_kind(*command, state->layer);
  add_measuring(*command, *state);
  command->footer(recipe_help() + kExamples);
  command->callback([&action, state] { action = [state] { return run(*state); }; });
}

}  // namespace blockscale::cli
