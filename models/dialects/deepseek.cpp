// DeepSeek's FP8 (transformers: FineGrainedFP8Config): X.weight e4m3 and X.weight_scale_inv, one
// multiplier a 128 x 128 block, in f32, in f32 powers of two (V3.1) or in ue8m0 bytes. Also reads
// V4's names (X.scale), its experts in MXFP4 (int8, 1 x 32 scales), and what names no blocks:
// vLLM's `fp8` and FBGEMM's `fbgemm_fp8` with X.weight_scale, one a tensor or a row; and FBGEMM's
// stacks of Llama 4's experts, P [E, in, out] with P_scale, one an output (transformers'
// integration of fbgemm_fp8: [E, 1, out] of gate_up_proj, [E, out, 1] of down_proj). And Mistral's
// own FP8 (consolidated.safetensors): X.qscale_weight, one a tensor or a row, and X.qscale_act.
#include <algorithm>

#include "models/dialects/config_keys.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

/// Of one weight or of its rows, a multiplier; beside it X.qscale_act of the inputs.
constexpr const char* kMistralScale = ".qscale_weight";
constexpr const char* kMistralInput = ".qscale_act";

bool recognises_names(const TensorStore& store) {
  for (const auto& [name, entry] : store.tensors()) {
    if (name.ends_with("_scale_inv") || name.ends_with(kMistralScale)) return true;
  }
  return false;
}

/// FineGrainedFP8Config of transformers 5.23, Fp8Config of vLLM, and what models ship. A key that
/// has a rule of its own in `parse` is `any` here.
constexpr KnownKey kKeys[] = {
    {"config", "quant_method", KeyValue::any},
    {"config", "fmt", KeyValue::any},
    {"config", "scale_fmt", KeyValue::any},
    {"config", "weight_block_size", KeyValue::any},
    {"config", "activation_scale_ub", KeyValue::any},  // fbgemm_fp8: of dynamic activations
    {"config", "activation_scheme", KeyValue::one_of, R"(["dynamic", "static"])"},
    {"config", "modules_to_not_convert", KeyValue::any},
    {"config", "ignored_layers", KeyValue::any},
    {"config", "modules_to_convert", KeyValue::unused},
    {"config", "dequantize", KeyValue::any},
    {"config", "expert_dtype", KeyValue::one_of, R"(["fp8", "fp4"])"},
    {"config", "kv_cache_scheme", KeyValue::one_of, R"(["static", "dynamic"])"},
};

struct Configuration {
  int block_rows = 0;         // 0: unknown (no configuration)
  bool whole_tensor = false;  // the configuration names no blocks
  bool ue8m0 = false;         // scale_fmt: powers of two
};

[[noreturn]] void fail(const SourceConfig& config, const std::string& message) {
  throw Error(ErrorCode::corrupt_file, config.config_path,
              config.quantization_path + "." + message);
}

Configuration parse(const SourceConfig& config) {
  Configuration result;
  if (config.quantization.is_null()) return result;
  check_keys(config.quantization, "config", kKeys, config.quantization_path, config);
  const Json& fmt = member(config.quantization, "fmt");
  if (!fmt.is_null() && fmt != "e4m3" && fmt != "float8_e4m3fn") {
    fail(config, "fmt is " + show_json(fmt) + ", must be \"e4m3\" or \"float8_e4m3fn\"");
  }
  const Json& scale_fmt = member(config.quantization, "scale_fmt");
  if (!scale_fmt.is_null() && scale_fmt != "ue8m0" && scale_fmt != "float") {
    fail(config, "scale_fmt is " + show_json(scale_fmt) + ", must be \"ue8m0\" or \"float\"");
  }
  result.ue8m0 = scale_fmt == "ue8m0";
  const Json& block = member(config.quantization, "weight_block_size");
  if (block.is_null()) {
    result.whole_tensor = true;
    return result;
  }
  const bool two = block.is_array() && block.size() == 2 && block[1] == 128;
  for (const int rows : {1, 32, 64, 128}) {
    if (two && block[0] == rows) result.block_rows = rows;
  }
  if (result.block_rows == 0) {
    fail(config, "weight_block_size is " + show_json(block) +
                     ", must be [128, 128] (or 1, 32 or 64 rows by 128)");
  }
  return result;
}

