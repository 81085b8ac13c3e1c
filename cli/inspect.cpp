// blockscale inspect: what is in a checkpoint, or how a scale layout lies in memory.
#include "inspect.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "blockscale/layout.h"
#include "command.h"
#include "listing.h"
#include "output.h"
#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

/// A tensor, and where its scales lie; empty if it has none.
struct Row {
  CheckpointTensor tensor;
  std::string layout;
};

constexpr std::array kColumns = {
    Column<Row>{"name", [](const Row& a, const Row& b) { return a.tensor.name < b.tensor.name; }},
    Column<Row>{"shape",
                [](const Row& a, const Row& b) {
                  return element_count(a.tensor.shape) > element_count(b.tensor.shape);
                }},
    Column<Row>{"recipe", [](const Row& a,
                             const Row& b) { return stored_as(a.tensor) < stored_as(b.tensor); }},
    Column<Row>{"layout", [](const Row& a, const Row& b) { return a.layout < b.layout; }},
    Column<Row>{"bytes",
                [](const Row& a, const Row& b) { return a.tensor.bytes > b.tensor.bytes; }},
};

/// Where the scales of a quantized tensor lie; not by a view, which could copy codes.
std::string cute_of(const CheckpointTensor& tensor) {
  const RecipeTraits& t = recipe_traits(tensor.recipe);
  const std::int64_t k = tensor.shape.back();
  const std::int64_t rows = tensor.shape[tensor.shape.size() - 2];
  const std::int64_t batch = element_count(tensor.shape) / (rows * k);
  return describe_scale_layout(tensor.scale_layout, rows, k,
                               t.block_rows == 0 ? rows : t.block_rows,
                               t.block_k == 0 ? k : t.block_k, 0, batch);
}

/// What was asked for of a checkpoint.
struct Selection {
  std::vector<CheckpointTensor> tensors;  // that --tensor chose; totals are over these
  std::vector<Row> rows;                  // that are shown
};

Selection select(const Checkpoint& checkpoint, const Listing<Row>& listing) {
  Selection selection{tensors_of(checkpoint, listing.patterns), {}};
  for (const CheckpointTensor& tensor : selection.tensors) {
    const bool has_view = tensor.quantized && tensor.form.empty();
    selection.rows.push_back(
        {tensor, has_view ? scale_layout_traits(tensor.scale_layout).name : ""});
  }
  selection.rows = listing.of(std::move(selection.rows));
  return selection;
}

struct Total {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;

  void add(const CheckpointTensor& tensor) {
    ++tensors;
    elements += element_count(tensor.shape);
    bytes += tensor.bytes;
  }
  double bits_per_element() const {
    return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
  }
};

struct Totals {
  std::map<std::string, Total> by_recipe;
  Total all;
};

Totals totals_of(const std::vector<CheckpointTensor>& tensors) {
  Totals totals;
  for (const CheckpointTensor& tensor : tensors) {
    totals.by_recipe[stored_as(tensor)].add(tensor);
    totals.all.add(tensor);
  }
  return totals;
}

std::uint64_t file_bytes(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const SafetensorsFile& file : checkpoint.store().files()) bytes += file.file_bytes();
  return bytes;
}

Json total_json(const Total& total) {
  return {{"tensors", total.tensors},
          {"elements", total.elements},
          {"bytes", total.bytes},
          {"bits_per_element", total.bits_per_element()}};
}

/// Scales that mean nothing, as lines.
std::vector<std::string> problems_of(const Checkpoint& checkpoint,
                                     const std::vector<CheckpointTensor>& tensors) {
  std::vector<std::string> problems;
  for (const CheckpointTensor& tensor : tensors) {
    const std::string problem = checkpoint.problem(tensor);
    if (!problem.empty()) problems.push_back(problem);
  }
  return problems;
}

Json checkpoint_json(const std::string& path, const Checkpoint& checkpoint,
                     const Selection& selection) {
  Json tensors = Json::array();
  for (const auto& [tensor, layout] : selection.rows) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"recipe", stored_as(tensor)},
                       {"quantized", tensor.quantized},
                       {"column_factors", tensor.column_factors},
                       {"form", tensor.form.empty() ? Json(nullptr) : Json(tensor.form)},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"layout", layout.empty() ? Json(nullptr) : Json(layout)},
                       {"cute", layout.empty() ? Json(nullptr) : Json(cute_of(tensor))},
                       {"bytes", tensor.bytes}});
  }
  const Totals totals = totals_of(selection.tensors);
  Json by_recipe = Json::object();
  for (const auto& [recipe, total] : totals.by_recipe) by_recipe[recipe] = total_json(total);
  Json files = Json::array();
  for (const SafetensorsFile& file : checkpoint.store().files()) {
    files.push_back({{"path", file.path().string()}, {"bytes", file.file_bytes()}});
  }
  return {{"path", path},
          {"dialect", dialect_name(checkpoint.dialect())},
          {"files", files},
          {"tensors", tensors},
          {"recipes", by_recipe},
          {"total", total_json(totals.all)},
          {"problems", problems_of(checkpoint, selection.tensors)}};
}

