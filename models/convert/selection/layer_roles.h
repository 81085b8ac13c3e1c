// What each layer of a checkpoint is: what its name says, seen beside its siblings and config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/convert/selection/layer_names.h"

namespace blockscale::models {

class LayerRoles {
 public:
  explicit LayerRoles(const StoredCheckpoint& source);

  Role of(const CheckpointTensor& tensor) const;

 private:
  bool is_gate_of_a_mlp(const CheckpointTensor& tensor) const;
  bool is_in_every_block(const CheckpointTensor& tensor) const;

  const StoredCheckpoint& source_;
  std::vector<std::int64_t> experts_;  // how many there are, as config.json says
  std::vector<std::int64_t> classes_;  // outputs that heads have: the vocabulary, labels
};

}  // namespace blockscale::models
