// Calibrated activations: the largest magnitude of each weight's input.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "blockscale/error.h"

namespace blockscale::models {

/// Weight name -> absmax of its input, finite and above zero. Reads safetensors (a one-element F32
/// tensor each) or a JSON object of numbers. Throws corrupt_file naming the entry that is wrong.
std::map<std::string, float> read_activation_scales(const std::filesystem::path& file);

}  // namespace blockscale::models
