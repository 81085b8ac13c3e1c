// Which tensors of a checkpoint are converted, and to what. docs/checkpoints.md has the rules.
#pragma once

#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "models/checkpoint/checkpoint.h"
#include "models/convert/selection/layer_names.h"

namespace blockscale::models {

struct Decision {
  Recipe recipe = Recipe::f32;  // of the result
  bool convert = false;         // else the tensor stays as it is stored
  std::string reason;           // why it stays, or why it becomes something else than asked for
  std::string rule;             // as ConvertedTensor's
  bool transposed = false;      // the result is [.., k, rows]: a plain stack as the model has it
};

/// One decision a tensor of `source`. Throws invalid_argument for patterns that match nothing or
/// reach embeddings, for stacks of experts of unknown layout, for nothing to convert, and for
/// recipes that the destination cannot say.
std::vector<Decision> select(const StoredCheckpoint& source, const ConvertOptions& options,
                             const DialectTraits& destination);

/// Linear layers that stay plain, by module name, sorted: what a destination's configuration must
/// list so that engines do not expect them quantized.
std::vector<std::string> kept_modules(const StoredCheckpoint& source,
                                      const std::vector<Decision>& decisions);

}  // namespace blockscale::models
