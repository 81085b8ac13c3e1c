#include "models/dialects/declared.h"

#include <algorithm>
#include <array>

#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

constexpr const char* kHeaderConfig = "quantization_config";  // ModelOpt's and Nunchaku's
constexpr const char* kTorchaoNames = "tensor_names";

bool says_nothing(std::string_view text) {
  constexpr std::array kNothing = {"", "none", "null", "false", "no", "{}", "[]"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return std::find(kNothing.begin(), kNothing.end(), lower) != kNothing.end();
}

bool names_quantization(std::string_view key) {
  std::string lower(key);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.find("quant") != std::string::npos || lower.starts_with("gptq") ||
         lower.starts_with("awq");
}

std::string metadata_text(const std::string& key) {
  return "metadata " + quote(key, 60);
}

[[noreturn]] void refuse(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::unsupported, argument, message);
}

bool is_configured(const SourceConfig& config) {
  return !config.quantization.is_null() || !config.hf_quant_config.is_null();
}

/// Whether config.json or hf_quant_config.json says the same.
bool is_that_of(const SourceConfig& config, const Json& said) {
  if (said.is_null()) return false;
  return said == config.quantization || said == config.hf_quant_config ||
         said == member(config.hf_quant_config, "quantization");
}

void check_header(const SafetensorsFile& file, const SourceConfig& config) {
  const bool configured = is_configured(config);
  const auto& metadata = file.metadata();
  const std::string path = file.path().string();
  if (metadata.contains(kComfyMetadata) && configured) {
    refuse(config.config_path, "describes quantized weights, and " + metadata_text(kComfyMetadata) +
                                   " of the files does too; readable is one of them");
  }
  for (const auto& [key, value] : metadata) {
    if (says_nothing(value) || key == kComfyMetadata) continue;
    if (key == kHeaderConfig) {
      if (metadata.contains(kComfyMetadata)) {
        // ModelOpt's exports for ComfyUI: row by row or in tiles, as nothing says.
        refuse(path, metadata_text(key) + " says " + quote(value, 100) + " beside " +
                         metadata_text(kComfyMetadata) +
                         ", and in which order codes and scales lie then is not known here");
      }
      if (is_that_of(config, Json::parse(value, nullptr, false))) continue;
      refuse(configured ? config.config_path : path,
             metadata_text(key) + " of the files says " + quote(value, 100) +
                 (configured ? ", which is not what this file says"
                             : ", which is readable only where config.json says the same"));
    }
    // torchao's keys are the names of the model's parameters.
    if (configured || metadata.contains(kTorchaoNames) || !names_quantization(key)) continue;
    refuse(path, metadata_text(key) + " says " + quote(value, 100) +
                     ", which declares quantized weights in a way that is not known here");
  }
}

/// `quantization` of MLX ({"bits", "group_size"}) and of TensorRT-LLM ({"quant_algo"}), in the
/// whole configuration or in a part of it.
void check_other_words(const Json& json, const SourceConfig& config, const std::string& path) {
  const Json& said = member(json, "quantization");
  if (said.is_object()) {
    const bool mlx = is_word(member(said, "bits")) || is_word(member(said, "group_size"));
    if (!is_configured(config) && is_word(member(said, "quant_algo"))) {
      refuse(config.config_path, path + "quantization says " + show_json(said, 100) +
                                     ", as TensorRT-LLM does, whose weights are not readable");
    }
    if (mlx && !said.contains("quant_algo")) {
      refuse(config.config_path, path + "quantization says " + show_json(said, 100) +
                                     ", as MLX does, whose packed weights are not readable");
    }
  }
  for (const char* part : {"text_config", "language_config", "llm_config", "vision_config"}) {
    const Json& inner = member(json, part);
    if (path.empty() && inner.is_object())
      check_other_words(inner, config, part + std::string("."));
  }
}

}  // namespace

bool is_word(const Json& value) {
  return !value.is_null() && value != false && value != "" &&
         (!value.is_structured() || !value.empty());
}

void check_declared(const TensorStore& store, const SourceConfig& config) {
  for (const SafetensorsFile& file : store.files()) check_header(file, config);
  check_other_words(config.config, config, "");
}

}  // namespace blockscale::models
