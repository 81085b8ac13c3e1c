// MXFP4 as NVFP4 without loss: codes stay, and powers of two become block scales in e4m3, whose
// powers of two reach from 2^-9 to 2^8, with a power of two as the tensor scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "blockscale/tensor.h"

namespace blockscale::models {

/// The largest shared exponent of packed MXFP4 rows, of blocks that hold a value other than 0.
std::optional<int> largest_exponent(const ScaledTensorView& rows);

/// Exponent of the tensor scale, as a multiplier, that keeps most blocks below `largest` exact.
int exact_tensor_exponent(std::optional<int> largest);

struct BlockCount {
  std::int64_t exact = 0;
  std::int64_t all = 0;  // of MXFP4, 32 values each
};

/// Puts codes and scales of the blocks of `rows` that NVFP4 with the tensor scale
/// 2^tensor_exponent holds exactly in the place of those in `values` and `scales`, which are
/// NVFP4's of the same rows.
BlockCount keep_exact_blocks(const ScaledTensorView& rows, int tensor_exponent, std::byte* values,
                             std::byte* scales);

}  // namespace blockscale::models
