// Options that commands share, parsed strictly, and the lists in their help.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "blockscale/quantize.h"
#include "blockscale/tensor.h"
#include "units.h"

namespace blockscale::cli {

/// Adds an option whose one value goes through `parse` (which throws ParseError) into `out`.
/// The help calls the value `value_name`.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const char* value_name, T& out,
                        Parse parse, const std::string& description) {
  const auto assign = [&out, parse, names](const std::string& text) {
    try {
      out = parse(text);
    } catch (const ParseError& error) {
      throw CLI::ValidationError(names, error.what());
    }
  };
  return app.add_option_function<std::string>(names, assign, description)
      ->option_text(value_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

/// As add_parsed, for an option that may be given several times, with one value each.
template <class T, class Parse>
CLI::Option* add_repeated(CLI::App& app, const std::string& names, const char* value_name,
                          std::vector<T>& out, Parse parse, const std::string& description) {
  const auto assign = [&out, parse, names](const std::vector<std::string>& texts) {
    try {
      for (const std::string& text : texts) out.push_back(parse(text));
    } catch (const ParseError& error) {
      throw CLI::ValidationError(names, error.what());
    }
  };
  return app.add_option_function<std::vector<std::string>>(names, assign, description)
      ->option_text(value_name)
      ->allow_extra_args(false);
}

CLI::Option* add_json(CLI::App& app, bool& json);
/// `threads` is set to `by_default` at once.
CLI::Option* add_threads(CLI::App& app, int& threads, int by_default = 0);

/// The names of a table's entries, for index_of and for help.
template <class Table, class NameOf>
std::vector<std::string> names_of(const Table& table, NameOf name_of) {
  std::vector<std::string> names;
  names.reserve(std::size(table));
  for (const auto& entry : table) names.emplace_back(name_of(entry));
  return names;
}

/// The index of `name` in `names`; a name that is not there throws ParseError with all that are.
std::size_t index_of(std::string_view name, const char* kind,
                     const std::vector<std::string>& names);

/// Names to values, as index_of.
Recipe parse_recipe(std::string_view name);
ScaleLayout parse_scale_layout(std::string_view name);
InputTransform parse_input_transform(std::string_view name);
Format parse_plain_format(std::string_view name);  // f32, f16, bf16
bool parse_device(std::string_view name);          // cpu, cuda: whether it is a GPU
MxScaleMode parse_mx_scale_mode(std::string_view name);
ScaleChoice parse_scale_choice(std::string_view name);
/// A pattern of weight names, which is not empty.
std::string parse_pattern(const std::string& text);
const char* scale_choice_name(ScaleChoice choice);

std::vector<std::string> recipe_names();
std::vector<std::string> scale_layout_names();
std::vector<std::string> input_transform_names();

/// The table of recipes for a command's help: name, bits a value, what it is made of.
std::string recipe_help();

/// Bits that a value of `recipe` takes, its share of the block scales included.
double bits_per_value(Recipe recipe);

/// One description line broken at spaces, so that it fits beside the options of a help text.
std::string help_text(std::string_view text);

}  // namespace blockscale::cli
