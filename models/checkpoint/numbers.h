// Numbers of a file, whatever their dtype: for readers that must see every tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockscale/safetensors.h"

namespace blockscale::models {

/// Whether `widen` reads this dtype: all but packed FP4 and FP6, and complex ones.
bool has_numbers(DType dtype);

/// Elements [first, first + out.size()) of packed `data`, exactly (long double has at least the 64
/// bits of every integer). Needs no alignment.
void widen(DType dtype, const std::byte* data, std::int64_t first, std::span<long double> out);

}  // namespace blockscale::models
