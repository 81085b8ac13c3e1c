// Plain checkpoints: every tensor is stored as it is. Also the destination of dequantizing.
#include "models/dialects/dialect.h"
#include "models/dialects/low_bit_forms.h"

namespace blockscale::models {
namespace {

bool recognises_names(const TensorStore&) {
  return false;  // what no other dialect recognises is plain
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig&) {
  check_low_bit_forms(store, {});
  return {};
}

/// transformers' name of a plain format.
const char* torch_name(Recipe recipe) {
  return recipe == Recipe::f32 ? "float32" : recipe == Recipe::f16 ? "float16" : "bfloat16";
}

bool is_dtype_key(const std::string& key) {
  return key == "dtype" || key == "torch_dtype";
}

/// Sets what `config` and its parts (text_config, ...) say of the dtype. Returns whether any did.
bool set_dtype(Json& config, const char* name) {
  bool found = false;
  for (auto& [key, value] : config.items()) {
    if (is_dtype_key(key) && value.is_string()) {
      value = name;
      found = true;
    } else if (value.is_object()) {
      found |= set_dtype(value, name);
    }
  }
  return found;
}

void describe(const Contents& contents, Documents& documents) {
  Json& config = documents["config.json"];
  if (contents.plain_dtype && !config.empty()) {
    const char* name = torch_name(*contents.plain_dtype);
    // What transformers reads in every version, unless the source has another key for it.
    if (!set_dtype(config, name)) config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name;
  }
  if (config.empty()) config = nullptr;  // the source had none
  documents["hf_quant_config.json"] = nullptr;
}

}  // namespace

std::vector<PartToWrite> plain_parts(const WeightToWrite& weight) {
  const DType dtype = weight.recipe == Recipe::f32   ? DType::F32
                      : weight.recipe == Recipe::f16 ? DType::F16
                                                     : DType::BF16;
  return {{Part::values, tensor_info(weight.name, dtype, weight.shape)}};
}

const DialectTraits kPlain = {
    .dialect = Dialect::plain,
    .name = "plain",
    .quant_method = "",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = [](Recipe recipe) { return is_plain(recipe); },
    .can_have = [](Recipe, Activations activations) { return activations == Activations::none; },
    .preset = [](Recipe) { return Activations::none; },
    .can_mix = true,
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::divisor,
    .parts = plain_parts,
    .describe = describe,
};

}  // namespace blockscale::models
