// What hf_quant_config.json says that config.json or the tensors contradict.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"

namespace blockscale::models {

/// One sentence a contradiction, and which of the two is followed.
std::vector<std::string> contradictions(const StoredCheckpoint& source);

}  // namespace blockscale::models
