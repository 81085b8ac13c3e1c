#include "models/convert/selection/layer_roles.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace blockscale::models {
namespace {

/// What configurations of transformers 4.57.1 and 5.23.0 call the number of (routed) experts.
constexpr auto kExpertCounts = std::to_array<const char*>({
    "moe_num_experts",
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "num_routed_experts",
});
constexpr auto kClassCounts = std::to_array<const char*>({"vocab_size", "num_labels"});

template <class Keys>
void collect(const Json& config, const Keys& keys, std::vector<std::int64_t>& numbers) {
  for (const Json* part : {&config, &member(config, "text_config")}) {
    for (const char* key : keys) {
      const Json& number = member(*part, key);
      if (number.is_number_integer()) numbers.push_back(number.get<std::int64_t>());
    }
  }
}

/// Names that a head or an embedding has at the top of a model, and a linear layer within a block.
bool is_word_of_both(std::string_view name) {
  constexpr auto kWords = std::to_array<std::string_view>(
      {"classifier", "embed", "head", "output_projection", "score", "shared", "summary"});
  return std::find(kWords.begin(), kWords.end(), name) != kWords.end();
}

}  // namespace

LayerRoles::LayerRoles(const StoredCheckpoint& source) : source_(source) {
  const Json& config = source.config().config;
  collect(config, kExpertCounts, experts_);
  collect(config, kClassCounts, classes_);
  const Json& labels = member(config, "id2label");
  if (labels.is_object()) classes_.push_back(static_cast<std::int64_t>(labels.size()));
}

Role LayerRoles::of(const CheckpointTensor& tensor) const {
  const Role role = role_of(tensor.name, tensor.shape);
  if (role == Role::router && is_gate_of_a_mlp(tensor)) return Role::linear;
  const bool may_be_both = role == Role::head || role == Role::embedding;
  return may_be_both && is_in_every_block(tensor) ? Role::linear : role;
}

/// A `gate` is a router where experts stand beside it, and half of a gated layer where that layer's
/// other matrices do.
bool LayerRoles::is_gate_of_a_mlp(const CheckpointTensor& tensor) const {
  const LayerPath path = path_of(tensor.name);
  if (path.name != "gate" || path.container.empty() || holds(experts_, tensor.shape[0])) {
    return false;
  }
  const std::string prefix = path.container + ".";
  const auto& tensors = source_.tensors();
  auto sibling = std::lower_bound(
      tensors.begin(), tensors.end(), prefix,
      [](const CheckpointTensor& t, const std::string& name) { return t.name < name; });
  bool has_layer = false;
  for (; sibling != tensors.end() && sibling->name.starts_with(prefix); ++sibling) {
    const std::string_view rest = std::string_view(sibling->name).substr(prefix.size());
    const bool is_stack = sibling->shape.size() == 3 && sibling->shape[1] > 1;
    if (rest.substr(0, rest.find('.')).find("expert") != std::string_view::npos || is_stack) {
      return false;
    }
    has_layer |= path_of(sibling->name).container == path.container &&
                 role_of(sibling->name, sibling->shape) == Role::linear;
  }
  return has_layer;
}

/// Whether the next block, or the one before, has the same layer, with outputs that are no classes.
bool LayerRoles::is_in_every_block(const CheckpointTensor& tensor) const {
  const LayerPath path = path_of(tensor.name);
  if (!is_word_of_both(path.name) || path.container.ends_with("shared_head")) return false;
  const std::int64_t outputs = tensor.shape[0];
  const bool few = outputs < 16;  // labels, where nothing says how many
  if (few || classes_.empty() || holds(classes_, outputs)) return false;
  const std::string& name = tensor.name;
  std::size_t end = name.rfind('.');
  while (end != std::string::npos && end > 0) {
    const std::size_t dot = name.rfind('.', end - 1);
    const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
    const std::string_view block = std::string_view(name).substr(begin, end - begin);
    const bool is_number =
        block.size() < 7 && block.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_number && end < name.rfind(path.name)) {
      const int number = std::stoi(std::string(block));
      for (const int other : {number - 1, number + 1}) {
        const CheckpointTensor* twin =
            source_.find(name.substr(0, begin) + std::to_string(other) + name.substr(end));
        if (twin != nullptr && twin->shape == tensor.shape) return true;
      }
    }
    end = dot;
  }
  return false;
}

}  // namespace blockscale::models
