#include "arguments.h"

#include <array>

#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

constexpr std::array kMxScaleModes = {"floor", "ceil", "even", "even_e2m1"};
constexpr std::array<const char*, 3> kScaleChoices = {"amax", "mse", "weighted"};
constexpr std::array kPlainFormats = {Format::f32, Format::f16, Format::bf16};

std::string block_side(int side, const char* all) {
  return side == 0 ? all : std::to_string(side);
}

}  // namespace

std::size_t index_of(std::string_view name, const char* kind,
                     const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return i;
  }
  throw ParseError("'" + printable(name) + "' is no " + kind + "; choose one of " +
                   comma_list(names));
}

CLI::Option* add_json(CLI::App& app, bool& json) {
  return app.add_flag("--json", json, "Print one JSON object instead of text");
}

CLI::Option* add_threads(CLI::App& app, int& threads, int by_default) {
  threads = by_default;
  const auto parse = [](const std::string& text) {
    return static_cast<int>(parse_integer(text, 0, 4096));
  };
  return add_parsed(
      app, "--threads", "N", threads, parse,
      "Threads to use; 0 stands for all of the machine's. Default: " + std::to_string(by_default));
}

std::vector<std::string> recipe_names() {
  return names_of(kRecipes, [](const RecipeTraits& traits) { return traits.name; });
}

std::vector<std::string> scale_layout_names() {
  return names_of(kScaleLayouts, [](const ScaleLayoutTraits& traits) { return traits.name; });
}

Recipe parse_recipe(std::string_view name) {
  return kRecipes[index_of(name, "recipe", recipe_names())].recipe;
}

ScaleLayout parse_scale_layout(std::string_view name) {
  return kScaleLayouts[index_of(name, "scale layout", scale_layout_names())].layout;
}

std::vector<std::string> input_transform_names() {
  return {std::begin(kInputTransformNames), std::end(kInputTransformNames)};
}

InputTransform parse_input_transform(std::string_view name) {
  return static_cast<InputTransform>(index_of(name, "transform", input_transform_names()));
}

Format parse_plain_format(std::string_view name) {
  const auto name_of = [](Format format) { return format_traits(format).name; };
  return kPlainFormats[index_of(name, "dtype", names_of(kPlainFormats, name_of))];
}

bool parse_device(std::string_view name) {
  if (name == "cpu") return false;
  if (name == "cuda") return true;
  throw ParseError("'" + std::string(name) + "' is no device; choose cpu or cuda");
}

MxScaleMode parse_mx_scale_mode(std::string_view name) {
  static_assert(static_cast<int>(MxScaleMode::even_e2m1) + 1 == kMxScaleModes.size());
  return static_cast<MxScaleMode>(
      index_of(name, "scale mode", {kMxScaleModes.begin(), kMxScaleModes.end()}));
}

ScaleChoice parse_scale_choice(std::string_view name) {
  static_assert(static_cast<int>(ScaleChoice::weighted) + 1 == kScaleChoices.size());
  return static_cast<ScaleChoice>(
      index_of(name, "choice of scales", {kScaleChoices.begin(), kScaleChoices.end()}));
}

const char* scale_choice_name(ScaleChoice choice) {
  return kScaleChoices[static_cast<std::size_t>(choice)];
}

double bits_per_value(Recipe recipe) {
  const RecipeTraits& traits = recipe_traits(recipe);
  const double element_bits = format_traits(traits.element).bits;
  if (traits.block_k == 0 || traits.family == Family::plain) return element_bits;
  return element_bits + static_cast<double>(format_traits(traits.scale).bits) /
                            (static_cast<double>(traits.block_rows) * traits.block_k);
}

std::string recipe_help() {
  Table table({{"Recipe"}, {"Bits", Align::right}, {"Elements"}, {"One scale per rows x k"}});
  for (const RecipeTraits& traits : kRecipes) {
    std::string scales;
    if (traits.family != Family::plain) {
      scales = std::string(format_traits(traits.scale).name) + " per " +
               block_side(traits.block_rows, "all") + " x " + block_side(traits.block_k, "all");
      if (traits.power_of_two && traits.scale == Format::f32) scales += ", powers of two";
      if (traits.tensor_scale) scales += ", and one f32 per tensor";
    }
    table.add_row({traits.name, format_fixed(bits_per_value(traits.recipe), 2),
                   format_traits(traits.element).name, scales});
  }
  return table.str();
}

std::string parse_pattern(const std::string& text) {
  if (text.empty()) throw ParseError("a pattern must not be empty; '*' stands for every weight");
  return text;
}

std::string help_text(std::string_view text) {
  constexpr std::size_t kWidth = 66;
  std::string result;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (column != 0) {
      const bool fits = column + 1 + word.size() <= kWidth;
      result += fits ? " " : "\n";
      column = fits ? column + 1 : 0;
    }
    result += word;
    column += word.size();
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return result;
}

}  // namespace blockscale::cli
