// blockscale convert: a checkpoint in one recipe and dialect from one in any other.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "blockscale/convert.h"
#include "command.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

struct ConvertCommand {
  std::string source;
  std::string destination;
  ConvertOptions options;
  std::optional<std::filesystem::path> recipe_file;  // of --recipes
  bool json = false;
  bool quiet = false;
};

std::atomic<bool> stop_requested = false;

/// While it lives, the first SIGINT or SIGTERM only sets `stop_requested`; the second one kills, as
/// the default action is then back.
class StopSignals {
 public:
  StopSignals() {
    struct sigaction action{};
    action.sa_handler = [](int) { stop_requested = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
};
static_assert(std::atomic<bool>::is_always_lock_free);  // else not allowed in a signal handler

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What the library says that a caller can do, and how this command is told to.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kHints = {{
    {"overwrite replaces it", "--overwrite replaces it"},
    {"resume continues it", "the same command with --resume continues it"},
    {"run without resume to start anew", "the same command without --resume starts anew"},
    {"allow_nonfinite converts it by the rules of docs/numerics.md",
     "--allow-nonfinite converts it by the rules of docs/numerics.md, --exclude keeps that tensor "
     "as it is"},
}};

/// The library's message with its hint, at the end, in this command's words.
std::string with_advice(const Error& error) {
  std::string message = error.what();
  for (const auto& [said, ours] : kHints) {
    if (!message.ends_with(said)) continue;
    message.replace(message.size() - said.size(), said.size(), ours);
    break;
  }
  return message;
}

ConvertReport run_convert(const ConvertCommand& command) {
  const bool silent = command.json || command.quiet;
  Progress progress(stderr, silent ? Progress::Style::none : Progress::style_for(stderr));
  const StopSignals signals;
  ConvertOptions options = command.options;
  if (command.recipe_file) {
    const auto more = read_recipe_file(*command.recipe_file);
    options.map.insert(options.map.end(), more.begin(), more.end());
  }
  options.progress = [&](const ConvertProgress& state) {
    spdlog::trace("{} of {} bytes: {}", state.source_bytes_done, state.source_bytes_total,
                  printable(state.tensor));
    progress.update(state, seconds_now());
    return !stop_requested;
  };
  try {
    return convert(command.source, command.destination, options);
  } catch (const Error& error) {
    progress.finish();
    // The message already starts with the argument.
    throw Error(error.code(), "", with_advice(error));
  }
}

Json tensor_json(const ConvertedTensor& tensor) {
  return {{"name", tensor.name},
          {"converted", tensor.converted},
          {"source_recipe", recipe_traits(tensor.source_recipe).name},
          {"source_form", tensor.source_form.empty() ? Json(nullptr) : Json(tensor.source_form)},
          {"recipe", recipe_traits(tensor.recipe).name},
          {"reason", tensor.reason},
          {"rule", tensor.rule},
          {"source_bytes", tensor.source_bytes},
          {"bytes", tensor.bytes},
          {"error_ratio", tensor.error_ratio ? Json(*tensor.error_ratio) : Json()}};
}

Json report_json(const ConvertCommand& command, const ConvertReport& report) {
  Json tensors = Json::array();
  for (const ConvertedTensor& tensor : report.tensors) tensors.push_back(tensor_json(tensor));
  Json not_copied = Json::array();
  for (const NotCopied& file : report.not_copied) {
    not_copied.push_back({{"path", file.path}, {"bytes", file.bytes}, {"reason", file.reason}});
  }
  return {{"source", command.source},
          {"destination", command.destination},
          {"recipe", recipe_traits(command.options.recipe).name},
          {"source_dialect", dialect_name(report.source_dialect)},
          {"dialect", dialect_name(report.dialect)},
          {"source_bytes", report.source_bytes},
          {"bytes", report.bytes},
          {"shards_reused", report.shards_reused},
          {"partial_discarded", report.partial_discarded},
          {"seconds", report.seconds},
          {"scales", scale_choice_name(command.options.scales)},
          {"disk_bytes", report.disk_bytes},
          {"free_bytes", command.options.dry_run ? Json(report.free_bytes) : Json()},
          {"activations", report.activations},
          {"exact_blocks", report.exact_blocks},
          {"blocks", report.blocks},
          {"not_copied", not_copied},
          {"warnings", report.warnings},
          {"tensors", tensors}};
}

struct Sum {
  std::size_t tensors = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;

  void add(const ConvertedTensor& tensor) {
    ++tensors;
    source_bytes += tensor.source_bytes;
    bytes += tensor.bytes;
  }
};

void add_sum(Table& table, const std::string& name, const Sum& sum) {
  const double ratio =
      sum.bytes == 0 ? 1.0 : static_cast<double>(sum.source_bytes) / static_cast<double>(sum.bytes);
  table.add_row({name, std::to_string(sum.tensors),
                 format_bytes(static_cast<double>(sum.source_bytes)),
                 format_bytes(static_cast<double>(sum.bytes)), format_fixed(ratio, 2)});
}

/// One line a recipe, and one a reason for which tensors were kept.
std::string summary_table(const ConvertReport& report) {
  std::map<std::string, Sum> converted;
  std::map<std::string, Sum> kept;
  Sum total;
  for (const ConvertedTensor& tensor : report.tensors) {
    total.add(tensor);
    if (tensor.converted) {
      converted[recipe_traits(tensor.recipe).name].add(tensor);
    } else {
      kept[tensor.reason].add(tensor);
    }
  }
  Table table({{"Tensors"},
               {"Count", Align::right},
               {"Before", Align::right},
               {"After", Align::right},
               {"Ratio", Align::right}});
  for (const auto& [recipe, sum] : converted) add_sum(table, "to " + recipe, sum);
  for (const auto& [reason, sum] : kept) add_sum(table, "kept: " + reason, sum);
  table.add_rule();
  add_sum(table, "total", total);
  return table.str();
}

/// What stays behind, and what copies it.
std::string not_copied_table(const ConvertReport& report) {
  if (report.not_copied.empty()) return "";
  Table table({{"Not copied (see --copy-all)"}, {"Size", Align::right}, {"Reason"}});
  for (const NotCopied& file : report.not_copied) {
    table.add_row({printable(file.path), format_bytes(static_cast<double>(file.bytes)),
                   printable(file.reason)});
  }
  return "\n" + table.str();
}

/// What searched scales gained: over all layers, and those that gained most and least.
std::string gains_text(const ConvertReport& report) {
  std::vector<std::pair<double, std::string>> ratios;
  double logarithms = 0;
  for (const ConvertedTensor& tensor : report.tensors) {
    if (!tensor.error_ratio) continue;
    ratios.emplace_back(*tensor.error_ratio, tensor.name);
    logarithms += std::log(std::max(*tensor.error_ratio, 1e-300));
  }
  if (ratios.empty()) return "";
  const auto text_of = [](const auto& ratio) {
    return format_fixed(ratio.first, 3) + " (" + printable(ratio.second) + ")";
  };
  const auto [most, least] = std::ranges::minmax_element(ratios);
  return "\nsquared errors, of those with min-max scales: " +
         format_fixed(std::exp(logarithms / static_cast<double>(ratios.size())), 3) +
         " (geometric mean of " + plural(static_cast<std::int64_t>(ratios.size()), "layer") +
         "), from " + text_of(*most) + " to " + text_of(*least) + "\n";
}

/// Why a tensor is kept or converted: the reason, the rule, or `reason (rule)`.
std::string why(const ConvertedTensor& tensor) {
  if (tensor.reason.empty() || tensor.rule.empty()) return tensor.reason + tensor.rule;
  return tensor.reason + " (" + tensor.rule + ")";
}

/// How the result's inputs are quantized, a line for each recipe, and what was exact.
std::string activations_text(const ConvertReport& report) {
  std::string text;
  for (const std::string& line : report.activations) text += "activations of " + line + "\n";
  if (report.blocks > 0) {
    text += "mxfp4 to nvfp4 without loss: " + std::to_string(report.exact_blocks) + " of " +
            plural(report.blocks, "block") + "\n";
  }
  return text.empty() ? "" : "\n" + text;
}

/// One line a tensor: what becomes of it, and why.
std::string decisions_table(const ConvertReport& report) {
  Table table(
      {{"Tensor"}, {"From"}, {"To"}, {"Before", Align::right}, {"After", Align::right}, {"Why"}});
  for (const ConvertedTensor& tensor : report.tensors) {
    table.add_row(
        {printable(tensor.name),
         tensor.source_form.empty() ? recipe_traits(tensor.source_recipe).name : tensor.source_form,
         tensor.converted ? recipe_traits(tensor.recipe).name : "kept",
         format_bytes(static_cast<double>(tensor.source_bytes)),
         format_bytes(static_cast<double>(tensor.bytes)), printable(why(tensor))});
  }
  return table.str() + "\n";
}

/// In place of a report: nothing was written.
void print_dry_run(const ConvertCommand& command, const ConvertReport& report) {
  const bool unknown = report.free_bytes == ~std::uint64_t{0};
  std::string text = decisions_table(report) + summary_table(report) + activations_text(report) +
                     not_copied_table(report) + "\n" + printable(command.destination) +
                     " would need " + format_bytes(static_cast<double>(report.disk_bytes)) +
                     " in the " + dialect_name(report.dialect) + " dialect; ";
  text += unknown ? "what its file system has free is not known"
                  : format_bytes(static_cast<double>(report.free_bytes)) + " are free there" +
                        (report.free_bytes < report.disk_bytes ? ", which is too little" : "");
  print(text + ". Nothing was written.\n");
}

void print_report(const ConvertCommand& command, const ConvertReport& report) {
  const double rate =
      report.seconds > 0 ? static_cast<double>(report.source_bytes) / report.seconds : 0;
  std::string text = summary_table(report) + gains_text(report) + activations_text(report) +
                     not_copied_table(report) + "\n" + printable(command.destination) + ": " +
                     dialect_name(report.dialect) + " dialect (from " +
                     dialect_name(report.source_dialect) + "), in " +
                     format_duration(report.seconds) + ", " + format_bytes(rate) + "/s";
  if (report.shards_reused > 0) {
    text += ", " + plural(report.shards_reused, "finished shard") + " kept from before";
  }
  if (report.partial_discarded) {
    text += "; an unfinished conversion was discarded (--resume would have continued it)";
  }
  print(text + "\n");
}

void log_tensors(const ConvertReport& report) {
  for (const ConvertedTensor& tensor : report.tensors) {
    const std::string fate =
        tensor.converted ? std::string("to ") + recipe_traits(tensor.recipe).name : "kept";
    const std::string text = why(tensor);
    const std::string reason = text.empty() ? "" : ", " + printable(text);
    const std::string gain =
        tensor.error_ratio ? ", squared error x " + format_fixed(*tensor.error_ratio, 3) : "";
    spdlog::debug("{}: {}{}{}", printable(tensor.name), fate, reason, gain);
  }
}

ExitCode run(const ConvertCommand& command) {
  const ConvertReport report = run_convert(command);
  log_tensors(report);
  if (!command.quiet) {
    for (const std::string& warning : report.warnings) spdlog::warn("{}", printable(warning));
  }
  if (command.json) {
    print_json(report_json(command, report));
  } else if (!command.quiet) {
    (command.options.dry_run ? print_dry_run : print_report)(command, report);
  }
  return ExitCode::success;
}

constexpr std::array kDialects = {Dialect::plain, Dialect::deepseek, Dialect::modelopt,
                                  Dialect::compressed_tensors, Dialect::lightx2v};

std::vector<std::string> dialect_names() {
  return names_of(kDialects, dialect_name);
}

Dialect parse_dialect(const std::string& name) {
  return kDialects[index_of(name, "dialect", dialect_names())];
}

/// "PATTERN=RECIPE". The last '=' separates, so that a pattern may hold one.
std::pair<std::string, Recipe> parse_mapping(const std::string& text) {
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    throw ParseError("'" + printable(text) +
                     "' is no mapping; write PATTERN=RECIPE, such as "
                     "'*.experts.*=mxfp4'");
  }
  return {text.substr(0, equals), parse_recipe(std::string_view(text).substr(equals + 1))};
}

constexpr std::array kActivations = {Activations::none, Activations::dynamic,
                                     Activations::calibrated};

Activations parse_activations(const std::string& name) {
  return kActivations[index_of(name, "choice of activations",
                               names_of(kActivations, activations_name))];
}

constexpr std::array kExpertsLayouts = {ExpertsLayout::out_in, ExpertsLayout::in_out};

ExpertsLayout parse_experts_layout(const std::string& name) {
  return kExpertsLayouts[index_of(name, "layout of experts", {"out-in", "in-out"})];
}

UnusedInputs parse_unused_inputs(const std::string& name) {
  constexpr std::array kChoices = {UnusedInputs::drop, UnusedInputs::one};
  return kChoices[index_of(name, "choice for unused inputs", {"drop", "one"})];
}

constexpr const char* kExamples = R"help(
Examples:
  NVFP4 weights that compressed-tensors, and so vLLM and transformers, can load:
    blockscale convert ./all-MiniLM-L6-v2 ./minilm-nvfp4 --recipe nvfp4

