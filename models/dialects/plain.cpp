// Plain checkpoints: every tensor is stored as it is. Also the destination of dequantizing.
#include "models/dialects/dialect.h"

namespace blockscale::models {
namespace {

bool recognises_names(const TensorStore&) {
  return false;  // what no other dialect recognises is plain
}

std::vector<StoredWeight> read(const TensorStore&, const SourceConfig&) {
  return {};
}

/// transformers' name of a plain format.
const char* torch_name(Recipe recipe) {
  return recipe == Recipe::f32 ? "float32" : recipe == Recipe::f16 ? "float16" : "bfloat16";
}

void describe(const Contents& contents, Documents& documents) {
  Json& config = documents["config.json"];
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (contents.plain_dtype && config.contains(key))
      config[key] = torch_name(*contents.plain_dtype);
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
    .has_input_scale = [](Recipe) { return false; },
    .cache = nullptr,
    .key_scale = nullptr,
    .value_scale = nullptr,
    .can_mix = true,
    .mx_scale_mode = MxScaleMode::ceil,
    .sense = TensorScaleSense::divisor,
    .parts = plain_parts,
    .describe = describe,
};

}  // namespace blockscale::models
