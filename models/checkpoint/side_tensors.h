// Tensors beside the weights of a quantized checkpoint that belong to its quantization: scales of
// activations and of the key and value cache, zero points; and those that change what a weight
// means in a way that nobody here knows.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "models/dialects/dialect.h"

namespace blockscale::models {

enum class Side : std::uint8_t {
  none,         // the model's own
  key_scale,    // of the cache, a multiplier
  value_scale,  // likewise
  cache,        // of the cache or of attention, but nothing that dialects share
  cache_bias,   // likewise
  input,        // of a weight's input
  output,       // of a module's output
  zero_point,   // all zeros: it changes nothing
  description,  // of how weights are quantized, beside those that it describes
};

/// Whether tensors of this kind hold scales.
bool is_factor(Side kind);

struct SideTensor {
  Side kind = Side::none;
  std::string owner;  // name without the suffix: the attention of a cache's scale
};

/// What a tensor of this name is, where it is no part of a weight.
SideTensor side_tensor(const std::string& name);

/// Throws unsupported naming a tensor that is no part of `weights` (not in `claimed`) but changes
/// what one of them means: zero points, permutations, masks of sparse weights, factors of their
/// inputs, and whatever else a quantized linear layer has besides a bias.
void check_side_tensors(const TensorStore& store, std::span<const StoredWeight> weights,
                        const std::set<std::string_view>& claimed);

}  // namespace blockscale::models
