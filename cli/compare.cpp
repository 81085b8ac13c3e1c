// blockscale compare: what a conversion cost, tensor by tensor.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "blockscale/convert.h"
#include "command.h"
#include "html_report.h"
#include "listing.h"
#include "output.h"
#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

using Compared = TensorComparison;

/// Ruined, then from the smallest on, then equal, then not compared.
bool has_lower_sqnr(const Compared& a, const Compared& b) {
  const auto place = [](const Compared& tensor) -> std::pair<int, double> {
    switch (tensor.status) {
      case ComparisonStatus::ruined: return {0, 0};
      case ComparisonStatus::differs: return {1, tensor.sqnr_db};
      case ComparisonStatus::equal: return {2, 0};
      case ComparisonStatus::not_compared: break;
    }
    return {3, 0};
  };
  return place(a) < place(b);
}

/// An error as a number that sorts: NaN of ruined tensors is the largest, of others the smallest.
double sortable(const Compared& tensor, double error) {
  if (!std::isnan(error)) return error;
  return tensor.status == ComparisonStatus::ruined ? HUGE_VAL : -1;
}

constexpr std::array kColumns = {
    Column<Compared>{"name", [](const Compared& a, const Compared& b) { return a.name < b.name; }},
    Column<Compared>{"shape",
                     [](const Compared& a, const Compared& b) {
                       return element_count(a.shape) > element_count(b.shape);
                     }},
    Column<Compared>{"recipe_a",
                     [](const Compared& a, const Compared& b) { return a.recipe_a < b.recipe_a; }},
    Column<Compared>{"recipe_b",
                     [](const Compared& a, const Compared& b) { return a.recipe_b < b.recipe_b; }},
    Column<Compared>{"sqnr", has_lower_sqnr},
    Column<Compared>{"max_error",
                     [](const Compared& a, const Compared& b) {
                       return sortable(a, a.max_error) > sortable(b, b.max_error);
                     }},
    Column<Compared>{"mean_error",
                     [](const Compared& a, const Compared& b) {
                       return sortable(a, a.mean_error) > sortable(b, b.mean_error);
                     }},
    Column<Compared>{"bytes_a",
                     [](const Compared& a, const Compared& b) { return a.bytes_a > b.bytes_a; }},
    Column<Compared>{"bytes_b",
                     [](const Compared& a, const Compared& b) { return a.bytes_b > b.bytes_b; }},
};

struct CompareCommand {
  std::string a;
  std::string b;
  std::string html;        // empty: none
  std::string conversion;  // of --conversion
  Listing<TensorComparison> listing;
  int threads = 0;
  bool overwrite = false;
  bool json = false;
};

/// SQNR, or a word where it is no number: the same in the table and in JSON.
std::string sqnr_text(const TensorComparison& comparison) {
  switch (comparison.status) {
    case ComparisonStatus::equal: return "equal";
    case ComparisonStatus::differs:
    case ComparisonStatus::ruined: return format_fixed(comparison.sqnr_db, 2);
    case ComparisonStatus::not_compared: break;
  }
  return "not compared";
}

/// JSON has neither NaN nor infinities.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json comparison_json(const TensorComparison& comparison) {
  return {{"status", comparison_status_name(comparison.status)},
          {"sqnr", sqnr_text(comparison)},
          {"sqnr_db", number(comparison.sqnr_db)},
          {"signal", number(comparison.signal)},
          {"noise", number(comparison.noise)},
          {"max_error", number(comparison.max_error)},
          {"mean_error", number(comparison.mean_error)},
          {"bytes_a", comparison.bytes_a},
          {"bytes_b", comparison.bytes_b}};
}

Json report_json(const CompareCommand& command, const CompareReport& report) {
  Json tensors = Json::array();
  for (const TensorComparison& comparison : command.listing.of(report.tensors)) {
    Json tensor = {{"name", comparison.name},
                   {"shape", comparison.shape},
                   {"recipe_a", comparison.recipe_a},
                   {"recipe_b", comparison.recipe_b},
                   {"converted", comparison.converted}};
    tensor.update(comparison_json(comparison));
    tensors.push_back(tensor);
  }
  Json total = {{"converted_tensors", report.converted}};
  total.update(comparison_json(report.total));
  Json json = {{"a", command.a},
               {"b", command.b},
               {"tensors", tensors},
               {"total", total},
               {"only_a", report.only_a},
               {"only_b", report.only_b},
               {"different_shape", report.different_shape}};
  if (!command.html.empty()) json["html"] = command.html;
  return json;
}

