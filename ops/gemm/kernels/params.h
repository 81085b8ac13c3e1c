// What kernels of products share of their parameters: how the scales of an operand lie.
#pragma once

#include "core/format.h"
#include "core/scale_layout.h"

namespace blockscale {

/// K is counted in blocks of so many elements: FP8's scales hold for one, or for all of K.
inline constexpr int kFp8BlockK = 128;

/// The scales of an operand, none if there is no data: that of (row, k-block) stands for
/// 2^row_shift rows. All layouts have the form row_offset + k_offset; where one scale holds for all
/// of K, or for all rows, the strides are 0.
struct GemmScales {
  const uint8_t* data = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  bool bytes = false;  // ue8m0 or ue4m3, else f32
  uint32_t row_shift = 0;
  int64_t row_stride = 0;  // of strided layouts, in scales; of swizzled ones the leading stride
  int64_t k_stride = 0;    // between neighbouring k-blocks of the same four
  int64_t k_stride_4 = 0;  // between fours
  int64_t batch_stride = 0;

  BLOCKSCALE_HD int64_t row_offset(uint32_t row) const {
    const int64_t i = row >> row_shift;
    if (layout == ScaleLayout::swizzled_128x4) {
      return scale_offset<ScaleLayout::swizzled_128x4>(i, 0, row_stride);
    }
    if (layout == ScaleLayout::swizzled_8x4) {
      return scale_offset<ScaleLayout::swizzled_8x4>(i, 0, row_stride);
    }
    return i * row_stride;
  }
  BLOCKSCALE_HD int64_t k_offset(uint32_t k_block) const {
    return (k_block >> 2) * k_stride_4 + (k_block & 3) * k_stride;
  }
};

/// The tensor scale of an operand.
struct TensorScale {
  const float* data = nullptr;  // null: 1
  int64_t stride = 0;           // between matrices
  bool divides = false;
};

/// A scale as it is stored: ue8m0, or the bits of an f32.
BLOCKSCALE_HD constexpr float scale_value(uint8_t code) {
  return decode<Format::ue8m0>(code);
}
BLOCKSCALE_HD constexpr float scale_value(uint32_t code) {
  return bit_cast<float>(code);
}

}  // namespace blockscale
