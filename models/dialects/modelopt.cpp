// ModelOpt: X.weight, X.weight_scale and, of NVFP4, X.weight_scale_2 f32 scalar (a multiplier,
// amax / 2688); X.input_scale likewise for calibrated activations; hf_quant_config.json beside
// config.json. Also reads its MXFP4, its FP8 of 128 x 128 blocks (scales [r, 1, c, 1]), and AWQ:
// X.pre_quant_scale [K], which multiplies the inputs of X. A stacked parameter P has P_weight_scale
// and so on.
#include <algorithm>
#include <iterator>

#include "models/dialects/config_keys.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

/// Prefix of the names of a weight's scales: "X." of X.weight, "X.P_" of a parameter X.P.
std::string scale_prefix(const std::string& weight) {
  const std::string module = without_suffix(weight, ".weight");
  return module.empty() ? weight + "_" : module + ".";
}

/// The weight whose scale is called `name`, or "": X.weight of X.weight_scale, P of P_weight_scale.
std::string weight_of_scale(const std::string& name) {
  const std::string module = without_suffix(name, ".weight_scale");
  return module.empty() ? without_suffix(name, "_weight_scale") : module + ".weight";
}

bool recognises_names(const TensorStore& store) {
  for (const auto& [name, entry] : store.tensors()) {
    if (name.ends_with("weight_scale_2")) return true;
  }
  return false;
}

constexpr const char* kAlgorithms =
    R"(["NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "fp8_pb_wo", "FP8_PB_WO", "MXFP8",
        "mxfp4", "MXFP4", "W4A8_MXFP4_FP8", "MIXED_PRECISION", ""])";

/// What ModelOpt 0.47 writes into config.json ("config") and hf_quant_config.json ("file",
/// "quantization"), and its elders, which put the one into the other. Group sizes are those of the
/// tensors or the tensors are refused.
constexpr KnownKey kKeys[] = {
    {"config", "quant_method", KeyValue::any},
    {"config", "producer", KeyValue::any},
    {"config", "quantization", KeyValue::object, "quantization"},
    {"config", "config_groups", KeyValue::objects, "group"},
    {"config", "ignore", KeyValue::any},
    {"config", "exclude_modules", KeyValue::any},
    {"config", "quant_algo", KeyValue::one_of, kAlgorithms},
    {"config", "kv_cache_quant_algo", KeyValue::any},
    {"config", "kv_cache_scheme", KeyValue::any},
    {"config", "group_size", KeyValue::any},
    {"config", "quantized_layers", KeyValue::objects, "layer"},
    {"config", "has_zero_point", KeyValue::unused},
    {"config", "pre_quant_scale", KeyValue::any},
    {"config", "lora_rank", KeyValue::unused},
    {"group", "targets", KeyValue::any},
    {"group", "weights", KeyValue::object, "weights"},
    {"group", "input_activations", KeyValue::object, "activations"},
    {"group", "has_zero_point", KeyValue::unused},
    {"group", "pre_quant_scale", KeyValue::any},
    {"group", "lora_rank", KeyValue::unused},
    {"weights", "dynamic", KeyValue::one_of, "[false]"},
    {"weights", "num_bits", KeyValue::one_of, "[4, 8]"},
    {"weights", "type", KeyValue::one_of, R"(["float"])"},
    {"weights", "group_size", KeyValue::any},
    {"weights", "strategy", KeyValue::one_of, R"(["tensor", "channel"])"},
    {"activations", "dynamic", KeyValue::any},
    {"activations", "num_bits", KeyValue::any},
    {"activations", "type", KeyValue::any},
    {"activations", "group_size", KeyValue::any},
    {"activations", "strategy", KeyValue::any},
    {"file", "producer", KeyValue::any},
    {"file", "quantization", KeyValue::object, "quantization"},
    {"quantization", "quant_algo", KeyValue::one_of, kAlgorithms},
    {"quantization", "kv_cache_quant_algo", KeyValue::any},
    {"quantization", "group_size", KeyValue::any},
    {"quantization", "exclude_modules", KeyValue::any},
    {"quantization", "quantized_layers", KeyValue::objects, "layer"},
    {"quantization", "has_zero_point", KeyValue::unused},
    {"quantization", "pre_quant_scale", KeyValue::any},
    {"quantization", "lora_rank", KeyValue::unused},
    {"layer", "quant_algo", KeyValue::one_of, kAlgorithms},
    {"layer", "group_size", KeyValue::any},
    {"layer", "has_zero_point", KeyValue::unused},
    {"layer", "pre_quant_scale", KeyValue::any},
    {"layer", "lora_rank", KeyValue::unused},
};