Recipe block_recipe(int rows, Format scale, bool power_of_two) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::fp8 && t.block_rows == rows && t.block_k == 128 && t.scale == scale &&
        t.power_of_two == power_of_two) {
      return t.recipe;
    }
  }
  return Recipe::fp8_128x128;
}

/// Recipes that a weight may be in, the likeliest first.
std::vector<Recipe> candidates(const Configuration& configuration, const TensorInfo& scales) {
  const bool bytes = scales.dtype == DType::F8_E8M0 || scales.dtype == DType::U8;
  const Format scale = bytes ? Format::ue8m0 : Format::f32;
  std::vector<Recipe> result;
  if (configuration.whole_tensor) result = {Recipe::fp8_tensor, Recipe::fp8_row};
  for (const int rows : {128, 64, 32, 1}) {
    if (configuration.whole_tensor) break;
    if (configuration.block_rows != 0 && configuration.block_rows != rows) continue;
    result.push_back(block_recipe(rows, scale, bytes || configuration.ue8m0));
  }
  if (configuration.block_rows == 0 && !configuration.whole_tensor) {
    result.push_back(Recipe::fp8_tensor);
  }
  result.push_back(Recipe::mxfp4);
  return result;
}

bool has_packed_values(const TensorInfo* info) {
  return info != nullptr && info->shape.size() >= 2 &&
         (info->dtype == DType::F8_E4M3 || info->dtype == DType::I8 || info->dtype == DType::U8 ||
          info->dtype == DType::F4);
}

/// The stack of experts whose scales are called `name`, or nothing: the outputs are its columns.
std::optional<StoredWeight> read_stack(const TensorStore& store, const std::string& name,
                                       const TensorInfo& scales) {
  StoredWeight stack;
  stack.name = without_suffix(name, "_scale");
  stack.values = stack.name.empty() ? nullptr : find_info(store, stack.name);
  if (stack.values == nullptr || stack.values->dtype != DType::F8_E4M3 ||
      stack.values->shape.size() != 3) {
    return std::nullopt;
  }
  stack.shape = stack.values->shape;
  const std::int64_t experts = stack.shape[0], outputs = stack.shape[2];
  const auto is = [&](std::int64_t a, std::int64_t b) {
    return scales.shape == std::vector<std::int64_t>{experts, a, b};
  };
  const bool plain =
      scales.dtype == DType::F32 || scales.dtype == DType::BF16 || scales.dtype == DType::F16;
  if (!plain || stack.values->bytes == 0 || (!is(1, outputs) && !is(outputs, 1))) {
    throw Error(ErrorCode::corrupt_file, stack.name,
                "its scales " + name + " must be F32, BF16 or F16 [" + std::to_string(experts) +
                    ", 1, " + std::to_string(outputs) + "] or [" + std::to_string(experts) + ", " +
                    std::to_string(outputs) + ", 1], one for each output of an expert");
  }
  stack.recipe = Recipe::fp8_tensor;
  stack.channel_factors = &scales;
  return stack;
}