std::string tensor_table(const Selection& selection) {
  Table table({{"Tensor"}, {"Shape"}, {"Recipe"}, {"Scale layout"}, {"Bytes", Align::right}});
  for (const auto& [tensor, layout] : selection.rows) {
    table.add_row({tensor.name, shape_text(tensor.shape), stored_as(tensor),
                   tensor.form.empty() ? layout : tensor.form,
                   format_bytes(static_cast<double>(tensor.bytes))});
  }
  return table.str() + shown_text(selection.rows.size(), selection.tensors.size());
}

void add_total(Table& table, const std::string& name, const Total& total) {
  table.add_row({name, std::to_string(total.tensors),
                 format_count(static_cast<std::uint64_t>(total.elements)),
                 format_bytes(static_cast<double>(total.bytes)),
                 format_fixed(total.bits_per_element(), 2)});
}

std::string totals_table(const std::vector<CheckpointTensor>& tensors) {
  Table table({{"Recipe"},
               {"Tensors", Align::right},
               {"Elements", Align::right},
               {"Bytes", Align::right},
               {"Bits each", Align::right}});
  const Totals totals = totals_of(tensors);
  for (const auto& [recipe, total] : totals.by_recipe) add_total(table, recipe, total);
  table.add_rule();
  add_total(table, "total", totals.all);
  return table.str();
}

void print_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const Selection& selection) {
  const auto files = static_cast<std::int64_t>(checkpoint.store().files().size());
  std::string problems;
  for (const std::string& problem : problems_of(checkpoint, selection.tensors)) {
    problems += "damaged: " + printable(problem) + "\n";
  }
  print(tensor_table(selection) + "\n" + totals_table(selection.tensors) + "\n" + problems +
        printable(path) + ": " + dialect_name(checkpoint.dialect()) + " dialect, " +
        plural(files, "file") + " of " + format_bytes(static_cast<double>(file_bytes(checkpoint))) +
        "\n");
}

struct InspectCommand {
  std::string path;
  Listing<Row> listing;
  LayoutRequest layout;
  bool json = false;
};

ExitCode run(const InspectCommand& command) {
  if (command.layout.layout.has_value() == !command.path.empty()) {
    throw UsageError("give either PATH, or --layout and --shape");
  }
  if (command.layout.layout.has_value() && command.listing.is_given()) {
    throw UsageError("--tensor, --sort and --top go with PATH");
  }
  if (command.layout.layout.has_value()) return inspect_layout(command.layout, command.json);
  if (command.layout.has_details()) {
    throw UsageError(
        "--shape, --recipe, --group, --rows-per-scale, --leading-stride, --batch and --major go "
        "with --layout");
  }
  const Checkpoint checkpoint = Checkpoint::open(command.path);
  const Selection selection = select(checkpoint, command.listing);
  if (command.json) {
    print_json(checkpoint_json(command.path, checkpoint, selection));
  } else {
    print_checkpoint(command.path, checkpoint, selection);
  }
  return ExitCode::success;
}

constexpr const char* kExamples =
    R"help(A layout is printed in CuTe notation, shape:stride, from (row, k, batch) to the offset of its scale.

Examples:
  Tensors, recipes and sizes of a checkpoint:
    blockscale inspect ./minilm-nvfp4

  Its ten largest tensors:
    blockscale inspect ./minilm-nvfp4 --sort bytes --top 10

  The tcgen05 layout of the NVFP4 scales of a 256 x 128 matrix:
    blockscale inspect --layout swizzled_128x4 --shape 256x128 --recipe nvfp4
)help";

}  // namespace

std::string stored_as(const CheckpointTensor& tensor) {
  const bool plain =
      tensor.dtype == DType::F32 || tensor.dtype == DType::F16 || tensor.dtype == DType::BF16;
  if (tensor.quantized && tensor.dtype == DType::I8 && tensor.form.starts_with("int")) {
    return tensor.form.substr(0, 4);  // int8 or int4, which is no recipe
  }
  if (tensor.quantized || plain) return recipe_traits(tensor.recipe).name;
  return std::string(dtype_name(tensor.dtype));
}

void add_inspect(CLI::App& app, Action& action) {
  const auto state = std::make_shared<InspectCommand>();
  CLI::App* const command =
      app.add_subcommand("inspect", "Show what is in a checkpoint, or print a scale layout");
  command->add_option("PATH", state->path, "A checkpoint: a folder or a .safetensors file")
      ->option_text(" ");
  add_listing(*command, state->listing, kColumns);
  add_layout_options(*command, state->layout);
  add_json(*command, state->json);
  command->footer(kExamples);
  command->callback([&action, state] { action = [state] { return run(*state); }; });
}

}  // namespace blockscale::cli
