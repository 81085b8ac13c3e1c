// Codes that are stored otherwise than this library has them: plain tensors of 8-bit floats, and
// bytes whose first 4-bit code is in the high bits.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "blockscale/safetensors.h"

namespace blockscale::models {

/// Whether the numbers of this dtype are 8-bit floats that need no scale: E4M3 and E5M2, as OCP has
/// them and as FNUZ. (E8M0 holds scales, never numbers of a model.)
bool is_narrow_float(DType dtype);

/// Their values by code.
const std::array<float, 256>& narrow_values(DType dtype);

/// `bytes` with the two halves of each exchanged.
void swap_nibbles(std::span<const std::byte> bytes, std::byte* out);

}  // namespace blockscale::models
