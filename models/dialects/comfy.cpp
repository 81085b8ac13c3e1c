// ComfyUI (comfy/ops.py and comfy/quant_ops.py, over comfy-kitchen's tensors): X.weight,
// X.weight_scale, of NVFP4 also X.weight_scale_2 (a multiplier), X.input_scale (likewise) and
// X.pre_quant_scale [K], all with names, dtypes and shapes that ModelOpt has too. What tells them
// apart is a JSON object for each layer, in a header's metadata `_quantization_metadata` or in a
// tensor X.comfy_quant of bytes: block scales lie in tiles of 128 rows by 4, and of two 4-bit codes
// the first is in a byte's high bits. Elder files have FP8 only: X.scale_weight, X.scale_input and
// a mark `scaled_fp8`. Weights of whole numbers (comfy_integers.h) are read by their values. Read
// only.
#include "models/dialects/comfy.h"

#include <algorithm>
#include <array>

#include "models/dialects/comfy_integers.h"
#include "models/dialects/config_keys.h"
#include "models/dialects/declared.h"
#include "models/dialects/low_bit_forms.h"
#include "models/dialects/match.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

/// Of ComfyUI in November 2026. Keys of one format only are checked with it.
constexpr KnownKey kKeys[] = {
    {"metadata", "format_version", KeyValue::one_of, R"(["1.0", "1", 1])"},
    {"metadata", "layers", KeyValue::any},
    {"layer", "format", KeyValue::any},
    {"layer", "full_precision_matrix_mult", KeyValue::one_of, "[false, true]"},
    {"layer", "group_size", KeyValue::any},
    {"layer", "orig_dtype", KeyValue::any},
    {"layer", "orig_shape", KeyValue::any},
    {"layer", "num_experts", KeyValue::any},
    {"layer", "convrot", KeyValue::one_of, "[false, true]"},
    {"layer", "convrot_groupsize", KeyValue::any},
    {"layer", "quant_group_size", KeyValue::one_of, "[64]"},
    {"layer", "linear_dtype", KeyValue::one_of, R"(["int4", "int8"])"},
    {"layer", "act_unsigned", KeyValue::one_of, "[false]"},  // else inputs are shifted
    {"layer", "params", KeyValue::object, "params"},
    {"params", "group_size", KeyValue::any},
    {"params", "convrot", KeyValue::one_of, "[false, true]"},
    {"params", "convrot_groupsize", KeyValue::any},
    {"params", "linear_dtype", KeyValue::one_of, R"(["int4", "int8"])"},
};

/// Whether columns are rotated: as the layer says, or whatever it says.
enum class Rotation : std::uint8_t { never, said, always };

constexpr std::int64_t kOwnGroups = -1;  // the match reads `group_size`

struct ComfyFormat {
  const char* name;
  std::array<Recipe, 2> recipes;
  std::int64_t group_size = 0;                          // 0: none
  StoredWeight (*match)(const ComfySource&) = nullptr;  // of whole numbers, which no recipe has
  Rotation rotation = Rotation::never;
};
constexpr std::array kNoRecipe = {Recipe::fp8_tensor, Recipe::fp8_tensor};
constexpr std::array kFormats = {
    ComfyFormat{"float8_e4m3fn", {Recipe::fp8_tensor, Recipe::fp8_row}},
    ComfyFormat{"float8_e5m2", {Recipe::fp8_tensor_e5m2, Recipe::fp8_tensor_e5m2}},
    ComfyFormat{"mxfp8", {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3}, 32},
    ComfyFormat{"nvfp4", {Recipe::nvfp4, Recipe::nvfp4}, 16},
    ComfyFormat{"int8_tensorwise", kNoRecipe, 0, match_int8, Rotation::said},
    ComfyFormat{"convrot_w4a4", kNoRecipe, 0, match_convrot_w4a4, Rotation::always},
    ComfyFormat{"asym_w4a8_int8", kNoRecipe, kOwnGroups, match_asym_w4a8, Rotation::always},
    ComfyFormat{"awq_w4a16", kNoRecipe, kOwnGroups, match_awq_w4a16},
    ComfyFormat{"svdquant_w4a4", kNoRecipe, kOwnGroups, match_svdquant_w4a4},
};

