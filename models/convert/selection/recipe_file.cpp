// Files that map patterns of weight names to recipes: JSON, or the YAML of a flat mapping.
#include <algorithm>
#include <set>

#include "blockscale/convert.h"
#include "blockscale/files.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale {
namespace {

using RecipeMap = std::vector<std::pair<std::string, Recipe>>;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

[[noreturn]] void fail(const std::string& file, const std::string& message) {
  throw Error(ErrorCode::corrupt_file, file, message);
}

Recipe recipe_named(const std::string& file, const std::string& where, std::string_view name) {
  std::string names;
  for (const RecipeTraits& t : kRecipes) {
    if (name == t.name) return t.recipe;
    names += (names.empty() ? "" : ", ") + std::string(t.name);
  }
  fail(file, where + quote(name) + " is no recipe, must be one of " + names);
}

RecipeMap from_json(const std::string& file, std::string_view text) {
  const auto checked = parse_json(text, file, {kMostBytes, 4});
  if (!checked.is_object()) fail(file, "must hold a JSON object of pattern -> recipe");
  for (const auto& [pattern, recipe] : checked.items()) {
    if (pattern.empty()) fail(file, "has an empty pattern; \"*\" stands for every weight");
    if (!recipe.is_string()) fail(file, quote(pattern) + " must be the name of a recipe");
  }
  RecipeMap result;
  const auto in_order = nlohmann::ordered_json::parse(text);
  for (const auto& [pattern, recipe] : in_order.items()) {
    result.emplace_back(pattern, recipe_named(file, "", recipe.get_ref<const std::string&>()));
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Reads the scalars of one line of a YAML mapping.
class YamlLine {
 public:
  YamlLine(const std::string& file, int number, std::string_view line)
      : file_(file), where_("line " + std::to_string(number) + ": "), rest_(line) {}

  const std::string& where() const { return where_; }

  /// A quoted scalar, or what comes before `end` (a colon and a space; a comment); takes it.
  std::string scalar(std::string_view end) {
    rest_ = trimmed(rest_);
    if (!rest_.empty() && (rest_[0] == '"' || rest_[0] == '\'')) return quoted();
    if (!rest_.empty() && std::string_view("*&!|>%@`[]{},?#-").find(rest_[0]) != rest_.npos) {
      refuse("YAML gives " + quote(rest_.substr(0, 1)) + " a meaning here; quote the text");
    }
    const std::size_t length = std::min(rest_.find(end), rest_.size());
    const std::string result(trimmed(rest_.substr(0, length)));
    rest_.remove_prefix(length);
    return result;
  }

  void take_colon() {
    rest_ = trimmed(rest_);
    const bool is_colon = rest_.starts_with(':') && (rest_.size() == 1 || rest_[1] == ' ');
    if (!is_colon) refuse("must be PATTERN: RECIPE");
    rest_.remove_prefix(1);
  }

  void expect_end() const {
    const std::string_view left = trimmed(rest_);
    if (!left.empty() && left[0] != '#') refuse(quote(left) + " follows the recipe");
  }

  [[noreturn]] void refuse(const std::string& message) const { fail(file_, where_ + message); }

 private:
  /// In single quotes '' is a quote; in double ones a backslash keeps the next character.
  std::string quoted() {
    const char mark = rest_[0];
    std::string result;
    std::size_t i = 1;
    for (; i < rest_.size(); ++i) {
      if (rest_[i] == mark) {
        if (mark != '\'' || i + 1 == rest_.size() || rest_[i + 1] != mark) break;
        ++i;
      } else if (rest_[i] == '\\' && mark == '"') {
        ++i;
        const bool known = i < rest_.size() && (rest_[i] == '\\' || rest_[i] == '"');
        if (!known) refuse("of escapes only \\\\ and \\\" are read; use single quotes");
      }
      result += rest_[i];
    }
    if (i == rest_.size()) refuse("a quote is not closed");
    rest_.remove_prefix(i + 1);
    return result;
  }

  const std::string& file_;
  const std::string where_;
  std::string_view rest_;
};

RecipeMap from_yaml(const std::string& file, std::string_view text) {
  if (text.size() > kMostBytes) {
    fail(file, "has " + std::to_string(text.size()) + " bytes, must have at most " +
                   std::to_string(kMostBytes));
  }
  if (text.find('\0') != std::string_view::npos) fail(file, "holds a NUL byte");
  if (!is_utf8(text)) fail(file, "is not UTF-8");
  RecipeMap result;
  std::set<std::string> patterns;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(text.size(), length + 1));
    const std::string_view content = trimmed(line);
    const bool is_start = result.empty() && content == "---";
    if (content.empty() || content[0] == '#' || is_start) continue;
    YamlLine reader(file, number, line);
    if (line[0] == ' ' || line[0] == '\t')
      reader.refuse("is indented; only a flat mapping is read");
    const std::string pattern = reader.scalar(": ");
    if (pattern.empty()) reader.refuse("has an empty pattern; \"*\" stands for every weight");
    reader.take_colon();
    const std::string recipe = reader.scalar(" #");
    reader.expect_end();
    if (!patterns.insert(pattern).second) reader.refuse(quote(pattern) + " was there before");
    result.emplace_back(pattern, recipe_named(file, reader.where(), recipe));
  }
  return result;
}

}  // namespace

std::vector<std::pair<std::string, Recipe>> read_recipe_file(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const std::string name = path.string();
  const std::string extension = path.extension().string();
  const bool is_json = extension == ".json";
  if (!is_json && extension != ".yaml" && extension != ".yml") {
    throw Error(ErrorCode::invalid_argument, name, "must end in .json, .yaml or .yml");
  }
  RecipeMap result = is_json ? from_json(name, text) : from_yaml(name, text);
  if (result.empty()) fail(name, "has no pattern");
  return result;
}

}  // namespace blockscale
