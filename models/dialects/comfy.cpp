// ComfyUI (comfy/ops.py and comfy/quant_ops.py, over comfy-kitchen's tensors): X.weight,
// X.weight_scale, of NVFP4 also X.weight_scale_2 (a multiplier), X.input_scale (likewise) and
// X.pre_quant_scale [K], all with names, dtypes and shapes that ModelOpt has too. What tells them
// apart is a JSON object for each layer, in a header's metadata `_quantization_metadata` or in a
// tensor X.comfy_quant of bytes: block scales lie in tiles of 128 rows by 4, and of two 4-bit codes
// the first is in a byte's high bits. Elder files have FP8 only: X.scale_weight, X.scale_input and
// a mark `scaled_fp8`. INT8 and rotated INT4 (X.weight I8, X.weight_scale) are read by their
// values. Read only.
#include "models/dialects/comfy.h"

#include <algorithm>
#include <array>

#include "models/checkpoint/rotation.h"
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
    {"layer", "params", KeyValue::unused},
};

struct ComfyFormat {
  const char* name;
  std::array<Recipe, 2> recipes;
  int group_size;        // 0: none
  int integer_bits = 0;  // of values that no recipe has
};
constexpr std::array kFormats = {
    ComfyFormat{"float8_e4m3fn", {Recipe::fp8_tensor, Recipe::fp8_row}, 0},
    ComfyFormat{"float8_e5m2", {Recipe::fp8_tensor_e5m2, Recipe::fp8_tensor_e5m2}, 0},
    ComfyFormat{"int8_tensorwise", {Recipe::fp8_tensor, Recipe::fp8_tensor}, 0, 8},
    ComfyFormat{"convrot_w4a4", {Recipe::fp8_tensor, Recipe::fp8_tensor}, 0, 4},
    ComfyFormat{"mxfp8", {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3}, 32},
    ComfyFormat{"nvfp4", {Recipe::nvfp4, Recipe::nvfp4}, 16},
};

/// Formats that have no values of their own, and why.
struct NoValues {
  const char* name;
  const char* reason;
};
constexpr NoValues kNoValues[] = {
    {"awq_w4a16", " (its values depend on the dtype that a layer computes in)"},
    {"asym_w4a8_int8", " (its values depend on the dtype that a layer computes in)"},
    {"svdquant_w4a4", " (its values are what products with quantized inputs show)"},
};

std::string where(const std::string& layer) {
  return "what is said of layer " + quote(layer, 200);
}

const ComfyFormat& format_of(const std::string& layer, const ComfyLayer& said) {
  if (!said.json.is_object()) {
    throw Error(ErrorCode::corrupt_file, said.said_by,
                where(layer) + " is " + show_json(said.json) + ", must be an object");
  }
  const Json& name = member(said.json, "format");
  for (const ComfyFormat& format : kFormats) {
    if (name == format.name) return format;
  }
  std::string reason;
  for (const NoValues& format : kNoValues) {
    if (name == format.name) reason = format.reason;
  }
  throw Error(
      ErrorCode::unsupported, said.said_by,
      where(layer) + " has the format " + show_json(name) + reason +
          ", readable are float8_e4m3fn, float8_e5m2, int8_tensorwise, convrot_w4a4, mxfp8 " +
          "and nvfp4");
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
                where(layer) + " has " + key + " " + show_json(value) + ", readable is " +
                    show_json(wanted));
  };
  check("group_size", format.group_size == 0 ? Json() : Json(format.group_size));
  if (weight.integer_bits == 0) check("convrot", false);
  if (weight.integer_bits == 4) {
    check("convrot", true);
  } else {
    for (const char* key : {"quant_group_size", "linear_dtype"}) check(key, Json());
  }
  check("orig_shape", weight.shape);  // another one: the stored rows or columns are padded
}

/// How many of K columns are rotated together; 0: none.
std::int64_t rotated_columns(std::int64_t k, bool always, const std::string& layer,
                             const ComfyLayer& said) {
  if (!always && member(said.json, "convrot") != true) return 0;
  const Json& value = member(said.json, "convrot_groupsize");
  const std::int64_t size = value.is_null()             ? 256
                            : value.is_number_integer() ? value.get<std::int64_t>()
                                                        : 0;
  if (size > 0 && is_rotation_size(size) && k % size == 0) return size;
  throw Error(ErrorCode::unsupported, said.said_by,
              where(layer) + " has convrot_groupsize " +
                  (value.is_null() ? "256" : show_json(value)) +
                  ", readable are powers of 4 that divide " + std::to_string(k));
}