void check_configuration(const SourceConfig& config) {
  if (!config.quantization.is_null()) {
    check_keys(config.quantization, "config", kKeys, config.quantization_path, config);
  }
  if (!config.hf_quant_config.is_null()) {
    check_keys(config.hf_quant_config, "file", kKeys, "hf_quant_config.json", config);
  }
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  static constexpr Recipe kCandidates[] = {Recipe::nvfp4,      Recipe::mxfp4,
                                           Recipe::mxfp8_e4m3, Recipe::fp8_tensor,
                                           Recipe::fp8_row,    Recipe::fp8_128x128};
  check_configuration(config);
  std::vector<StoredWeight> weights;
  for (const auto& [name, entry] : store.tensors()) {
    FoundWeight found;
    found.sense = TensorScaleSense::multiplier;
    found.name = weight_of_scale(name);
    if (!found.name.empty()) {
      const std::string prefix = scale_prefix(found.name);
      found.values = find_info(store, found.name);
      found.scales = &entry.info;
      found.tensor_scale = find_info(store, prefix + "weight_scale_2");
      found.input_scale = find_info(store, prefix + "input_scale");
      found.channel_factors = find_info(store, module_of(found.name) + ".pre_quant_scale");
      weights.push_back(match_any(found, kCandidates));
      continue;
    }
    const std::string factor_of = without_suffix(name, "weight_scale_2");
    const bool packed =
        entry.info.dtype == DType::U8 && entry.info.shape.size() >= 2 && name.ends_with(".weight");
    if (!factor_of.empty() && find_info(store, factor_of + "weight_scale") == nullptr) {
      throw Error(ErrorCode::corrupt_file, name,
                  "has no block scales " + factor_of + "weight_scale in any shard");
    }
    if ((packed || (entry.info.dtype == DType::F8_E4M3 && name.ends_with(".weight"))) &&
        find_info(store, name + "_scale") == nullptr) {
      throw Error(ErrorCode::corrupt_file, name,
                  "is " + std::string(dtype_name(entry.info.dtype)) + " but has no scales " + name +
                      "_scale in any shard");
    }
  }
  return weights;
}

/// hf_quant_config.json has an algorithm; config.json a scheme for FP8, the algorithm for others.
std::optional<CacheScheme> cache(const SourceConfig& config) {
  Json algorithm;
  for (const Json* object : {&member(config.hf_quant_config, "quantization"), &config.quantization,
                             &member(config.quantization, "quantization")}) {
    const Json& said = member(*object, "kv_cache_quant_algo");
    if (algorithm.is_null() && said != "") algorithm = said;
  }
  const Json& scheme = member(config.quantization, "kv_cache_scheme");
  if (algorithm.is_null() && scheme.is_object()) {
    const bool fp8 = member(scheme, "num_bits") == 8 && member(scheme, "type") == "float" &&
                     member(scheme, "dynamic") != true;
    return CacheScheme{fp8, fp8 ? Json("FP8") : Json()};
  }
  if (algorithm.is_null()) algorithm = scheme;
  if (algorithm.is_null()) return std::nullopt;
  return CacheScheme{algorithm == "FP8", algorithm.is_string() ? algorithm : Json()};
}

