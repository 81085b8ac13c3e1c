// compressed-tensors (llm-compressor, vLLM, transformers): packed formats store X.weight_packed,
// FP8 ones X.weight; all store X.weight_scale, NVFP4 also X.weight_global_scale f32 [1] (a divisor,
// 2688 / amax). A stacked parameter P has P_packed, P_scale, P_global_scale.
#include <algorithm>
#include <array>

#include "models/dialects/config_keys.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

/// One way of quantizing weights that the format can say.
struct Scheme {
  Recipe recipe;
  const char* format;
  const char* strategy;
  int group_size;           // 0: none
  int block_rows;           // of strategy "block"; 0: none
  const char* scale_dtype;  // null: that of the model
};

constexpr const char* kNvfp4 = "nvfp4-pack-quantized";
constexpr const char* kMxfp4 = "mxfp4-pack-quantized";
constexpr const char* kMxfp6 = "mxfp6-pack-quantized";
constexpr const char* kMxfp8 = "mxfp8-quantized";
constexpr const char* kFloat = "float-quantized";
constexpr const char* kReadableFormats =
    R"(["nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized",
        "float-quantized", "naive-quantized", "mixed-precision"])";

/// What compressed-tensors 0.20 and its elders write (QuantizationConfig, QuantizationScheme,
/// QuantizationArgs, SparsityCompressionConfig, TransformConfig), and transformers' options of
/// loading. 2:4 sparsity that is stored dense is values like any others. actorder "weight" orders
/// columns during calibration only; "group" permutes them.
constexpr KnownKey kKeys[] = {
    {"config", "quant_method", KeyValue::any},
    {"config", "version", KeyValue::any},
    {"config", "format", KeyValue::one_of, kReadableFormats},
    {"config", "quantization_status", KeyValue::one_of,
     R"(["initialized", "calibration", "frozen", "compressed"])"},
    {"config", "global_compression_ratio", KeyValue::any},
    {"config", "ignore", KeyValue::any},
    {"config", "config_groups", KeyValue::objects, "group"},
    {"config", "kv_cache_scheme", KeyValue::object, "activations"},
    {"config", "sparsity_config", KeyValue::object, "sparsity"},
    {"config", "transform_config", KeyValue::object, "transform"},
    {"config", "moe_sparsity_config", KeyValue::unused},
    {"config", "run_compressed", KeyValue::any},
    {"config", "dequantize", KeyValue::any},
    {"config", "use_optimized_inference", KeyValue::any},
    {"group", "targets", KeyValue::any},
    {"group", "format", KeyValue::one_of, kReadableFormats},
    {"group", "weights", KeyValue::object, "weights"},
    {"group", "input_activations", KeyValue::object, "activations"},
    {"group", "output_activations", KeyValue::object, "activations"},
    {"weights", "num_bits", KeyValue::any},
    {"weights", "type", KeyValue::any},
    {"weights", "strategy", KeyValue::any},
    {"weights", "group_size", KeyValue::any},
    {"weights", "block_structure", KeyValue::any},
    {"weights", "symmetric", KeyValue::one_of, "[true]"},
    {"weights", "dynamic", KeyValue::one_of, "[false]"},
    {"weights", "actorder", KeyValue::one_of, R"([false, "weight", "static"])"},
    {"weights", "scale_dtype", KeyValue::one_of,
     R"(["torch.float8_e4m3fn", "torch.uint8", "torch.float8_e8m0fnu", "torch.float32",
         "torch.float16", "torch.bfloat16"])"},
    {"weights", "zp_dtype", KeyValue::any},
    {"weights", "observer", KeyValue::any},
    {"weights", "observer_kwargs", KeyValue::any},
    {"activations", "num_bits", KeyValue::any},
    {"activations", "type", KeyValue::any},
    {"activations", "strategy", KeyValue::any},
    {"activations", "group_size", KeyValue::any},
    {"activations", "block_structure", KeyValue::any},
    {"activations", "symmetric", KeyValue::any},
    {"activations", "dynamic", KeyValue::any},
    {"activations", "actorder", KeyValue::unused},
    {"activations", "scale_dtype", KeyValue::any},
    {"activations", "zp_dtype", KeyValue::any},
    {"activations", "observer", KeyValue::any},
    {"activations", "observer_kwargs", KeyValue::any},
    {"sparsity", "format", KeyValue::one_of, R"(["dense"])"},
    {"sparsity", "targets", KeyValue::any},
    {"sparsity", "ignore", KeyValue::any},
    {"sparsity", "global_sparsity", KeyValue::any},
    {"sparsity", "sparsity_structure", KeyValue::any},
    {"sparsity", "registry_requires_subclass", KeyValue::any},
    {"transform", "config_groups", KeyValue::unused},
};

