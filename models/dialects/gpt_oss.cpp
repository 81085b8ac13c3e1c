// gpt-oss: experts in MXFP4, read only. P_blocks u8 [E, R, K/32, 16] and P_scales u8 [E, R, K/32]
// hold the stacked parameter P as [E, R, K]: rows are outputs (of gate_up_proj gate and up in
// turns), unlike the [E, in, out] that the same parameter has in a plain checkpoint.
#include "models/dialects/config_keys.h"

namespace blockscale::models {
namespace {

/// Mxfp4Config of transformers 5.23.
constexpr KnownKey kKeys[] = {
    {"config", "quant_method", KeyValue::any},
    {"config", "modules_to_not_convert", KeyValue::any},
    {"config", "dequantize", KeyValue::any},
};

bool recognises_names(const TensorStore& store) {
  for (const auto& [name, entry] : store.tensors()) {
    const std::string parameter = without_suffix(name, "_blocks");
    if (!parameter.empty() && store.find(parameter + "_scales") != nullptr) return true;
  }
  return false;
}

StoredWeight stored_weight(const std::string& name, const TensorInfo* blocks,
                           const TensorInfo* scales) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::corrupt_file, name, message);
  };
  if (blocks == nullptr) fail("has scales but no values " + name + "_blocks in any shard");
  if (scales == nullptr) fail("has no scales " + name + "_scales in any shard");
  if (blocks->dtype != DType::U8 || blocks->shape.size() != 4 || blocks->shape[3] != 16) {
    fail("its values " + blocks->name + " must be U8 [experts, rows, k/32, 16]");
  }
  if (blocks->bytes == 0) fail("its values " + blocks->name + " are empty");
  const std::vector<std::int64_t> grid(blocks->shape.begin(), blocks->shape.end() - 1);
  if (scales->dtype != DType::U8 || scales->shape != grid) {
    fail("its scales " + scales->name + " must be U8 of the shape of " + blocks->name +
         " without the last dimension");
  }
  StoredWeight weight;
  weight.name = name;
  weight.values = blocks;
  weight.scales = scales;
  weight.recipe = Recipe::mxfp4;
  weight.shape = {grid[0], grid[1], grid[2] * 32};
  return weight;
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  if (!config.quantization.is_null()) {
    check_keys(config.quantization, "config", kKeys, config.quantization_path, config);
  }
  std::vector<StoredWeight> weights;
  for (const auto& [name, entry] : store.tensors()) {
    if (const std::string parameter = without_suffix(name, "_scales"); !parameter.empty()) {
      weights.push_back(
          stored_weight(parameter, find_info(store, parameter + "_blocks"), &entry.info));
    } else if (const std::string values = without_suffix(name, "_blocks"); !values.empty()) {
      if (store.find(values + "_scales") == nullptr) stored_weight(values, &entry.info, nullptr);
    }
  }
  return weights;
}

}  // namespace

const DialectTraits kGptOss = {
    .dialect = Dialect::gpt_oss,
    .name = "gpt-oss",
    .quant_method = "mxfp4",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = [](Recipe) { return false; },
    .can_have = [](Recipe, Activations activations) { return activations == Activations::none; },
    .preset = [](Recipe) { return Activations::none; },
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::divisor,
};

}  // namespace blockscale::models
