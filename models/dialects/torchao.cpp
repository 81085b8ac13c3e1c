// torchao (torchao.prototype.safetensors): M._weight_qdata, M._weight_scale and so on hold the
// tensors of a class; the file's metadata name the model's parameters ("tensor_names") and hold a
// JSON object for each with its class and attributes. Float8Tensor: one multiplier for each block
// of block_size. MXTensor: blocks of 32. NVFP4Tensor: a multiplier of the tensor, amax / 2688, or
// none. Block scales may be swizzled, in whole tiles of 128 rows by 4. Read only.
#include <algorithm>

#include "models/dialects/config_keys.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

constexpr const char* kNames = "tensor_names";

/// Of torchao 0.18.
constexpr KnownKey kAttributes[] = {
    {"Float8Tensor", "block_size", KeyValue::any},
    {"Float8Tensor", "mm_config", KeyValue::any},
    {"Float8Tensor", "act_quant_kwargs", KeyValue::any},
    {"Float8Tensor", "kernel_preference", KeyValue::any},
    {"Float8Tensor", "dtype", KeyValue::any},
    {"MXTensor", "elem_dtype", KeyValue::any},
    {"MXTensor", "block_size", KeyValue::one_of, "[32]"},
    {"MXTensor", "orig_dtype", KeyValue::any},
    {"MXTensor", "kernel_preference", KeyValue::any},
    {"MXTensor", "act_quant_kwargs", KeyValue::any},
    {"MXTensor", "is_swizzled_scales", KeyValue::one_of, "[false, true]"},
    {"NVFP4Tensor", "block_size", KeyValue::one_of, "[16]"},
    {"NVFP4Tensor", "orig_dtype", KeyValue::any},
    {"NVFP4Tensor", "is_swizzled_scales", KeyValue::one_of, "[false, true]"},
    {"NVFP4Tensor", "use_triton_kernel", KeyValue::any},
    {"NVFP4Tensor", "act_quant_kwargs", KeyValue::any},
};
constexpr const char* kParts[] = {"qdata", "scale", "per_tensor_scale", "act_per_tensor_scale"};

/// What the metadata say of one parameter, in a file called `file`.
struct Description {
  Json json;
  std::string file;
};

bool recognises_names(const TensorStore& store) {
  return std::any_of(store.files().begin(), store.files().end(),
                     [](const auto& file) { return file.metadata().contains(kNames); });
}

std::string metadata_of(const std::string& name) {
  return "metadata " + show_json(name);
}

/// By the name of the parameter; every shard may tell of all.
std::map<std::string, Description> descriptions(const TensorStore& store) {
  std::map<std::string, Description> result;
  for (const SafetensorsFile& file : store.files()) {
    const std::string path = file.path().string();
    const auto said = file.metadata().find(kNames);
    if (said == file.metadata().end()) continue;
    const Json names = parse_json(said->second, path);
    if (!names.is_array()) {
      throw Error(ErrorCode::corrupt_file, path, metadata_of(kNames) + " must be a list");
    }
    for (const Json& each : names) {
      const std::string name = each.is_string() ? each.get<std::string>() : "";
      const auto text = file.metadata().find(name);
      if (text == file.metadata().end()) {
        throw Error(ErrorCode::corrupt_file, path,
                    metadata_of(kNames) + " has " + show_json(each) + ", of which nothing is said");
      }
      const Json json = parse_json(text->second, path);
      const auto [found, added] = result.try_emplace(name, Description{json, path});
      if (!added && found->second.json != json) {
        throw Error(ErrorCode::unsupported, path,
                    metadata_of(name) + " differs from that in " + found->second.file);
      }
    }
  }
  return result;
}

/// "a.b._weight_" of a.b.weight.
std::string part_prefix(const std::string& name) {
  const std::size_t leaf = name.rfind('.') + 1;
  return name.substr(0, leaf) + "_" + name.substr(leaf) + "_";
}

bool is_swizzled(const Json& attributes) {
  return member(attributes, "is_swizzled_scales") == true;
}

std::vector<Recipe> recipes_of(const std::string& type, const Json& attributes,
                               const Description& description, const std::string& name) {
  if (type == "NVFP4Tensor") return {Recipe::nvfp4};
  if (type == "Float8Tensor") {
    return {Recipe::fp8_tensor, Recipe::fp8_row,   Recipe::fp8_128x128,    Recipe::fp8_64x128,
            Recipe::fp8_32x128, Recipe::fp8_1x128, Recipe::fp8_tensor_e5m2};
  }
  const Json& element = member(attributes, "elem_dtype");
  const Json& dtype = member(element, "_data");
  if (dtype == "float8_e4m3fn") return {Recipe::mxfp8_e4m3};
  if (dtype == "float8_e5m2") return {Recipe::mxfp8_e5m2};
  if (dtype == "float4_e2m1fn_x2") return {Recipe::mxfp4};
  throw Error(ErrorCode::unsupported, description.file,
              metadata_of(name) + " has elem_dtype " + show_json(element) +
                  ", readable are float8_e4m3fn, float8_e5m2 and float4_e2m1fn_x2");
}

