#include "models/convert/checks/contradictions.h"

#include <algorithm>
#include <cctype>

#include "models/convert/selection/pattern.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

constexpr const char* kFile = "hf_quant_config.json";

struct Algorithm {
  std::string_view name;  // in upper case
  Recipe recipe;
};
constexpr Algorithm kAlgorithms[] = {
    {"NVFP4", Recipe::nvfp4},           {"W4A16_NVFP4", Recipe::nvfp4},
    {"NVFP4_AWQ", Recipe::nvfp4},       {"FP8", Recipe::fp8_tensor},
    {"MXFP8", Recipe::mxfp8_e4m3},      {"FP8_PER_CHANNEL_PER_TOKEN", Recipe::fp8_row},
    {"FP8_PB_WO", Recipe::fp8_128x128}, {"MXFP4", Recipe::mxfp4},
    {"W4A8_MXFP4_FP8", Recipe::mxfp4}};

/// ModelOpt has written algorithms in either case.
std::string upper(const Json& word) {
  std::string text = word.is_string() ? word.get<std::string>() : "";
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

/// What config.json says under `key`, which its elders have one level deeper.
const Json& in_config(const SourceConfig& config, const char* key) {
  const Json& outer = member(config.quantization, key);
  return outer.is_null() ? member(member(config.quantization, "quantization"), key) : outer;
}

/// The weights that `is_odd`, in words: 2 weights, such as "a.weight".
template <class IsOdd>
std::string odd_weights(const StoredCheckpoint& source, const IsOdd& is_odd) {
  std::size_t count = 0;
  std::string example;
  for (const CheckpointTensor& tensor : source.tensors()) {
    if (!tensor.quantized || !is_odd(tensor)) continue;
    if (count++ == 0) {
      example = quote(tensor.name) + " is " +
                (tensor.form.empty() ? recipe_traits(tensor.recipe).name : tensor.form);
    }
  }
  if (count == 0) return "";
  return example + (count == 1 ? "" : ", and " + std::to_string(count - 1) + " more are not");
}

std::vector<std::string> of_tensors(const StoredCheckpoint& source, const Json& said) {
  std::vector<std::string> result;
  const std::string word = upper(member(said, "quant_algo"));
  for (const Algorithm& algorithm : kAlgorithms) {
    if (word != algorithm.name) continue;
    const std::string odd = odd_weights(source, [&](const CheckpointTensor& tensor) {
      return tensor.recipe != algorithm.recipe || !(tensor.form.empty() || tensor.column_factors);
    });
    if (odd.empty()) continue;
    result.push_back(std::string(kFile) + " says quant_algo " +
                     show_json(member(said, "quant_algo")) + ", but " + odd +
                     "; weights are read as they are stored");
  }
  const Json& excluded = member(said, "exclude_modules");
  for (const Json& module : excluded.is_array() ? excluded : Json::array()) {
    if (!module.is_string() || module.get_ref<const std::string&>().starts_with("re:")) continue;
    const Pattern pattern(module.get<std::string>(), "exclude_modules");
    const std::string odd = odd_weights(
        source, [&](const CheckpointTensor& tensor) { return pattern.matches(tensor.name); });
    if (odd.empty()) continue;
    result.push_back(std::string(kFile) + " excludes " + quote(module.get<std::string>()) +
                     ", but " + odd + "; weights are read as they are stored");
    break;  // one tells of all
  }
  return result;
}

}  // namespace

std::vector<std::string> contradictions(const StoredCheckpoint& source) {
  const SourceConfig& config = source.config();
  if (config.hf_quant_config.is_null()) return {};
  const Json& said = member(config.hf_quant_config, "quantization");
  std::vector<std::string> result;
  const auto differs = [&](const char* key, const Json& theirs, const Json& ours,
                           const char* followed) {
    result.push_back(std::string(kFile) + " says " + key + " " + show_json(theirs) +
                     ", config.json " + show_json(ours) + "; " + followed);
  };
  if (source.dialect().dialect != Dialect::modelopt) {
    differs("quant_algo", member(said, "quant_algo"), member(config.quantization, "quant_method"),
            "config.json is followed");
    return result;
  }
  const Json& theirs = member(said, "quant_algo");
  const Json& ours = in_config(config, "quant_algo");
  if (!theirs.is_null() && !ours.is_null() && upper(theirs) != upper(ours)) {
    differs("quant_algo", theirs, ours, "weights are read as they are stored");
  }
  const Json& cache = member(said, "kv_cache_quant_algo");
  const Json& scheme = in_config(config, "kv_cache_scheme");
  const Json& algorithm = in_config(config, "kv_cache_quant_algo");
  const bool fp8 = scheme.is_object() && member(scheme, "num_bits") == 8;
  if (cache.is_string() && cache != "") {
    if (algorithm.is_string() && upper(algorithm) != upper(cache)) {
      differs("kv_cache_quant_algo", cache, algorithm, "hf_quant_config.json is followed");
    } else if (scheme.is_object() && fp8 != (upper(cache) == "FP8")) {
      differs("kv_cache_quant_algo", cache, scheme, "hf_quant_config.json is followed");
    }
  }
  const std::vector<std::string> more = of_tensors(source, said);
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

}  // namespace blockscale::models