/// Readable schemes. Of the recipes that differ only in whether f32 scales are powers of two, the
/// general one comes first: reading cannot tell them apart.
constexpr std::array kSchemes = {
    Scheme{Recipe::nvfp4, kNvfp4, "tensor_group", 16, 0, "torch.float8_e4m3fn"},
    Scheme{Recipe::mxfp4, kMxfp4, "group", 32, 0, "torch.uint8"},
    Scheme{Recipe::mxfp6_e2m3, kMxfp6, "group", 32, 0, "torch.uint8"},
    Scheme{Recipe::mxfp8_e4m3, kMxfp8, "group", 32, 0, "torch.uint8"},
    Scheme{Recipe::fp8_tensor, kFloat, "tensor", 0, 0, nullptr},
    Scheme{Recipe::fp8_row, kFloat, "channel", 0, 0, nullptr},
    Scheme{Recipe::fp8_128x128, kFloat, "block", 0, 128, nullptr},
    Scheme{Recipe::fp8_64x128, kFloat, "block", 0, 64, nullptr},
    Scheme{Recipe::fp8_32x128, kFloat, "block", 0, 32, nullptr},
    Scheme{Recipe::fp8_1x128, kFloat, "group", 128, 0, nullptr},
    Scheme{Recipe::fp8_128x128_pow2, kFloat, "block", 0, 128, nullptr},
    Scheme{Recipe::fp8_64x128_pow2, kFloat, "block", 0, 64, nullptr},
    Scheme{Recipe::fp8_32x128_pow2, kFloat, "block", 0, 32, nullptr},
    Scheme{Recipe::fp8_1x128_pow2, kFloat, "group", 128, 0, nullptr},
};

const Scheme* scheme_of(Recipe recipe) {
  const auto found = std::find_if(kSchemes.begin(), kSchemes.end(),
                                  [&](const Scheme& scheme) { return scheme.recipe == recipe; });
  return found == kSchemes.end() ? nullptr : &*found;
}

int bits_of(const Scheme& scheme) {
  return format_traits(recipe_traits(scheme.recipe).element).bits;
}

[[noreturn]] void fail(ErrorCode code, const SourceConfig& config, const std::string& message) {
  throw Error(code, config.config_path, config.quantization_path + "." + message);
}

/// Integer scales (uint8) tell MXFP8 from FP8 groups; older files leave scale_dtype out.
bool matches(const Scheme& scheme, const Json& weights) {
  const Json& group_size = member(weights, "group_size");
  const Json& block = member(weights, "block_structure");
  const bool has_group = group_size.is_number_integer() && group_size > 0;
  if (member(weights, "num_bits") != bits_of(scheme)) return false;
  if (member(weights, "strategy") != scheme.strategy) return false;
  if (scheme.group_size != 0 && !(has_group && group_size == scheme.group_size)) return false;
  if (scheme.block_rows != 0) {
    // Old versions wrote "128x128".
    if (block.is_string()) {
      return block.get_ref<const std::string&>() == std::to_string(scheme.block_rows) + "x128";
    }
    return block == Json::array({scheme.block_rows, 128});
  }
  return true;
}

/// FP8 in blocks that no recipe has, which are read by their values.
std::optional<BlockSize> odd_block(const Json& weights) {
  const Json& group_size = member(weights, "group_size");
  if (member(weights, "num_bits") != 8) return std::nullopt;
  if (member(weights, "strategy") == "block") {
    return block_size(member(weights, "block_structure"));
  }
  if (member(weights, "strategy") != "group") return std::nullopt;
  return block_size(Json::array({1, group_size}));
}

/// What the weights of a checkpoint may be in.
struct Declared {
  std::vector<Recipe> recipes;  // in the order of kSchemes
  std::vector<BlockSize> odd_blocks = {};
};

