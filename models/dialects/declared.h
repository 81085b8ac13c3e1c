// What the headers of the files, and other keys of config.json than a quantization_config, declare
// of how weights are quantized.
#pragma once

#include "models/dialects/dialect.h"

namespace blockscale::models {

/// The key of a header's metadata where ComfyUI describes its quantized layers.
inline constexpr const char* kComfyMetadata = "_quantization_metadata";

/// Throws unsupported where something declares that weights are quantized that nobody here reads,
/// or that contradicts the configuration.
void check_declared(const TensorStore& store, const SourceConfig& config);

/// Whether a member of a configuration says anything: not null, false or empty.
bool is_word(const Json& value);

}  // namespace blockscale::models