  The 128 x 128 blocks of DeepSeek, but the attention kept as it is:
    blockscale convert ./all-MiniLM-L6-v2 ./minilm-fp8 --recipe fp8_128x128 \
        --dialect deepseek --exclude '*.attention.*'

  Experts in MXFP4, all other linear layers in MXFP8, continued after an interruption:
    blockscale convert ./moe ./moe-mx --recipe mxfp8_e4m3 --map '*.experts.*=mxfp4' --resume
)help";

void add_selection_options(CLI::App& command, ConvertOptions& options,
                           std::optional<std::filesystem::path>& recipe_file) {
  add_repeated(command, "--include", "PATTERN", options.include, parse_pattern,
               help_text("Convert the weights whose names match, instead of the default choice "
                         "(2-D weights of linear layers and stacked experts; not embeddings, "
                         "norms, biases, lm_head and routers). A glob, or re: and a regular "
                         "expression, as in llm-compressor. Repeatable"));
  add_repeated(command, "--exclude", "PATTERN", options.exclude, parse_pattern,
               help_text("Keep the weights whose names match as they are. Repeatable"));
  add_repeated(command, "--map", "PATTERN=RECIPE", options.map, parse_mapping,
               help_text("Use RECIPE for the weights whose names match; the first match wins. "
                         "Repeatable"));
  add_parsed(
      command, "--recipes", "FILE", recipe_file,
      [](const std::string& text) { return std::filesystem::path(text); },
      help_text("As --map, for the lines \"PATTERN\": RECIPE of a YAML file, or the members "
                "of a JSON object; after those of --map"));
  add_parsed(command, "--experts-layout", "LAYOUT", options.experts_layout, parse_experts_layout,
             help_text("How stacks of experts are stored: out-in ([experts, out, in]) or in-out, "
                       "which stay plain. Default: as the model type does"));
  command.add_flag("--share-tensor-scales", options.share_tensor_scales,
                   help_text("Quantize weights anew that engines fuse (q, k and v; gate and up) "
                             "and whose NVFP4 tensor scales differ in SRC"));
}