/// Of every group.
Declared declared_by(const SourceConfig& config) {
  const Json& groups = member(config.quantization, "config_groups");
  if (!groups.is_object() || groups.empty()) {
    fail(ErrorCode::corrupt_file, config, "config_groups must be an object with a group in it");
  }
  std::array<bool, kSchemes.size()> declared{};
  Declared result;
  for (const auto& [name, group] : groups.items()) {
    const Json& weights = member(group, "weights");
    if (weights.is_null()) continue;  // only activations are quantized
    bool known = false;
    for (std::size_t i = 0; i < kSchemes.size(); ++i) {
      if (!matches(kSchemes[i], weights)) continue;
      declared[i] = true;
      known = true;
    }
    const Json& type = member(weights, "type");
    if (const auto block = known ? std::nullopt : odd_block(weights)) {
      known = true;
      result.odd_blocks.push_back(*block);
    }
    if (!known || type != "float") {
      fail(ErrorCode::unsupported, config,
           "config_groups." + quote(name) + ".weights says " + show_json(weights) +
               ", readable are float weights in nvfp4, mxfp4, mxfp6 (e2m3), mxfp8, and fp8 by "
               "tensor, channel, group or block");
    }
  }
  for (std::size_t i = 0; i < kSchemes.size(); ++i) {
    if (declared[i]) result.recipes.push_back(kSchemes[i].recipe);
  }
  return result;
}

Declared declared(const SourceConfig& config) {
  if (!config.quantization.is_null()) {
    check_keys(config.quantization, "config", kKeys, config.quantization_path, config);
    return declared_by(config);
  }
  Declared all;
  for (const Scheme& scheme : kSchemes) all.recipes.push_back(scheme.recipe);
  return all;
}

bool recognises_names(const TensorStore& store) {
  for (const auto& [name, entry] : store.tensors()) {
    if (name.ends_with("_packed") && entry.info.dtype == DType::U8) return true;
    const std::string weight = without_suffix(name, "_scale");
    const TensorInfo* values = weight.empty() ? nullptr : find_info(store, weight);
    if (values != nullptr && values->dtype == DType::F8_E4M3) return true;
  }
  return false;
}

/// Name of the activations' scale: X.input_scale of X.weight, X.P_input_scale of a parameter X.P.
std::string input_scale_name(const std::string& weight, bool nvfp4) {
  const std::string module = without_suffix(weight, ".weight");
  return (module.empty() ? weight + "_" : module + ".") +
         (nvfp4 ? "input_global_scale" : "input_scale");
}

/// Whether W_scale may be the scales of a weight W: scales of key and value caches are not.
bool names_a_weight(const TensorStore& store, const std::string& weight) {
  return weight.ends_with(".weight") || store.find(weight + "_packed") != nullptr ||
         store.find(weight) != nullptr;
}

void check_has_scales(const TensorStore& store, const TensorInfo& info) {
  std::string weight = without_suffix(info.name, "_packed");
  if (weight.empty() && info.dtype == DType::F8_E4M3 && info.name.ends_with(".weight")) {
    weight = info.name;
  }
  if (weight.empty() || info.name.ends_with("_scale")) return;
  if (store.find(weight + "_scale") == nullptr) {
    throw Error(ErrorCode::corrupt_file, info.name,
                "has no scales " + weight + "_scale in any shard");
  }
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  const Declared may_be = declared(config);
  std::vector<StoredWeight> weights;
  for (const auto& [name, entry] : store.tensors()) {
    check_has_scales(store, entry.info);
    FoundWeight found;
    found.name = without_suffix(name, "_scale");
    if (name.ends_with("_global_scale") || found.name.empty() ||
        !names_a_weight(store, found.name)) {
      continue;
    }
    const TensorInfo* packed = find_info(store, found.name + "_packed");
    found.values = packed != nullptr ? packed : find_info(store, found.name);
    found.scales = &entry.info;
    found.sense = TensorScaleSense::divisor;
    found.tensor_scale = find_info(store, found.name + "_global_scale");
    found.input_scale =
        find_info(store, input_scale_name(found.name, found.tensor_scale != nullptr));
    found.odd_blocks = may_be.odd_blocks;
    weights.push_back(match_any(found, may_be.recipes));
  }
  return weights;
}

std::vector<PartToWrite> parts(const WeightToWrite& weight) {
  const RecipeTraits& t = recipe_traits(weight.recipe);
  const bool packed = format_traits(t.element).bits < 8;
  std::vector<std::int64_t> grid = grid_shape(weight.recipe, weight.shape);
  if (weight.recipe == Recipe::fp8_tensor && weight.shape.size() == 2) grid.assign(1, 1);
  const DType scale = t.scale == Format::f32     ? DType::F32
                      : t.scale == Format::ue4m3 ? DType::F8_E4M3
                                                 : DType::U8;
  std::vector<PartToWrite> result = {
      {Part::values,
       tensor_info(weight.name + (packed ? "_packed" : ""), packed ? DType::U8 : DType::F8_E4M3,
                   packed_shape(weight.recipe, weight.shape))},
      {Part::scales, tensor_info(weight.name + "_scale", scale, grid)}};
  if (t.tensor_scale) {
    result.push_back({Part::tensor_scale, tensor_info(weight.name + "_global_scale", DType::F32,
                                                      {weight.tensor_scales})});
  }
  if (weight.activations == Activations::calibrated) {
    result.push_back({Part::input_scale, tensor_info(input_scale_name(weight.name, t.tensor_scale),
                                                     DType::F32, {weight.input_scales})});
  }
  return result;
}

