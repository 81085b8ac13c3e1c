// Calibration files: what `blockscale.Calibrator` collected of each layer's input.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "blockscale/error.h"
#include "models/dialects/dialect.h"

namespace blockscale::models {

/// Largest magnitude of each layer's input, by the name of its weight or module: JSON (name ->
/// number), or a safetensors file of F32 tensors, NAME of one element or NAME.input_absmax of one a
/// channel, of which the largest counts. Throws corrupt_file for anything else, and for a largest
/// magnitude that is not finite and above 0.
std::map<std::string, float> read_activation_scales(const std::filesystem::path& file);

/// Numbers of each input channel, by the name of the weight or module.
using ChannelNumbers = std::map<std::string, std::vector<float>>;
/// Mean squares and means: the tensors NAME.input_mean_square and NAME.input_mean, F32 of one
/// dimension, of a safetensors file. Throws corrupt_file for others of those names, for a mean
/// square that is not finite and at least 0, and for a mean that is not finite.
struct CalibratedChannels {
  ChannelNumbers mean_squares, means;
};
CalibratedChannels read_calibrated_channels(const std::filesystem::path& file);

/// The entry of a weight: under its own name or that of its module. Null if there is none.
template <class Value>
const Value* entry_of(const std::map<std::string, Value>& entries, const std::string& weight) {
  auto found = entries.find(weight);
  if (found == entries.end()) found = entries.find(module_of(weight));
  return found == entries.end() ? nullptr : &found->second;
}

}  // namespace blockscale::models