/// Scales must be those of the blocks that the attributes state.
void check_block_size(const StoredWeight& weight, const Json& attributes,
                      const Description& description) {
  const Json& block = member(attributes, "block_size");
  bool fits = block.is_array() && block.size() == weight.shape.size() &&
              weight.scales->shape.size() == weight.shape.size();
  for (std::size_t i = 0; fits && i < weight.shape.size(); ++i) {
    const std::int64_t size = block[i].is_number_integer() ? block[i].get<std::int64_t>() : 0;
    fits = size > 0 && weight.scales->shape[i] == (weight.shape[i] - 1) / size + 1;
  }
  if (fits) return;
  throw Error(ErrorCode::corrupt_file, description.file,
              metadata_of(weight.name) + " has block_size " + show_json(block) +
                  ", which its scales do not have");
}

StoredWeight read_weight(const TensorStore& store, const std::string& name, const std::string& type,
                         const Description& description) {
  SourceConfig here;
  here.config_path = description.file;
  const Json& attributes = member(description.json, "_data");
  check_keys(attributes, type.c_str(), kAttributes, metadata_of(name) + "._data", here);
  const Json& parts = member(description.json, "_tensor_data_names");
  for (const Json& part : parts) {
    if (std::find(std::begin(kParts), std::end(kParts), part) == std::end(kParts)) {
      throw Error(ErrorCode::unsupported, description.file,
                  metadata_of(name) + " has a tensor " + show_json(part) +
                      ", and what it does to the weight is not known here");
    }
  }
  const std::string prefix = part_prefix(name);
  FoundWeight found;
  found.name = name;
  found.values = find_info(store, prefix + "qdata");
  found.scales = find_info(store, prefix + "scale");
  found.tensor_scale = find_info(store, prefix + "per_tensor_scale");
  found.input_scale = find_info(store, prefix + "act_per_tensor_scale");
  found.sense = TensorScaleSense::multiplier;
  found.no_tensor_scale = type == "NVFP4Tensor" && found.tensor_scale == nullptr &&
                          std::find(parts.begin(), parts.end(), kParts[2]) == parts.end();
  if (is_swizzled(attributes)) found.scale_layout = ScaleLayout::swizzled_128x4;
  const StoredWeight weight = match_any(found, recipes_of(type, attributes, description, name));
  if (type == "Float8Tensor") check_block_size(weight, attributes, description);
  return weight;
}

/// "" of a plain tensor.
std::string type_of(const std::string& name, const Description& description) {
  const Json& type = member(description.json, "_type");
  if (type == "Tensor" || type == "torch.Tensor") return "";
  if (type == "Float8Tensor" || type == "MXTensor" || type == "NVFP4Tensor") {
    return type.get<std::string>();
  }
  throw Error(ErrorCode::unsupported, description.file,
              metadata_of(name) + " is of the type " + show_json(type) +
                  ", readable are Tensor, Float8Tensor, MXTensor and NVFP4Tensor");
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  std::vector<StoredWeight> weights;
  const std::map<std::string, Description> described = descriptions(store);
  if (described.empty()) {
    throw Error(ErrorCode::unsupported, config.config_path,
                "quant_method is \"torchao\", but no file has the metadata \"tensor_names\" that "
                "torchao writes");
  }
  for (const auto& [name, description] : described) {
    const std::string type = type_of(name, description);
    if (!type.empty()) weights.push_back(read_weight(store, name, type, description));
  }
  return weights;
}

/// Each weight says it of its own.
std::vector<InputGroup> inputs(const TensorStore& store, const SourceConfig&) {
  InputGroup none{.activations = Activations::none};
  InputGroup dynamic{.activations = Activations::dynamic};
  InputGroup calibrated{.activations = Activations::calibrated};
  for (const auto& [name, description] : descriptions(store)) {
    if (type_of(name, description).empty()) continue;
    const bool has_scale = find_info(store, part_prefix(name) + "act_per_tensor_scale") != nullptr;
    const Json& arguments = member(member(description.json, "_data"), "act_quant_kwargs");
    InputGroup& group = has_scale ? calibrated : arguments.is_null() ? none : dynamic;
    group.targets.push_back(module_of(name));
  }
  std::vector<InputGroup> groups;
  for (InputGroup* group : {&none, &dynamic, &calibrated}) {
    if (!group->targets.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace

const DialectTraits kTorchao = {
    .dialect = Dialect::torchao,
    .name = "torchao",
    .quant_method = "torchao",
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