/// Static activations are those that vLLM and transformers run.
bool can_have(Recipe recipe, Activations activations) {
  return activations != Activations::calibrated || recipe == Recipe::nvfp4 ||
         recipe == Recipe::fp8_tensor || recipe == Recipe::fp8_row;
}

/// llm-compressor's NVFP4, FP8, FP8_DYNAMIC, FP8_BLOCK, MXFP4 and MXFP8; no preset has the names of
/// the others.
Activations preset(Recipe recipe) {
  switch (recipe) {
    case Recipe::nvfp4:
    case Recipe::fp8_tensor: return Activations::calibrated;
    case Recipe::fp8_row:
    case Recipe::fp8_128x128:
    case Recipe::fp8_128x128_pow2:
    case Recipe::mxfp4:
    case Recipe::mxfp8_e4m3: return Activations::dynamic;
    default: return Activations::none;
  }
}

/// 0.20 rounds the exponents of MXFP8 at the mantissa width of FP4.
MxScaleMode mx_scale_mode(Recipe recipe) {
  return recipe == Recipe::mxfp8_e4m3 ? MxScaleMode::even_e2m1 : MxScaleMode::even;
}

/// The recipe of inputs that these words describe, if there is one.
std::optional<Recipe> recipe_of_inputs(const Json& words) {
  if (member(words, "type") != "float" || member(words, "symmetric") == false) return {};
  const Json& strategy = member(words, "strategy");
  if (member(words, "num_bits") == 8 && strategy == "token") return Recipe::fp8_row;
  if (strategy == "channel" || strategy == "block") return {};
  for (const Scheme& scheme : kSchemes) {
    if (matches(scheme, words)) return scheme.recipe;
  }
  return {};
}

std::vector<InputGroup> inputs(const TensorStore&, const SourceConfig& config) {
  std::vector<InputGroup> result;
  for (const auto& [name, group] : member(config.quantization, "config_groups").items()) {
    const Json& weights = member(group, "weights");
    const Json& words = member(group, "input_activations");
    InputGroup& inputs = result.emplace_back();
    for (const Scheme& scheme : kSchemes) {
      if (matches(scheme, weights)) inputs.recipes.push_back(scheme.recipe);
    }
    if (!words.is_null() && !words.empty()) {
      const bool dynamic = member(words, "dynamic") == true;
      inputs.activations = dynamic ? Activations::dynamic : Activations::calibrated;
      inputs.words = &words;
      inputs.recipe = recipe_of_inputs(words);
    }
    for (const Json& target : member(group, "targets")) {
      if (target.is_string()) inputs.targets.push_back(target.get<std::string>());
    }
  }
  return result;
}

/// e4m3 with one scale a tensor, of activations and of the cache.
Json static_fp8() {
  return {{"num_bits", 8},        {"type", "float"},  {"symmetric", true},
          {"strategy", "tensor"}, {"dynamic", false}, {"group_size", nullptr}};
}

/// Whether a scheme's words are those of `static_fp8`; what is left out has that value by default.
bool is_static_fp8(const Json& numbers) {
  const Json wanted = static_fp8();
  for (const auto& [key, value] : wanted.items()) {
    const Json& said = member(numbers, key.c_str());
    if (said.is_null() ? key == "num_bits" || key == "type" : said != value) return false;
  }
  return true;
}

std::optional<CacheScheme> cache(const SourceConfig& config) {
  const Json& scheme = member(config.quantization, "kv_cache_scheme");
  if (scheme.is_null() || scheme.empty()) return std::nullopt;
  return CacheScheme{is_static_fp8(scheme), scheme};
}

