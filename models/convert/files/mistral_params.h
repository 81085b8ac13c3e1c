// params.json, which Mistral's own checkpoints have in place of config.json.
#pragma once

#include <optional>

#include "models/checkpoint/checkpoint.h"

namespace blockscale::models {

inline constexpr const char* kMistralParams = "params.json";

/// Of a source in Mistral's FP8, the file without what it says of quantization, which the result
/// is not; nothing where it says none.
std::optional<Json> mistral_params(const StoredCheckpoint& source);

}  // namespace blockscale::models