/// Whole numbers with one scale, or one a row, which no recipe has. Those of 4 bits are rotated,
/// and have one a row.
StoredWeight match_integers(const FoundWeight& found, const ComfyFormat& format,
                            const std::string& layer, const ComfyLayer& said) {
  const bool is_int4 = format.integer_bits == 4;
  const TensorInfo& values = *found.values;
  const auto refuse = [](const TensorInfo& info, const std::string& message) {
    throw Error(ErrorCode::corrupt_file, info.name, message);
  };
  if (values.dtype != DType::I8 || values.shape.size() != 2 || values.bytes == 0) {
    refuse(values, "is " + std::string(dtype_name(values.dtype)) + " of shape " +
                       shape_text(values.shape) + ", must be I8 of two dimensions for " +
                       format.name);
  }
  if (found.scales == nullptr) {
    refuse(values, "has no scales, which " + std::string(format.name) + " needs");
  }
  const TensorInfo& scales = *found.scales;
  const std::int64_t rows = values.shape[0], columns = values.shape[1] * 8 / format.integer_bits;
  std::vector<std::int64_t> each_row = {rows};
  if (!is_int4) each_row.push_back(1);
  const bool one =
      !is_int4 && std::ranges::all_of(scales.shape, [](std::int64_t n) { return n == 1; });
  if (!is_scale_dtype(Format::f32, scales.dtype) || (!one && scales.shape != each_row)) {
    refuse(scales, "is " + std::string(dtype_name(scales.dtype)) + " of shape " +
                       shape_text(scales.shape) + ", must be floats of shape " +
                       (is_int4 ? "" : "[] or ") + shape_text(each_row) + " for " + format.name +
                       " of " + shape_text(values.shape));
  }
  StoredWeight weight;
  static_cast<FoundWeight&>(weight) = found;
  weight.recipe = Recipe::fp8_tensor;
  weight.shape = {rows, columns};
  weight.integer_bits = format.integer_bits;
  weight.rotated_columns = rotated_columns(columns, is_int4, layer, said);
  weight.channel_factors = found.scales;
  weight.factor_block = {one ? rows : 1, columns};
  weight.scales = nullptr;
  weight.input_scale = nullptr;  // inputs are quantized as they come
  return weight;
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
              where(name) + " differs from what " + found->second.said_by + " says");
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
    for (const char* suffix : {".weight_scale", ".weight_scale_2", ".scale_weight"}) {
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
    for (const TensorInfo* info : {weight.values, weight.scales, weight.tensor_scale,
                                   weight.input_scale, weight.channel_factors, weight.derived}) {
      if (info != nullptr) claimed.insert(info->name);
    }
  }
  check_undescribed(store, claimed);
  return weights;
}

/// Inputs are quantized as weights are, unless a layer says that its products are not.
std::vector<InputGroup> inputs(const TensorStore& store, const SourceConfig&) {
  InputGroup none{.activations = Activations::none};
  InputGroup dynamic{.activations = Activations::dynamic};
  InputGroup calibrated{.activations = Activations::calibrated};
  for (const auto& [name, layer] : layers_of(store)) {
    const bool plain = member(layer.json, "full_precision_matrix_mult") == true;
    const bool has_scale = find_info(store, name + ".input_scale") != nullptr;
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
                              const ComfyLayer& layer) {
  const ComfyFormat& format = format_of(name, layer);
  SourceConfig here;
  here.config_path = layer.said_by;
  check_keys(layer.json, "layer", kKeys, where(name), here);
  FoundWeight found = find_weight(store, name, false);
  found.derived = find_info(store, name + ".comfy_quant");
  if (found.values == nullptr) {
    throw Error(ErrorCode::corrupt_file, layer.said_by,
                where(name) + " is of no tensor: there is no " + quote(found.name, 200));
  }
  if (format.group_size != 0) {
    found.scale_layout = ScaleLayout::swizzled_128x4;
  } else if (format.integer_bits != 4) {  // of which rows have one by one dimension
    check_broadcast(found);
  }
  if (format.recipes[0] == Recipe::mxfp8_e4m3) found.input_scale = nullptr;  // of no effect
  if (format.recipes[0] == Recipe::nvfp4) {
    found.byte_scales = true;
    found.high_nibble_first = true;
    found.tensor_scale = find_info(store, name + ".weight_scale_2");
    found.channel_factors = find_info(store, name + ".pre_quant_scale");
  }
  const StoredWeight weight = format.integer_bits != 0 ? match_integers(found, format, name, layer)
                                                       : match_any(found, format.recipes);
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
