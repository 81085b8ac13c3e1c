// Scales of blocks as the factors of their codes.
#pragma once

#include <cstdint>

#include "blockscale/tensor.h"

namespace blockscale::steps {

/// Room that arrays of one entry a block leave after their last one (a vector's worth).
inline constexpr int kArrayPadding = 16;

/// What codes of `count` blocks are multiplied with: f32(s) * tensor_scale, or f32(s) / it.
/// `scales` are in the recipe's scale format. Both arrays have kArrayPadding entries of room after
/// `count`.
void scale_factors(Format scale, const void* scales, std::int64_t count, float tensor_scale,
                   TensorScaleSense sense, float* factors);

}  // namespace blockscale::steps