void add_numeric_options(CLI::App& command, ConvertOptions& options) {
  add_parsed(
      command, "--activation-scales", "FILE", options.activation_scales,
      [](const std::string& text) { return std::filesystem::path(text); },
      help_text("Largest magnitude of each layer's input: JSON or safetensors, weight name "
                "-> absmax. Of recipes with static activations (below)"));
  add_parsed(command, "--activations", "CHOICE", options.activations, parse_activations,
             help_text("How engines quantize inputs: none, dynamic, or static (nvfp4, fp8_tensor "
                       "and fp8_row, with --activation-scales). Default: as SRC has it; of a plain "
                       "SRC as llm-compressor's presets: dynamic for fp8_row, fp8_128x128, mxfp4 "
                       "and mxfp8_e4m3, static for nvfp4 and fp8_tensor if scales are given"));
  add_parsed(command, "--unused-inputs", "CHOICE", options.unused_inputs, parse_unused_inputs,
             help_text("What becomes of input scales of 0 in SRC, of experts that no token reached "
                       "in calibration: drop (the default, and with them those of all weights of "
                       "the recipe), or one, which stores 1"));
  add_parsed(command, "--scales", "CHOICE", options.scales, parse_scale_choice,
             help_text("Which scale a block takes in MX recipes and nvfp4: amax (the default, from "
                       "its largest magnitude), mse (of the least squared error), or weighted (the "
                       "same, with errors weighted by --calibration). Every engine reads them"));
  add_parsed(
      command, "--calibration", "FILE", options.calibration,
      [](const std::string& text) { return std::filesystem::path(text); },
      help_text("For --scales weighted: mean squares and means of each layer's input channels, a "
                "safetensors file that blockscale.Calibrator writes"));
  add_parsed(command, "--scale-mode", "MODE", options.mx_scale_mode, parse_mx_scale_mode,
             help_text("How MX recipes round the shared exponent: floor, ceil, even or even_e2m1. "
                       "Default: ceil; for compressed-tensors even, even_e2m1 for mxfp8"));
  add_parsed(
      command, "--amax-floor", "X", options.fp8_amax_floor,
      [](const std::string& text) { return static_cast<float>(parse_number(text, 0.0, 1e30)); },
      help_text("FP8 recipes: the largest magnitude of a block counts as at least X (1e-4 "
                "as DeepSeek does; default 0)"));
  command.add_flag("--allow-nonfinite", options.allow_nonfinite,
                   help_text("Quantize NaN and Inf by the rules of docs/numerics.md instead of "
                             "refusing them"));
}