void add_comparison(Table& table, const TensorComparison& comparison, const std::string& name,
                    const std::string& shape) {
  const bool ruined = comparison.status == ComparisonStatus::ruined;
  const bool compared = comparison.status != ComparisonStatus::not_compared;
  table.add_row({name, shape, comparison.recipe_a, comparison.recipe_b, sqnr_text(comparison),
                 compared ? format_significant(comparison.max_error, 3) : "",
                 compared ? format_significant(comparison.mean_error, 3) : "",
                 format_bytes(static_cast<double>(comparison.bytes_a)),
                 format_bytes(static_cast<double>(comparison.bytes_b))},
                ruined && has_colour(stdout) ? Colour::red : Colour::none);
}

std::string ruined_text(const CompareReport& report) {
  const std::int64_t count =
      std::ranges::count(report.tensors, ComparisonStatus::ruined, &TensorComparison::status);
  if (count == 0) return {};
  return plural(count, "tensor") + (count == 1 ? " is" : " are") +
         " ruined: NaN or infinity in one checkpoint only, or values where A has only zeros\n";
}

std::string unmatched_text(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string text = title + ":\n";
  for (const std::string& name : names) text += "  " + printable(name) + "\n";
  return text;
}

void print_report(const CompareCommand& command, const CompareReport& report) {
  Table table({{"Tensor"},
               {"Shape"},
               {"A"},
               {"B"},
               {"SQNR dB", Align::right},
               {"Max error", Align::right},
               {"Mean error", Align::right},
               {"Bytes A", Align::right},
               {"Bytes B", Align::right}});
  const std::vector<TensorComparison> shown = command.listing.of(report.tensors);
  for (const TensorComparison& comparison : shown) {
    add_comparison(table, comparison, comparison.name, shape_text(comparison.shape));
  }
  table.add_rule();
  add_comparison(table, report.total, "total of " + plural(report.converted, "converted tensor"),
                 "");
  print(table.str() + shown_text(shown.size(), report.tensors.size()) + ruined_text(report) +
        unmatched_text("Only in A", report.only_a) + unmatched_text("Only in B", report.only_b) +
        unmatched_text("In both, but of different shapes", report.different_shape));
  if (!command.html.empty()) print("\nThe same with plots: " + printable(command.html) + "\n");
}

ExitCode run(const CompareCommand& command) {
  const HtmlReport html = {
      command.a,          command.b,       command.html,     command.listing.patterns,
      command.conversion, command.threads, command.overwrite};
  if (!command.html.empty()) check_html_output(html);
  const CompareReport report =
      compare(command.a, command.b, command.threads, command.listing.patterns);
  if (!command.html.empty()) write_html_report(html);
  if (command.json) {
    print_json(report_json(command, report));
  } else {
    print_report(command, report);
  }
  return ExitCode::success;
}

constexpr const char* kExamples =
    R"help(SQNR is 10 log10(sum a^2 / sum (a - b)^2) in dB: higher is better, 6 dB are one bit. Values
are compared as they dequantize, whatever their recipes and dialects. A tensor is ruined where SQNR
is NaN or -inf: NaN or infinity in one checkpoint only, or values where A has only zeros. Ruined
ones come first. The total counts converted tensors: of another recipe or dtype, or other values.

--html's page is of the tensors that --tensor chooses. It needs the Python package with its plots
(pip install '.[report]' in a checkout), of the Python that BLOCKSCALE_PYTHON names, else of python3
on PATH.

Examples:
  What NVFP4 cost:
    blockscale compare ./model ./model-nvfp4

  The same as a page with plots, to look at or to send:
    blockscale compare ./model ./model-nvfp4 --html nvfp4.html

  The five layers that lost most, ruined ones first:
    blockscale compare ./model ./model-nvfp4 --sort sqnr --top 5
)help";

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  const auto state = std::make_shared<CompareCommand>();
  CLI::App* const command =
      app.add_subcommand("compare", "Measure how far one checkpoint's values are from another's");
  command->add_option("A", state->a, "The reference: a folder or a .safetensors file")
      ->option_text(" ")
      ->required();
  command->add_option("B", state->b, "What is measured against it")->option_text(" ")->required();
  CLI::Option* const html = command->add_option(
      "--html", state->html,
      help_text("Write a self-contained HTML page with plots to this file as well"));
  CLI::Option* const conversion = command->add_option(
      "--conversion", state->conversion,
      help_text(
          "What convert --json printed when it made B with --scales mse or weighted: the page "
          "then shows each layer's gain"));
  for (CLI::Option* const option : {html, conversion}) {
    option->option_text("FILE")->check([](const std::string& text) {
      return text.empty() ? std::string("is empty, must name a file") : std::string();
    });
  }
  conversion->needs(html);
  command->add_flag("--overwrite", state->overwrite, "Replace FILE if it exists")->needs(html);
  add_listing(*command, state->listing, kColumns);
  add_threads(*command, state->threads);
  add_json(*command, state->json);
  command->footer(kExamples);
  command->callback([&action, state] { action = [state] { return run(*state); }; });
}

}  // namespace blockscale::cli