const ComfyFormat& format_of(const std::string& layer, const ComfyLayer& said) {
  if (!said.json.is_object()) {
    throw Error(ErrorCode::corrupt_file, said.said_by,
                said_of(layer) + " is " + show_json(said.json) + ", must be an object");
  }
  const Json& name = member(said.json, "format");
  for (const ComfyFormat& format : kFormats) {
    if (name == format.name) return format;
  }
  std::string names;
  for (const ComfyFormat& format : kFormats) {
    names += names.empty() ? "" : &format == &kFormats.back() ? " and " : ", ";
    names += format.name;
  }
  throw Error(ErrorCode::unsupported, said.said_by,
              said_of(layer) + " has the format " + show_json(name) + ", readable are " + names);
}

/// ComfyUI multiplies codes and scales as they broadcast: [N] is no scale of a row there.
void check_broadcast(const FoundWeight& found) {
  if (found.values == nullptr || found.scales == nullptr) return;
  const std::vector<std::int64_t>& shape = found.scales->shape;
  const bool one = std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n == 1; });
  if (one || shape.size() == found.values->shape.size()) return;
  throw Error(ErrorCode::unsupported, found.scales->name,
              "has " + std::to_string(shape.size()) +
                  " dimensions, readable are one scale and as " +
                  "many dimensions as its weight has");
}

void check_words(const StoredWeight& weight, const ComfyFormat& format, const std::string& layer,
                 const ComfyLayer& said) {
  const auto check = [&](const char* key, const Json& wanted) {
    const Json& value = member(said.json, key);
    if (value.is_null() || value == wanted) return;
    throw Error(ErrorCode::unsupported, said.said_by,
                said_of(layer) + " has " + key + " " + show_json(value) + ", readable is " +
                    show_json(wanted));
  };
  if (format.group_size != kOwnGroups) {
    check("group_size", format.group_size == 0 ? Json() : Json(format.group_size));
  }
  if (format.rotation != Rotation::said) check("convrot", format.rotation == Rotation::always);
  if (format.match != match_convrot_w4a4) {
    for (const char* key : {"quant_group_size", "linear_dtype"}) check(key, Json());
  }
  check("orig_shape", weight.shape);  // another one: the stored rows or columns are padded
}

/// ComfyUI looks in `params` for what a layer itself does not say.
ComfyLayer with_params(ComfyLayer layer) {
  const Json params = member(layer.json, "params");
  if (!params.is_object()) return layer;
  for (const auto& [key, value] : params.items()) {
    if (member(layer.json, key.c_str()).is_null()) layer.json[key] = value;
  }
  return layer;
}

FoundWeight find_weight(const TensorStore& store, const std::string& layer, bool elder) {
  FoundWeight found;
  found.name = layer + ".weight";
  found.values = find_info(store, found.name);
  found.scales = find_info(store, layer + (elder ? ".scale_weight" : ".weight_scale"));
  found.input_scale = find_info(store, layer + (elder ? ".scale_input" : ".input_scale"));
  found.sense = TensorScaleSense::multiplier;
  return found;
}

/// ComfyUI takes no notice of a scale_input of 1, which it wrote where there was none.
void drop_no_input(const TensorStore& store, FoundWeight& found) {
  if (found.input_scale == nullptr || found.input_scale->dtype != DType::F32 ||
      found.input_scale->bytes != sizeof(float)) {
    return;
  }
  const std::span<const std::byte> bytes = store.data(*store.find(found.input_scale->name));
  constexpr std::array<std::byte, 4> kOne = {std::byte{0}, std::byte{0}, std::byte{0x80},
                                             std::byte{0x3F}};
  if (!std::equal(bytes.begin(), bytes.end(), kOne.begin(), kOne.end())) return;
  found.derived = found.input_scale;
  found.input_scale = nullptr;
}

bool is_fp8(const TensorInfo* info) {
  return info != nullptr && (info->dtype == DType::F8_E4M3 || info->dtype == DType::F8_E5M2);
}

