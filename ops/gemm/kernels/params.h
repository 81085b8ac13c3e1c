// What the kernels of products are launched with.
#pragma once

#include "core/format.h"
#include "core/scale_layout.h"
#include "core/tensor_map.h"
#include "device/epilogue/linear.h"
#include "device/scheduler/tile_order.h"

namespace blockscale {

/// The scales of an operand: that of (row, k-block) stands for 2^row_shift rows. All layouts have
/// the form row_offset + k_offset; where one scale holds for all of K, or for all rows, the strides
/// are 0.
struct GemmScales {
  const uint8_t* data = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  bool bytes = false;  // ue8m0, else f32
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

/// A scale as it is stored: ue8m0, or the bits of an f32.
BLOCKSCALE_HD constexpr float scale_value(uint8_t code) {
  return decode<Format::ue8m0>(code);
}
BLOCKSCALE_HD constexpr float scale_value(uint32_t code) {
  return bit_cast<float>(code);
}

struct alignas(64) Fp8GemmParams {
  // [batch, rows, k] bytes; boxes of 128 of k and a tile's rows, or fewer if A has fewer. In A's
  // last tile row they have as few as it has: to fill rows outside of A with zeros takes time.
  TensorMap a, a_last, b;
  TensorMap d;  // where epilogue.d.boxes: [batch, M, N]; boxes of 16 rows of store_bytes_of
  GemmScales a_scales, b_scales;
  LinearEpilogue epilogue;
  TileOrder order;
  Divisor split;              // blocks of a cluster, which divide K
  uint32_t k_blocks = 0;      // of 128, the last may be ragged
  uint32_t split_blocks = 0;  // k-blocks of each block of a cluster, but the last ones
  uint32_t stages = 0;
  uint32_t copied_bytes = 0;  // to a stage: of both boxes
  uint32_t last_bytes = 0;    // the same with a_last
  bool a_batched = false;     // a matrix for each of D's, else one for all
  bool b_batched = false;
  bool b_once = false;  // no two tiles read the same rows of B
  /// The kernel before it in the stream computes other columns of the same D: this one need not
  /// wait for it to begin, but must not end before it.
  bool is_beside = false;
};

}  // namespace blockscale
