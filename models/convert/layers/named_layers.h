// Quantized layers that a configuration must name, since engines do not expect them quantized by
// its word for all linear layers.
#pragma once

#include <string>
#include <vector>

#include "models/convert/layers/input_choice.h"
#include "models/convert/plan.h"
#include "models/convert/selection/layer_roles.h"

namespace blockscale::models {

class NamedLayers {
 public:
  explicit NamedLayers(const StoredCheckpoint& source) : roles_(source), said_(source) {}

  /// Heads and whatever else is no linear layer, and what the source names beside a class.
  bool hold(const CheckpointTensor& tensor) const;

 private:
  LayerRoles roles_;
  SourceInputs said_;
};

/// Of such layers that the destination's configuration has no place for, one line or none.
std::vector<std::string> warnings_of_unnamed(const Plan& plan);

}  // namespace blockscale::models