bool is_elder_mark(const std::string& name) {
  return name == "scaled_fp8" || name.ends_with(".scaled_fp8");
}

bool recognises_names(const TensorStore& store) {
  const bool described =
      std::any_of(store.files().begin(), store.files().end(),
                  [](const auto& file) { return file.metadata().contains(kComfyMetadata); });
  return described ||
         std::any_of(store.tensors().begin(), store.tensors().end(), [&](const auto& tensor) {
           const std::string& name = tensor.first;
           const std::string elder = without_suffix(name, ".scale_weight");
           return name.ends_with(".comfy_quant") || is_elder_mark(name) ||
                  (!elder.empty() && is_fp8(find_info(store, elder + ".weight")));
         });
}

void add(std::map<std::string, ComfyLayer>& layers, const std::string& name, ComfyLayer layer) {
  const auto [found, added] = layers.try_emplace(name, layer);
  if (added || found->second.json == layer.json) return;
  throw Error(ErrorCode::unsupported, layer.said_by,
              said_of(name) + " differs from what " + found->second.said_by + " says");
}

/// Every shard may tell of all layers, and a tensor of its own.
std::map<std::string, ComfyLayer> layers_of(const TensorStore& store) {
  std::map<std::string, ComfyLayer> layers;
  for (const SafetensorsFile& file : store.files()) {
    const auto text = file.metadata().find(kComfyMetadata);
    if (text == file.metadata().end()) continue;
    for (auto& [name, layer] : parse_comfy_metadata(text->second, file.path().string())) {
      add(layers, name, std::move(layer));
    }
  }
  for (const auto& [name, entry] : store.tensors()) {
    const std::string layer = without_suffix(name, ".comfy_quant");
    if (layer.empty()) continue;
    if (entry.info.dtype != DType::U8) {
      throw Error(ErrorCode::corrupt_file, name,
                  "is " + std::string(dtype_name(entry.info.dtype)) + ", must be U8, a JSON text");
    }
    const std::span<const std::byte> bytes = store.data(entry);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    add(layers, layer, {parse_json(text, name), name});
  }
  return layers;
}

/// Scales and descriptions of weights that nothing describes.
void check_undescribed(const TensorStore& store, const std::set<std::string_view>& claimed) {
  for (const auto& [name, entry] : store.tensors()) {
    if (claimed.contains(name)) continue;
    for (const char* suffix :
         {".weight_scale", ".weight_scale_2", ".scale_weight", ".weight_s_rel"}) {
      const std::string layer = without_suffix(name, suffix);
      if (layer.empty() || find_info(store, layer + ".weight") == nullptr) continue;
      throw Error(ErrorCode::unsupported, name,
                  "scales a weight of which the file's description says nothing");
    }
  }
  check_low_bit_forms(store, claimed);
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig&) {
  static constexpr Recipe kElder[] = {Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2};
  std::vector<StoredWeight> weights;
  const std::map<std::string, ComfyLayer> layers = layers_of(store);
  for (const auto& [name, layer] : layers) weights.push_back(read_comfy_layer(store, name, layer));
  for (const auto& [name, entry] : store.tensors()) {
    const std::string layer = without_suffix(name, ".scale_weight");
    if (layer.empty() || layers.contains(layer)) continue;
    FoundWeight found = find_weight(store, layer, true);
    if (!is_fp8(found.values)) continue;
    drop_no_input(store, found);
    weights.push_back(match_any(found, kElder));
  }
  std::set<std::string_view> claimed;
  for (const StoredWeight& weight : weights) {
    for (const TensorInfo* info : weight.tensors()) claimed.insert(info->name);
  }
  check_undescribed(store, claimed);
  return weights;
}

/// Whether a stored scale of inputs has an effect in ComfyUI.
bool takes_input_scale(const Json& layer) {
  return std::ranges::any_of(kFormats, [&](const ComfyFormat& format) {
    return member(layer, "format") == format.name && format.match == nullptr &&
           format.recipes[0] != Recipe::mxfp8_e4m3;
  });
}

