// ComfyUI's description of quantized layers, as text from a file: apart from the dialect for its
// fuzzer.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "models/dialects/dialect.h"

namespace blockscale::models {

/// What is said of one layer, and where: a file's path or a tensor's name.
struct ComfyLayer {
  Json json;
  std::string said_by;
};

/// The layers of a header's `_quantization_metadata`, by name. Throws corrupt_file and unsupported
/// naming `path`.
std::map<std::string, ComfyLayer> parse_comfy_metadata(std::string_view text,
                                                       const std::string& path);

/// The weight that is said to be quantized as `layer` says. Throws likewise, naming what says it
/// or one of its tensors.
StoredWeight read_comfy_layer(const TensorStore& store, const std::string& name,
                              const ComfyLayer& said);

}  // namespace blockscale::models
