// The 128 bytes of a tensor map, as the emulator lays them out. Internal to the emulator.
#pragma once

#include <optional>

#include "core/tensor_map.h"

namespace blockscale::emulator {

/// What encode_tensor_map was given; none where the bytes are not its work.
std::optional<TensorMapDescription> decode_tensor_map(const TensorMap& map);

}  // namespace blockscale::emulator
