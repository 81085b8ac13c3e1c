// What the tests of the converter share: a small model, and folders as values.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale::test {

/// Contents of every file under `folder`, by relative path.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[std::filesystem::relative(entry.path(), folder).string()] = read_text(entry.path());
  }
  return files;
}

inline TestTensor scaled(TestTensor tensor, float factor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  for (float& value : values) value *= factor;
  tensor.data = floats(values);
  return tensor;
}

/// One decoder layer: k of 128 and 256, ragged rows, siblings of different magnitudes, a stack of
/// experts, and one of everything that stays plain.
inline std::vector<TestTensor> small_model() {
  return {f32_tensor("model.embed_tokens.weight", {40, 128}, 1),
          f32_tensor("model.layers.0.norm.weight", {128}, 2),
          scaled(f32_tensor("model.layers.0.q_proj.weight", {130, 128}, 3), 3.0f),
          f32_tensor("model.layers.0.k_proj.weight", {64, 128}, 4),
          scaled(f32_tensor("model.layers.0.v_proj.weight", {64, 128}, 5), 0.5f),
          f32_tensor("model.layers.0.v_proj.bias", {64}, 6),
          f32_tensor("model.layers.0.o_proj.weight", {128, 128}, 7),
          f32_tensor("model.layers.0.mlp.gate.weight", {2, 128}, 8),
          f32_tensor("model.layers.0.mlp.experts.up_proj", {2, 48, 256}, 9),
          f32_tensor("lm_head.weight", {40, 128}, 10)};
}

inline const std::vector<std::string>& small_model_linears() {
  static const std::vector<std::string> names = {
      "model.layers.0.k_proj.weight", "model.layers.0.mlp.experts.up_proj",
      "model.layers.0.o_proj.weight", "model.layers.0.q_proj.weight",
      "model.layers.0.v_proj.weight"};
  return names;
}

/// Recipes with a dialect that writes them, without scales of activations.
struct Target {
  Recipe recipe;
  Dialect dialect;
};
inline std::string name_of(const Target& target) {
  return std::string(recipe_traits(target.recipe).name) + " in " + dialect_name(target.dialect);
}
inline std::vector<Target> targets_of_matrices() {
  std::vector<Target> targets;
  for (const RecipeTraits& t : kRecipes) {
    for (const models::DialectTraits& dialect : models::dialects()) {
      const bool needs_scales = !is_plain(t.recipe) &&
                                !dialect.can_have(t.recipe, Activations::none) &&
                                !dialect.can_have(t.recipe, Activations::dynamic);
      if (dialect.can_write(t.recipe) && !needs_scales)
        targets.push_back({t.recipe, dialect.dialect});
    }
  }
  return targets;
}
/// Of these, the dialects that have stacks, too.
inline std::vector<Target> all_targets() {
  std::vector<Target> targets = targets_of_matrices();
  std::erase_if(targets, [](const Target& target) {
    return !models::dialect_traits(target.dialect).has_stacks;
  });
  return targets;
}

inline ConvertOptions options_for(const Target& target) {
  ConvertOptions options;
  options.recipe = target.recipe;
  options.dialect = target.dialect;
  options.threads = 2;
  return options;
}

/// A tensor of a checkpoint in f32.
inline std::vector<float> values_of(const Checkpoint& checkpoint, const std::string& name) {
  const ScaledTensorView view = checkpoint.view(*checkpoint.find(name));
  std::vector<float> values(static_cast<std::size_t>(view.batch * view.rows * view.k));
  // One matrix at a time, so that this test relies on little of dequantize().
  for (std::int64_t b = 0; b < view.batch; ++b) {
    ScaledTensorView one = resolved(view, "view");
    one.values = static_cast<const std::byte*>(one.values) + b * one.value_batch_stride;
    if (one.scales != nullptr) {
      const int bits = format_traits(recipe_traits(one.recipe).scale).bits;
      one.scales =
          static_cast<const std::byte*>(one.scales) + b * one.scale_batch_stride * bits / 8;
    }
    if (one.tensor_scale != nullptr) one.tensor_scale += b * one.tensor_scale_batch_stride;
    one.batch = 1;
    one.tensor_scale_batch_stride = 0;
    const MutableMatrixView out{values.data() + b * view.rows * view.k, Format::f32, view.rows,
                                view.k};
    dequantize(one, out, 1);
  }
  return values;
}

/// Stored bytes of a tensor of the store (a part of a weight, by its own name).
inline std::string part(const Checkpoint& checkpoint, const std::string& name) {
  const TensorStore::Entry* entry = checkpoint.store().find(name);
  if (entry == nullptr) return "no tensor " + name;
  const std::span<const std::byte> data = checkpoint.store().data(*entry);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

inline float part_f32(const Checkpoint& checkpoint, const std::string& name) {
  const std::string bytes = part(checkpoint, name);
  if (bytes.size() != sizeof(float)) throw std::runtime_error(name + " is no f32");
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace blockscale::test
