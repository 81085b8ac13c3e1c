#include "models/dialects/config_keys.h"

#include <algorithm>

#include "models/dialects/declared.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

/// `key` of a file as part of a path: as it is where it is a plain word, else quoted and cut.
std::string shown_key(const std::string& key) {
  const bool plain = key.size() <= 60 && std::all_of(key.begin(), key.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
                     });
  return plain ? key : quote(key, 30);
}

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         (value.is_structured() && value.empty());
}

bool is_quantization(const std::string& key) {
  return key == "quantization_config" || key == "compression_config";
}

class KeyCheck {
 public:
  KeyCheck(std::span<const KnownKey> known, const SourceConfig& config)
      : known_(known), config_(config) {}

  void object(const Json& object, std::string_view kind, const std::string& path) const {
    if (!object.is_object()) {
      fail(ErrorCode::corrupt_file, path + " is " + show_json(object) + ", must be an object");
    }
    for (const auto& [key, value] : object.items()) {
      if (!value.is_null()) member(value, kind, key, path + "." + shown_key(key));
    }
  }

 private:
  void member(const Json& value, std::string_view kind, const std::string& key,
              const std::string& path) const {
    const auto rule = std::find_if(known_.begin(), known_.end(), [&](const KnownKey& k) {
      return k.kind == kind && k.key == key;
    });
    if (rule == known_.end()) {
      fail(ErrorCode::unsupported, path + " is no key that is known here (it is " +
                                       show_json(value, 60) +
                                       "), and could change what the weights mean");
    }
    switch (rule->value) {
      case KeyValue::any: break;
      case KeyValue::unused:
        if (!says_nothing(value)) {
          fail(ErrorCode::unsupported,
               path + " is " + show_json(value) + ", readable are only checkpoints without it");
        }
        break;
      case KeyValue::one_of: {
        const Json allowed = Json::parse(rule->of);
        if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
          fail(ErrorCode::unsupported, path + " is " + show_json(value) +
                                           ", readable are null and " + show_json(allowed, 400));
        }
        break;
      }
      case KeyValue::object:
        if (!value.is_structured() || !value.empty()) object(value, rule->of, path);
        break;
      case KeyValue::objects: objects(value, rule->of, path); break;
    }
  }

  void objects(const Json& value, const char* kind, const std::string& path) const {
    if (!value.is_object()) {
      fail(ErrorCode::corrupt_file, path + " is " + show_json(value) + ", must be an object");
    }
    for (const auto& [name, each] : value.items()) {
      object(each, kind, path + "." + shown_key(name));
    }
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw Error(code, config_.config_path, message);
  }

  std::span<const KnownKey> known_;
  const SourceConfig& config_;
};

}  // namespace

std::vector<std::pair<std::string, const Json*>> find_quantization(const Json& config) {
  std::vector<std::pair<std::string, const Json*>> found;
  if (!config.is_object()) return found;
  for (const auto& [key, value] : config.items()) {
    if (is_quantization(key) && !value.is_null()) found.emplace_back(key, &value);
  }
  // "quantization_config" before "compression_config".
  std::reverse(found.begin(), found.end());
  for (const auto& [key, value] : config.items()) {
    if (is_quantization(key) || !value.is_object()) continue;
    for (const auto& [path, each] : find_quantization(value)) {
      std::string outer = shown_key(key) + "." + path;
      if (outer.size() > 100) outer.replace(0, outer.size() - 97, "...");  // messages stay short
      found.emplace_back(std::move(outer), each);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::count(a.first.begin(), a.first.end(), '.') <
           std::count(b.first.begin(), b.first.end(), '.');
  });
  return found;
}

void erase_quantization(Json& config) {
  if (!config.is_object()) return;
  config.erase("quantization_config");
  config.erase("compression_config");
  // Other producers' word; where it says nothing of weights it may stay.
  const Json& other = member(config, "quantization");
  if (is_word(member(other, "quant_algo"))) config.erase("quantization");
  for (auto& [key, value] : config.items()) erase_quantization(value);
}

void check_keys(const Json& object, const char* kind, std::span<const KnownKey> known,
                const std::string& path, const SourceConfig& config) {
  KeyCheck(known, config).object(object, kind, path);
}

}  // namespace blockscale::models