/// The algorithms that are written; those that several recipes share tell them apart by the shapes.
struct Algorithm {
  Recipe recipe;
  Activations activations;
  const char* name;
  int group_size;  // 0: none
};
constexpr Algorithm kWritten[] = {
    {Recipe::nvfp4, Activations::none, "W4A16_NVFP4", 16},
    {Recipe::nvfp4, Activations::calibrated, "NVFP4", 16},
    {Recipe::fp8_tensor, Activations::calibrated, "FP8", 0},
    {Recipe::fp8_row, Activations::dynamic, "FP8_PER_CHANNEL_PER_TOKEN", 0},
    {Recipe::mxfp8_e4m3, Activations::dynamic, "MXFP8", 32},
};

const Algorithm* algorithm_of(Recipe recipe, Activations activations) {
  const auto found = std::find_if(
      std::begin(kWritten), std::end(kWritten),
      [&](const Algorithm& a) { return a.recipe == recipe && a.activations == activations; });
  return found == std::end(kWritten) ? nullptr : found;
}

bool can_have(Recipe recipe, Activations activations) {
  return algorithm_of(recipe, activations) != nullptr;
}

bool can_write(Recipe recipe) {
  return std::any_of(std::begin(kWritten), std::end(kWritten),
                     [&](const Algorithm& a) { return a.recipe == recipe; });
}

/// Those of ModelOpt's algorithms.
Activations preset(Recipe recipe) {
  return recipe == Recipe::nvfp4 || recipe == Recipe::fp8_tensor ? Activations::calibrated
                                                                 : Activations::dynamic;
}

Activations activations_of(const Json& algorithm) {
  for (const Algorithm& written : kWritten) {
    if (algorithm == written.name) return written.activations;
  }
  if (algorithm == "NVFP4_AWQ") return Activations::calibrated;
  // The last one's inputs are FP8, which is said of no MXFP4 elsewhere.
  const bool weights_only =
      algorithm == "fp8_pb_wo" || algorithm == "FP8_PB_WO" || algorithm == "W4A8_MXFP4_FP8";
  return weights_only ? Activations::none : Activations::dynamic;  // MXFP4 and its kind
}

/// The layers that a mixed checkpoint names, or one group of all weights.
std::vector<InputGroup> inputs(const TensorStore&, const SourceConfig& config) {
  std::vector<InputGroup> result;
  for (const Json* object : {&member(config.hf_quant_config, "quantization"), &config.quantization,
                             &member(config.quantization, "quantization")}) {
    for (const auto& [layer, words] : member(*object, "quantized_layers").items()) {
      result.push_back({.activations = activations_of(member(words, "quant_algo")),
                        .recipes = {},
                        .targets = {layer}});
    }
    const Json& algorithm = member(*object, "quant_algo");
    if (!result.empty()) return result;
    if (algorithm.is_string() && algorithm != "" && algorithm != "MIXED_PRECISION") {
      return {{.activations = activations_of(algorithm)}};
    }
  }
  return result;
}

std::vector<std::int64_t> factor_shape(std::int64_t count) {
  return count == 1 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{count};
}

/// One scale a tensor is a scalar, one a row a vector, each with the experts before it.
std::vector<std::int64_t> scale_shape(const WeightToWrite& weight) {
  std::vector<std::int64_t> shape = grid_shape(weight.recipe, weight.shape);
  const RecipeTraits& t = recipe_traits(weight.recipe);
  if (t.block_k == 0) shape.pop_back();
  if (t.block_rows == 0) shape.pop_back();
  return shape;
}

std::vector<PartToWrite> parts(const WeightToWrite& weight) {
  const std::string prefix = scale_prefix(weight.name);
  const RecipeTraits& t = recipe_traits(weight.recipe);
  const bool packed = format_traits(t.element).bits < 8;
  const DType scale = t.scale == Format::f32     ? DType::F32
                      : t.scale == Format::ue4m3 ? DType::F8_E4M3
                                                 : DType::U8;
  std::vector<PartToWrite> result = {
      {Part::values, tensor_info(weight.name, packed ? DType::U8 : DType::F8_E4M3,
                                 packed_shape(weight.recipe, weight.shape))},
      {Part::scales, tensor_info(prefix + "weight_scale", scale, scale_shape(weight))}};
  if (t.tensor_scale) {
    result.push_back({Part::tensor_scale, tensor_info(prefix + "weight_scale_2", DType::F32,
                                                      factor_shape(weight.tensor_scales))});
  }
  if (weight.activations == Activations::calibrated) {
    result.push_back({Part::input_scale, tensor_info(prefix + "input_scale", DType::F32,
                                                     factor_shape(weight.input_scales))});
  }
  return result;
}