/// The arguments of weights or of activations (`dynamic`) of a group.
Json numbers_of(const Scheme& scheme, const Json& dynamic) {
  Json numbers = {{"num_bits", bits_of(scheme)}, {"type", "float"},    {"symmetric", true},
                  {"strategy", scheme.strategy}, {"dynamic", dynamic}, {"group_size", nullptr}};
  if (scheme.group_size != 0) numbers["group_size"] = scheme.group_size;
  if (scheme.block_rows != 0) numbers["block_structure"] = {scheme.block_rows, 128};
  if (scheme.scale_dtype != nullptr) numbers["scale_dtype"] = scheme.scale_dtype;
  return numbers;
}

/// e4m3 of engines' own choice of scales: one a token, or one for each `group_size` of it.
Json dynamic_fp8(int group_size) {
  Json numbers = static_fp8();
  numbers["dynamic"] = true;
  numbers["strategy"] = group_size == 0 ? "token" : "group";
  if (group_size != 0) numbers["group_size"] = group_size;
  return numbers;
}

/// Activations as llm-compressor's presets have them beside weights of this scheme.
Json inputs_of(const Scheme& scheme, Activations activations) {
  const bool fp8 = recipe_traits(scheme.recipe).family == Family::fp8;
  const bool blocks = recipe_traits(scheme.recipe).block_k != 0;
  switch (activations) {
    case Activations::none: return nullptr;
    case Activations::calibrated: return fp8 ? static_fp8() : numbers_of(scheme, "local");
    case Activations::dynamic: break;
  }
  if (fp8) return dynamic_fp8(blocks ? 128 : 0);
  // MXFP6A8: no engine computes with activations of 6 bits.
  const bool six_bits = scheme.recipe == Recipe::mxfp6_e2m3;
  return numbers_of(six_bits ? *scheme_of(Recipe::mxfp8_e4m3) : scheme, true);
}

/// Weights that one group describes.
struct Group {
  const Scheme* scheme;
  Json inputs;
  Json targets = Json::array();
};

std::vector<Group> groups_of(const Contents& contents) {
  std::vector<Group> groups;
  for (const Scheme& scheme : kSchemes) {
    const std::size_t first = groups.size();
    for (const WeightToWrite& weight : contents.quantized) {
      if (weight.recipe != scheme.recipe) continue;
      Json inputs = weight.input_words != nullptr ? *weight.input_words
                                                  : inputs_of(scheme, weight.activations);
      auto group = std::find_if(groups.begin() + static_cast<std::ptrdiff_t>(first), groups.end(),
                                [&](const Group& g) { return g.inputs == inputs; });
      if (group == groups.end()) {
        groups.push_back({&scheme, std::move(inputs)});
        group = groups.end() - 1;
      }
      group->targets.push_back(module_of(weight.name));
    }
  }
  if (groups.size() == 1) groups[0].targets = targets_of_all(contents);
  return groups;
}

void describe(const Contents& contents, Documents& documents) {
  const std::vector<Group> used = groups_of(contents);
  Json groups = Json::object();
  bool one_format = true;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const Scheme& scheme = *used[i].scheme;
    groups["group_" + std::to_string(i)] = {{"targets", used[i].targets},
                                            {"format", scheme.format},
                                            {"weights", numbers_of(scheme, false)},
                                            {"input_activations", used[i].inputs},
                                            {"output_activations", nullptr}};
    one_format &= std::string_view(scheme.format) == used[0].scheme->format;
  }
  Json cache;
  if (contents.cache)
    cache = contents.cache->words.is_null() ? static_fp8() : contents.cache->words;
  const char* format = used.empty() ? kFloat
                       : one_format ? used[0].scheme->format
                                    : "mixed-precision";
  documents["config.json"]["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                                     {"version", "0.20.0"},
                                                     {"format", format},
                                                     {"quantization_status", "compressed"},
                                                     {"global_compression_ratio", nullptr},
                                                     {"kv_cache_scheme", cache},
                                                     {"ignore", contents.kept_modules},
                                                     {"config_groups", groups}};
  documents["hf_quant_config.json"] = nullptr;
}

}  // namespace

const DialectTraits kCompressedTensors = {
    .dialect = Dialect::compressed_tensors,
    .name = "compressed-tensors",
    .quant_method = "compressed-tensors",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = [](Recipe recipe) { return scheme_of(recipe) != nullptr; },
    .inputs = inputs,
    .can_have = can_have,
    .preset = preset,
    .cache = cache,
    .key_scale = ".k_scale",
    .value_scale = ".v_scale",
    .can_mix = true,
    .mx_scale_mode = mx_scale_mode,
    .sense = TensorScaleSense::divisor,
    .parts = parts,
    .describe = describe,
};

}  // namespace blockscale::models
