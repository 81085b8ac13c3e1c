// What a layer's name says of it: its role, and which layers engines fuse with it. The names are
// data, collected from the sources that layer_names.cpp states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace blockscale::models {

template <class Values, class Value>
bool holds(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// What a tensor's name and shape say that it is.
enum class Role {
  linear,     // 2-D weight of a linear layer
  experts,    // 3-D stack of such weights
  embedding,  // a table that is looked up
  embedder,   // another 2-D weight by whose name an embedding is made
  norm,
  head,       // lm_head and its kind, classifiers
  router,     // of a mixture of experts
  sensitive,  // a linear layer that engines load in high precision only
  other,      // biases, buffers, convolutions
};
Role role_of(const std::string& name, const std::vector<std::int64_t>& shape);

/// Whether a weight, of whatever role, has the name of a table that is looked up:
/// `ngram_embedding`.
bool is_called_a_table(const std::string& name);

/// Why the default choice leaves a tensor of this role alone.
const char* role_reason(Role role);

/// Where a layer stands, with wrappers looked through: "a" and "q_proj" of "a.q_proj.linear.weight"
/// and of "a.q_proj.base_layer.weight", "a", "gate_proj" and "3" of "a.gate_proj.3.weight".
struct LayerPath {
  std::string container;  // "" at the top
  std::string name;
  std::string index;  // within a list that bears the name
};
LayerPath path_of(const std::string& weight);

/// Key of the weights that inference engines fuse with this one (q, k and v; gate and up), so that
/// they share a tensor scale. A weight that is fused with none has a key of its own.
std::string fused_group(const std::string& weight);

}  // namespace blockscale::models