/// Inputs are quantized as weights are, unless a layer says that its products are not.
std::vector<InputGroup> inputs(const TensorStore& store, const SourceConfig&) {
  InputGroup none{.activations = Activations::none};
  InputGroup dynamic{.activations = Activations::dynamic};
  InputGroup calibrated{.activations = Activations::calibrated};
  for (const auto& [name, layer] : layers_of(store)) {
    const bool plain = member(layer.json, "full_precision_matrix_mult") == true ||
                       member(layer.json, "format") == "awq_w4a16";
    const bool has_scale =
        takes_input_scale(layer.json) && find_info(store, name + ".input_scale") != nullptr;
    (plain ? none : has_scale ? calibrated : dynamic).targets.push_back(name);
  }
  // Two elements of the elder mark say that products are not in FP8.
  bool elder_plain = false;
  for (const auto& [name, entry] : store.tensors()) {
    elder_plain |=
        is_elder_mark(name) &&
        entry.info.bytes * 8 == 2 * static_cast<std::uint64_t>(dtype_bits(entry.info.dtype));
  }
  for (const auto& [name, entry] : store.tensors()) {
    const std::string layer = without_suffix(name, ".scale_weight");
    if (layer.empty()) continue;
    FoundWeight found = find_weight(store, layer, true);
    drop_no_input(store, found);
    InputGroup& group = elder_plain ? none : found.input_scale != nullptr ? calibrated : dynamic;
    group.targets.push_back(layer);
  }
  std::vector<InputGroup> groups;
  for (InputGroup* group : {&none, &dynamic, &calibrated}) {
    if (!group->targets.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace

std::map<std::string, ComfyLayer> parse_comfy_metadata(std::string_view text,
                                                       const std::string& path) {
  SourceConfig here;
  here.config_path = path;
  const Json metadata = parse_json(text, path);
  const std::string key = std::string("metadata ") + kComfyMetadata;
  check_keys(metadata, "metadata", kKeys, key, here);
  const Json& layers = member(metadata, "layers");
  if (!layers.is_object()) {
    throw Error(ErrorCode::corrupt_file, path,
                key + ".layers is " + show_json(layers) + ", must be an object");
  }
  std::map<std::string, ComfyLayer> result;
  for (const auto& [name, layer] : layers.items()) result[name] = {layer, path};
  return result;
}

StoredWeight read_comfy_layer(const TensorStore& store, const std::string& name,
                              const ComfyLayer& said) {
  const ComfyFormat& format = format_of(name, said);
  SourceConfig here;
  here.config_path = said.said_by;
  check_keys(said.json, "layer", kKeys, said_of(name), here);
  const ComfyLayer layer = with_params(said);
  FoundWeight found = find_weight(store, name, false);
  found.derived = find_info(store, name + ".comfy_quant");
  if (found.values == nullptr) {
    throw Error(ErrorCode::corrupt_file, layer.said_by,
                said_of(name) + " is of no tensor: there is no " + quote(found.name, 200));
  }
  if (format.group_size != 0) {
    found.scale_layout = ScaleLayout::swizzled_128x4;
  } else if (format.match == nullptr || format.match == match_int8) {
    check_broadcast(found);
  }
  if (format.recipes[0] == Recipe::mxfp8_e4m3) found.input_scale = nullptr;  // of no effect
  if (format.recipes[0] == Recipe::nvfp4) {
    found.byte_scales = true;
    found.high_nibble_first = true;
    found.tensor_scale = find_info(store, name + ".weight_scale_2");
    found.channel_factors = find_info(store, name + ".pre_quant_scale");
  }
  const StoredWeight weight = format.match == nullptr
                                  ? match_any(found, format.recipes)
                                  : format.match({store, name, layer, format.name, found});
  check_words(weight, format, name, layer);
  return weight;
}

const DialectTraits kComfy = {
    .dialect = Dialect::comfy,
    .name = "comfy",
    .quant_method = "",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = [](Recipe) { return false; },
    .inputs = inputs,
    .can_have = [](Recipe, Activations) { return true; },
    .preset = [](Recipe) { return Activations::dynamic; },
    .can_mix = true,
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::multiplier,
};

}  // namespace blockscale::models
