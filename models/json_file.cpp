#include "models/json_file.h"

#include <set>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "models/text.h"

namespace blockscale {
namespace {

/// Follows the parser and refuses deep nesting and duplicate names while the value is built.
class ShapeGuard {
 public:
  ShapeGuard(const std::string& file, int max_depth) : file_(file), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
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
        const auto& name = parsed.get_ref<const std::string&>();
        if (!names_.back().insert(name).second) {
          throw Error(ErrorCode::corrupt_file, file_,
                      "JSON object names " + quote(name) + " more than once");
        }
        break;
      }
      case Event::object_end: names_.pop_back(); break;
      case Event::array_end:
      case Event::value: break;
    }
    return true;
  }

 private:
  const std::string& file_;
  int max_depth_;
  std::vector<std::set<std::string>> names_;  // one set an open object
};

}  // namespace

std::string show_json(const nlohmann::json& value, std::size_t max_bytes) {
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > max_bytes) text.replace(max_bytes, std::string::npos, "...");
  return text;
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
  ShapeGuard guard(file, limits.depth);
  try {
    return nlohmann::json::parse(
        text.begin(), text.end(),
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
