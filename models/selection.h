// Which tensors of a checkpoint are converted, and to what. docs/checkpoints.md has the rules.
#pragma once

#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "models/checkpoint.h"

namespace blockscale::models {

/// What a tensor's name and shape say that it is.
enum class Role {
  linear,   // 2-D weight of a linear layer
  experts,  // 3-D stack of such weights
  embedding,
  norm,
  head,    // lm_head and its kind
  router,  // of a mixture of experts
  other,   // biases, buffers, convolutions
};
Role role_of(const std::string& name, const std::vector<std::int64_t>& shape);

/// Whether `glob` (*, ?, [..]; * matches dots too) matches the weight's name or its module's.
bool glob_matches(const std::string& glob, const std::string& weight);

struct Decision {
  Recipe recipe = Recipe::f32;  // of the result
  bool convert = false;         // else the tensor stays as it is stored
  std::string reason;           // why it stays, or why it becomes something else than asked for
};

/// One decision a tensor of `source`. Throws invalid_argument for patterns that match nothing, for
/// nothing to convert, and for recipes that the destination cannot say.
std::vector<Decision> select(const StoredCheckpoint& source, const ConvertOptions& options,
                             const DialectTraits& destination);

/// Linear layers that stay plain, by module name, sorted: what a destination's configuration must
/// list so that engines do not expect them quantised.
std::vector<std::string> kept_modules(const StoredCheckpoint& source,
                                      const std::vector<Decision>& decisions);

/// Key of the weights that inference engines fuse with this one (q, k and v; gate and up), so that
/// they share a tensor scale. A weight that is fused with none has a key of its own.
std::string fused_group(const std::string& weight);

}  // namespace blockscale::models
