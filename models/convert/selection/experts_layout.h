// How stacks of experts and other weights of known models lie in a checkpoint: scales run along k,
// which must be the last dimension.
#pragma once

#include <optional>
#include <string>

#include "blockscale/convert.h"

namespace blockscale::models {

/// Of the 3-D stacks that checkpoints of `model_type` hold, if it is known.
std::optional<ExpertsLayout> experts_layout_of(const std::string& model_type);

/// Whether `shape` [E, a, b] of a gate, up or down projection has `hidden_size` where `layout` has
/// not, and not where it has.
bool contradicts(ExpertsLayout layout, const std::string& weight,
                 const std::vector<std::int64_t>& shape, std::int64_t hidden_size);

/// Whether checkpoints of `model_type` hold this 2-D weight as [in, out].
bool is_transposed(const std::string& model_type, const std::string& weight);

}  // namespace blockscale::models
