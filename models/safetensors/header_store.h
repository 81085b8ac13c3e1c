// Checkpoints that are not written yet, as readers would find them.
#pragma once

#include <filesystem>
#include <vector>

#include "blockscale/safetensors.h"

namespace blockscale {

/// A store of these tensors: names, dtypes and shapes, but no file and no data. `index` is the
/// name of its index, if there is one.
TensorStore header_store(const std::vector<TensorInfo>& tensors,
                         const std::filesystem::path& index = {});

}  // namespace blockscale
