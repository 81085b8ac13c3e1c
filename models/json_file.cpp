#include "models/json_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "models/text.h"

namespace blockscale {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<std::pair<std::string_view, double>, 3> kNonFinite = {{
    {"NaN", std::numeric_limits<double>::quiet_NaN()},
    {"-Infinity", -kInfinity},
    {"Infinity", kInfinity},
}};

/// Behind the string that starts at text[begin].
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

/// Numbers that are no JSON, by how many strings (names too) come before each in the text.
using NonFinite = std::vector<std::pair<std::size_t, double>>;

/// Puts an empty string, as long as the number with the spaces behind it, in the place of each.
NonFinite take_nonfinite(std::string& text) {
  NonFinite found;
  std::size_t strings = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto word = std::find_if(kNonFinite.begin(), kNonFinite.end(), [&](const auto& number) {
      return text.compare(i, number.first.size(), number.first) == 0;
    });
    if (word != kNonFinite.end()) {
      found.emplace_back(strings++, word->second);
      text.replace(i, 2, "\"\"")
          .replace(i + 2, word->first.size() - 2, word->first.size() - 2, ' ');
      i += word->first.size();
    } else if (text[i] == '"') {
      ++strings;
      i = end_of_string(text, i);
    } else {
      ++i;
    }
  }
  return found;
}

/// The words of `value`, in order, that nlohmann-json writes as null.
void list_nulls(const nlohmann::json& value, std::vector<std::string_view>& words) {
  if (value.is_structured()) {
    for (const nlohmann::json& element : value) list_nulls(element, words);
  } else if (value.is_null()) {
    words.emplace_back("null");
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    words.push_back(std::isnan(number) ? kNonFinite[0].first
                                       : kNonFinite[number < 0 ? 1 : 2].first);
  }
}

std::string dump(const nlohmann::json& value, int indent, bool ascii) {
  const std::string text = value.dump(indent, ' ', ascii);
  std::vector<std::string_view> words;
  list_nulls(value, words);
  std::string result;
  std::size_t word = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = text[i] == '"' ? end_of_string(text, i) : i + 1;
    const bool null = text.compare(i, 4, "null") == 0;
    result += null ? words[word++] : std::string_view(text).substr(i, end - i);
    i = null ? i + 4 : end;
  }
  return result;
}

/// Follows the parser and refuses deep nesting and duplicate names while the value is built; puts
/// numbers that are not finite in their places.
class ShapeGuard {
 public:
  ShapeGuard(const std::string& file, int max_depth, const NonFinite& numbers)
      : file_(file), max_depth_(max_depth), number_(numbers.begin()), end_(numbers.end()) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    const bool is_number = parsed.is_string() && number_ != end_ && number_->first == strings_;
    if (parsed.is_string() && (event == Event::key || event == Event::value)) ++strings_;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= max_depth_) {
          throw Error(ErrorCode::corrupt_file, file_,
                      "JSON is nested deeper than " + std::to_string(max_depth_) + " levels");
        }
        if (event == Event::object_start) names_.emplace_back();
        break;
      case Event::key: {
        if (is_number)
          throw Error(ErrorCode::corrupt_file, file_, "JSON names a member by no text");
        const auto& name = parsed.get_ref<const std::string&>();
        if (!names_.back().insert(name).second) {
          throw Error(ErrorCode::corrupt_file, file_,
                      "JSON object names " + quote(name) + " more than once");
        }
        break;
      }
      case Event::object_end: names_.pop_back(); break;
      case Event::array_end: break;
      case Event::value:
        if (is_number) parsed = (number_++)->second;
        break;
    }
    return true;
  }

 private:
  const std::string& file_;
  int max_depth_;
  NonFinite::const_iterator number_, end_;    // the next one
  std::size_t strings_ = 0;                   // that came by
  std::vector<std::set<std::string>> names_;  // one set an open object
};

}  // namespace

std::string show_json(const nlohmann::json& value, std::size_t max_bytes) {
  std::string text = dump(value, -1, true);
  if (text.size() > max_bytes) text.replace(max_bytes, std::string::npos, "...");
  return text;
}

std::string json_text(const nlohmann::json& value) {
  return dump(value, 2, false);
}

void check_json_text(std::string_view text, const std::string& file, std::uint64_t max_bytes) {
  if (text.size() > max_bytes) {
    throw Error(ErrorCode::corrupt_file, file,
                "JSON of " + std::to_string(text.size()) + " bytes exceeds the limit of " +
                    std::to_string(max_bytes));
  }
  // nlohmann-json takes NUL for the end of the input and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::corrupt_file, file,
                "JSON holds a NUL byte at position " + std::to_string(nul));
  }
}

void fail_json_syntax(const std::string& file, std::size_t position, const std::exception& error) {
  std::string_view reason = error.what();
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
  if (const std::size_t start = reason.find(": "); start != std::string_view::npos) {
    reason.remove_prefix(start + 2);
  }
  std::string shown = quote(reason, 160);
  throw Error(ErrorCode::corrupt_file, file,
              "not valid JSON at byte " + std::to_string(position) + ": " + shown);
}

nlohmann::json parse_json(std::string_view text, const std::string& file,
                          const JsonLimits& limits) {
  check_json_text(text, file, limits.bytes);
  std::string json(text);
  const NonFinite numbers = take_nonfinite(json);
  ShapeGuard guard(file, limits.depth, numbers);
  try {
    return nlohmann::json::parse(
        json.begin(), json.end(),
        [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          return guard(depth, event, parsed);
        });
  } catch (const nlohmann::json::parse_error& error) {
    fail_json_syntax(file, error.byte, error);
  } catch (const nlohmann::json::exception& error) {  // a number out of range
    fail_json_syntax(file, 0, error);
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const MappedFile file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  return parse_json(text, path.string(), limits);
}

}  // namespace blockscale