/// What ModelOpt's exporter says of the numbers of an algorithm.
Json group_of(const Algorithm& algorithm) {
  const int bits = format_traits(recipe_traits(algorithm.recipe).element).bits;
  Json numbers = {{"dynamic", false}, {"num_bits", bits}, {"type", "float"}};
  if (algorithm.group_size != 0) numbers["group_size"] = algorithm.group_size;
  Json group;
  if (algorithm.activations != Activations::none) group["input_activations"] = numbers;
  if (algorithm.recipe == Recipe::fp8_row) numbers["strategy"] = "channel";
  group["weights"] = numbers;
  return group;
}

Json layer_of(const Algorithm& algorithm) {
  Json layer = {{"quant_algo", algorithm.name}};
  if (algorithm.group_size != 0) layer["group_size"] = algorithm.group_size;
  return layer;
}

/// One algorithm, or the mixed form: which one each layer has.
void describe(const Contents& contents, Documents& documents) {
  std::vector<std::pair<const Algorithm*, Json>> groups;  // and modules, as the exporter sorts them
  Json layers = Json::object();
  for (const WeightToWrite& weight : contents.quantized) {
    const Algorithm* algorithm = algorithm_of(weight.recipe, weight.activations);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& g) { return g.first == algorithm; });
    if (group == groups.end()) group = groups.insert(group, {algorithm, Json::array()});
    group->second.push_back(module_of(weight.name));
    layers[module_of(weight.name)] = layer_of(*algorithm);
  }
  const bool mixed = groups.size() > 1;
  const Json producer = {{"name", "modelopt"}, {"version", "0.47.0"}};
  Json cache;
  if (contents.cache) cache = contents.cache->fp8 ? Json("FP8") : contents.cache->words;

  Json quantization = mixed ? Json{{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}}
                            : layer_of(*groups[0].first);
  Json config = {{"ignore", contents.kept_modules},
                 {"quant_algo", quantization["quant_algo"]},
                 {"producer", producer},
                 {"quant_method", "modelopt"}};
  if (mixed) config["quantized_layers"] = layers;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Algorithm& algorithm = *groups[i].first;
    // Alone, these two have no group there.
    const Recipe recipe = algorithm.recipe;
    if (!mixed && (recipe == Recipe::fp8_row || recipe == Recipe::mxfp8_e4m3)) continue;
    Json group = group_of(algorithm);
    group["targets"] = mixed ? groups[i].second : targets_of_all(contents);
    config["config_groups"]["group_" + std::to_string(i)] = std::move(group);
  }
  if (!cache.is_null()) {
    config["kv_cache_scheme"] =
        cache == "FP8" ? Json{{"dynamic", false}, {"num_bits", 8}, {"type", "float"}} : cache;
  }
  quantization["kv_cache_quant_algo"] = cache;
  quantization["exclude_modules"] = contents.kept_modules;
  documents["config.json"]["quantization_config"] = std::move(config);
  documents["hf_quant_config.json"] = {{"producer", producer}, {"quantization", quantization}};
}

}  // namespace

const DialectTraits kModelOpt = {
    .dialect = Dialect::modelopt,
    .name = "modelopt",
    .quant_method = "modelopt",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = can_write,
    .inputs = inputs,
    .can_have = can_have,
    .preset = preset,
    .cache = cache,
    .key_scale = ".k_proj.k_scale",
    .value_scale = ".v_proj.v_scale",
    .can_mix = true,
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::multiplier,
    .parts = parts,
    .describe = describe,
};

}  // namespace blockscale::models
