// Checkpoints that are not written yet, as readers would find them.
#pragma once

#include <vector>

#include "blockscale/safetensors.h"

namespace blockscale {

/// A store of these tensors: names, dtypes and shapes, but no file and no data.
TensorStore header_store(const std::vector<TensorInfo>& tensors);

}  // namespace blockscale