void add_output_options(CLI::App& command, ConvertOptions& options) {
  add_parsed(command, "--shard-size", "SIZE", options.shard_bytes, parse_bytes,
             "Largest size of one file, such as 5GB (the default) or 512MiB");
  add_parsed(command, "--memory", "SIZE", options.memory_bytes, parse_bytes,
             "Resident memory to stay under, beside mapped files. Default: 2GiB");
  add_threads(command, options.threads);
  command.add_flag("--resume", options.resume,
                   help_text("Continue an interrupted conversion with the same options; shards "
                             "that are complete are kept"));
  command.add_flag("--overwrite", options.overwrite,
                   help_text("Replace DST if it exists: a regular file, or a folder that is empty "
                             "or holds a checkpoint"));
  command.add_flag("--dry-run", options.dry_run,
                   help_text("Print what would become of each tensor and why, the size of the "
                             "result and what is free; write nothing"));
  command.add_flag("--copy-all", options.copy_all,
                   help_text("Copy the files of SRC that hold other weights too (*.bin, *.pth, "
                             "*.gguf, original/, onnx/, ...), which the report lists else"));
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  const auto state = std::make_shared<ConvertCommand>();
  CLI::App* const command =
      app.add_subcommand("convert", "Write a checkpoint's weights in another recipe");
  command
      ->add_option("SRC", state->source,
                   help_text("Checkpoint to read: a folder, a .safetensors file, or a model of a "
                             "Hugging Face cache (models--ORG--NAME)"))
      ->option_text(" ")
      ->required();
  command->add_option("DST", state->destination, "What to write: a folder, or a file if SRC is one")
      ->option_text(" ")
      ->required();
  add_parsed(*command, "--recipe", "R", state->options.recipe, parse_recipe,
             help_text("Recipe of the weights (table below); f32, f16 and bf16 dequantize. "
                       "Required"))
      ->required();
  add_parsed(*command, "--dialect", "D", state->options.dialect, parse_dialect,
             help_text("How it is named and described on disk: " + comma_list(dialect_names()) +
                       ". Default: the one that suits the recipe"));
  add_selection_options(*command, state->options, state->recipe_file);
  add_numeric_options(*command, state->options);
  add_output_options(*command, state->options);
  command->add_flag("--quiet", state->quiet, "Print nothing but errors");
  add_json(*command, state->json);
  command->footer(recipe_help() + kExamples);
  command->callback([&action, state] { action = [state] { return run(*state); }; });
}

}  // namespace blockscale::cli
