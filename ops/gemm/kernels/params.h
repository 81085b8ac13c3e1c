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

/// visitor(A's code, B's code) with values of the types that their scales are stored as.
template <class Visitor>
BLOCKSCALE_HD void visit_scale_codes(const GemmScales& a, const GemmScales& b,
                                     const Visitor& visitor) {
  if (a.bytes && b.bytes) {
    visitor(uint8_t{}, uint8_t{});
  } else if (a.bytes) {
    visitor(uint8_t{}, uint32_t{});
  } else if (b.bytes) {
    visitor(uint32_t{}, uint8_t{});
  } else {
    visitor(uint32_t{}, uint32_t{});
  }
}

struct alignas(64) Fp8GemmParams {
  TensorMap a, b;  // [batch, rows, k] bytes; boxes of a tile's rows and 128 of k
  TensorMap d;     // where epilogue.d.boxes: [batch, M, N]; boxes of 16 rows of store_bytes_of
  GemmScales a_scales, b_scales;
  LinearEpilogue epilogue;
  TileOrder order;
  uint32_t k_blocks = 0;      // of 128, the last may be ragged
  uint32_t split_blocks = 0;  // k-blocks of each block of a cluster, but the last ones
  uint32_t stages = 0;
  bool a_batched = false;  // a matrix for each of D's, else one for all
  bool b_batched = false;
  bool b_once = false;  // no two tiles read the same rows of B
};

inline constexpr uint32_t kFp8RowsThreads = 256;
inline constexpr uint32_t kFp8RowsWarps = kFp8RowsThreads / 32;
inline constexpr uint32_t kFp8RowsShared = kFp8RowsWarps * 8 * 8 * 4;  // bytes: each warp's sums

/// Of products with up to 8 rows of A.
struct Fp8RowsParams {
  const uint8_t* a = nullptr;  // rows begin at multiples of 16 bytes
  const uint8_t* b = nullptr;
  int64_t a_row_stride = 0;  // bytes
  int64_t b_row_stride = 0;
  int64_t a_batch_stride = 0;
  int64_t b_batch_stride = 0;
  GemmScales a_scales, b_scales;
  LinearEpilogue epilogue;
  uint32_t k = 0;            // a multiple of 16
  uint32_t k_blocks = 0;     // of 128, the last may be ragged
  uint32_t parts = 1;        // of K, one for each warp: 1, 2, 4 or 8
  uint32_t part_blocks = 0;  // k-blocks of a part, but of the last ones
};

}  // namespace blockscale
