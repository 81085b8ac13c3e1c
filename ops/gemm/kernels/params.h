// What the kernels of products are launched with.
#pragma once

#include "core/format.h"
#include "core/scale_layout.h"
#include "core/tensor_map.h"
#include "device/epilogue/linear.h"
#include "device/epilogue/quantize.h"
#include "device/scheduler/tile_order.h"
#include "ops/gemm/kernels/config.h"

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

/// Which rows of B are a tile's columns, where D is quantized: a tile has two runs of kRunColumns
/// of them, with swiglu the gates and their ups.
struct TileRuns {
  uint32_t tile_rows = 2 * kRunColumns;  // of B, from tile to tile
  uint32_t first[2] = {0, kRunColumns};  // row of B of each run of the first tile
  uint32_t step = 1;                     // rows of B from column to column
  bool have_maps = false;  // each run has its own tensor map, of as many rows as y has columns

  /// The row of B of a column of a run.
  BLOCKSCALE_HD uint32_t row(uint32_t tile, uint32_t run, uint32_t column) const {
    return tile * tile_rows + first[run] + column * step;
  }
  /// Where a run's box begins in its tensor map.
  BLOCKSCALE_HD uint32_t box_row(uint32_t tile, uint32_t run) const {
    return have_maps ? tile * kRunColumns : tile * tile_rows + first[run];
  }
};

struct alignas(64) Fp8GemmParams {
  // [batch, rows, k] bytes; boxes of 128 of k and a tile's rows, or fewer if A has fewer. In A's
  // last tile row they have as few as it has: to fill rows outside of A with zeros takes time; so
  // they have in B's last tile column (b_second). Where D is quantized, b and b_second have boxes
  // of a run.
  TensorMap a, a_last, b, b_second;
  TensorMap d;  // where epilogue.d.boxes: [batch, M, N]; boxes of 16 rows of store_bytes_of
  // Where scales are copied, [batch, k, rows] of layout mn_major, else [batch, rows, k]; boxes of
  // kScaleChunk of k, a tile's rows of A, one of B or, where rows are inner, kBoxRowsB.
  TensorMap a_scale_map, b_scale_map;
  GemmScales a_scales, b_scales;
  LinearEpilogue epilogue;
  QuantizingEpilogue quantize;  // where D is quantized, as `runs`
  TileRuns runs;
  // Of groups of 2^log2_parts tiles side by side, which one block computes in turn; the first one
  // of a row is number first_n of D's.
  TileOrder order;
  uint32_t log2_parts = 0;
  uint32_t first_n = 0;
  Divisor split;              // blocks of a cluster, which divide K
  uint32_t k_blocks = 0;      // of 128, the last may be ragged
  uint32_t split_blocks = 0;  // k-blocks of each block of a cluster, but the last ones
  uint32_t stages = 0;
  uint32_t a_bytes = 0;  // copied to a stage, and in the last tile row
  uint32_t a_last_bytes = 0;
  uint32_t b_bytes = 0;  // the same of B, and in the last tile column
  uint32_t b_last_bytes = 0;
  uint32_t b_chunk_bytes = 0;  // of a box of B's scales
  bool a_batched = false;      // a matrix for each of D's, else one for all
  bool b_batched = false;
  bool b_once = false;  // no two tiles read the same rows of B
  /// The kernel before it in the stream computes other columns of the same D: this one need not
  /// wait for it to begin, but must not end before it.
  bool is_beside = false;
};

}  // namespace blockscale