/// The stack P that P_scale or P_weight_scale belongs to, in the other layouts; or "".
std::string stack_of_scale(const TensorStore& store, const std::string& name) {
  for (const char* suffix : {"_weight_scale", "_scale"}) {
    const std::string stack = without_suffix(name, suffix);
    const TensorInfo* values = stack.empty() ? nullptr : find_info(store, stack);
    const bool is_stack = values != nullptr && values->dtype == DType::F8_E4M3 &&
                          values->shape.size() == 3 && !stack.ends_with(".weight");
    if (is_stack) return stack;
  }
  return "";
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  static constexpr Recipe kMistral[] = {Recipe::fp8_tensor, Recipe::fp8_row};
  const Configuration configuration = parse(config);
  std::vector<StoredWeight> weights;
  const bool has_stacks = member(config.quantization, "quant_method") == "fbgemm_fp8";
  for (const auto& [name, entry] : store.tensors()) {
    if (has_stacks) {
      if (const auto stack = read_stack(store, name, entry.info)) {
        weights.push_back(*stack);
        continue;
      }
    }
    FoundWeight found;
    found.name = without_suffix(name, "_scale_inv");
    if (found.name.empty()) {
      // V4's short name, where it cannot be a parameter of its own.
      const std::string module = without_suffix(name, ".scale");
      if (!module.empty() && has_packed_values(find_info(store, module + ".weight"))) {
        found.name = module + ".weight";
      }
    }
    const std::string mistral = without_suffix(name, kMistralScale);
    if (!mistral.empty()) found.name = mistral + ".weight";
    // vLLM's and AutoFP8's name of one scale a tensor.
    const bool whole = found.name.empty() && !without_suffix(name, ".weight_scale").empty();
    if (whole) found.name = without_suffix(name, "_scale");
    if (found.name.empty()) found.name = stack_of_scale(store, name);
    if (!found.name.empty()) {
      const std::string module = module_of(found.name);
      for (const char* suffix :
           {".activation_scale", ".input_scale", "_input_scale", kMistralInput}) {
        if (found.input_scale == nullptr) found.input_scale = find_info(store, module + suffix);
      }
      found.values = find_info(store, found.name);
      found.scales = &entry.info;
      weights.push_back(mistral.empty() ? match_any(found, candidates(configuration, entry.info))
                                        : match_any(found, kMistral));
    } else if (entry.info.dtype == DType::F8_E4M3 && name.ends_with(".weight") &&
               find_info(store, name + "_scale_inv") == nullptr &&
               find_info(store, name + "_scale") == nullptr &&
               find_info(store, module_of(name) + ".scale") == nullptr &&
               find_info(store, module_of(name) + kMistralScale) == nullptr) {
      throw Error(ErrorCode::corrupt_file, name,
                  "is F8_E4M3 but has no scales " + name + "_scale_inv in any shard");
    }
  }
  return weights;
}

/// vLLM's Fp8Config has the word, AutoFP8 wrote it.
std::optional<CacheScheme> cache(const SourceConfig& config) {
  const Json& scheme = member(config.quantization, "kv_cache_scheme");
  if (scheme.is_null()) return std::nullopt;
  return CacheScheme{scheme == "static", scheme};
}

std::vector<InputGroup> inputs(const TensorStore& store, const SourceConfig& config) {
  if (config.quantization.is_null()) {
    const auto any = [&](const char* suffix) {
      return std::any_of(store.tensors().begin(), store.tensors().end(),
                         [&](const auto& tensor) { return tensor.first.ends_with(suffix); });
    };
    if (!any(kMistralScale)) return {};
    return {{.activations = any(kMistralInput) ? Activations::calibrated : Activations::dynamic}};
  }
  const bool calibrated = member(config.quantization, "activation_scheme") == "static";
  return {{.activations = calibrated ? Activations::calibrated : Activations::dynamic}};
}

bool can_write(Recipe recipe) {
  return recipe == Recipe::fp8_128x128 || recipe == Recipe::fp8_128x128_pow2 ||
         recipe == Recipe::fp8_128x128_ue8m0;
}

std::vector<PartToWrite> parts(const WeightToWrite& weight) {
  const DType scale = weight.recipe == Recipe::fp8_128x128_ue8m0 ? DType::F8_E8M0 : DType::F32;
  return {{Part::values, tensor_info(weight.name, DType::F8_E4M3, weight.shape)},
          {Part::scales, tensor_info(weight.name + "_scale_inv", scale,
                                     grid_shape(weight.recipe, weight.shape))}};
}

void describe(const Contents& contents, Documents& documents) {
  Json quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {128, 128}},
                       {"modules_to_not_convert", contents.kept_modules}};
  if (!contents.quantized.empty() && recipe_traits(contents.quantized[0].recipe).power_of_two) {
    quantization["scale_fmt"] = "ue8m0";
  }
  if (contents.cache && !contents.cache->words.is_null()) {
    quantization["kv_cache_scheme"] = contents.cache->words;
  }
  documents["config.json"]["quantization_config"] = std::move(quantization);
  documents["hf_quant_config.json"] = nullptr;
}

}  // namespace

const DialectTraits kDeepSeek = {
    .dialect = Dialect::deepseek,
    .name = "deepseek",
    .quant_method = "fp8",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = can_write,
    .inputs = inputs,
    .can_have = [](Recipe, Activations activations) { return activations == Activations::dynamic; },
    .preset = [](Recipe) { return Activations::dynamic; },
    .cache = cache,
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::multiplier,
    .parts = parts,
    .describe = describe,
};

}  // namespace blockscale::models
