// What a layer's name says of it: its role, and which layers engines fuse with it. The names are
// data, collected from the sources that layer_names.cpp states.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscale::models {

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

/// Why the default choice leaves a tensor of this role alone.
const char* role_reason(Role role);

/// Key of the weights that inference engines fuse with this one (q, k and v; gate and up), so that
/// they share a tensor scale. A weight that is fused with none has a key of its own.
std::string fused_group(const std::string& weight);

}  // namespace blockscale::models
