// The kernels of quantize_rows_and_columns for sm_90a, and what they are launched with.
//
// Compiled by the host, NVRTC and the emulator alike. A configuration is that of the quantiser for
// scales of 1 x 128 (kernels_sm90.h), but for its tile: a block of rows and of columns both ways.
#pragma once

#include "ops/quantize/kernels_sm90.h"

namespace blockscale {

/// Rows and columns of a tile: one block along k, and one along the rows of x.
inline constexpr uint32_t kTransposeTile = 128;

/// Scales on their way from mn_major, in which a tile stores 128 side by side, to row_major, where
/// they lie a row of the grid apart: a thread block moves kMovedRows x kMovedColumns of them.
struct ScaleMove {
  const uint8_t* from = nullptr;    // at a multiple of 16 bytes
  int64_t from_leading_stride = 0;  // scales, a multiple of 16
  int64_t from_batch_stride = 0;    // the same
  uint8_t* to = nullptr;            // at a multiple of four scales
  int64_t to_leading_stride = 0;    // scales, a multiple of 4
  int64_t to_batch_stride = 0;      // the same
  uint32_t rows = 0;                // of the grid of a matrix, a multiple of 4
  uint32_t columns = 0;             // of it
  bool bytes = false;               // a scale has one byte, not four
  uint32_t blocks = 0;              // thread blocks
  Divisor across = {};              // those side by side
  Divisor per_matrix = {};          // those of a matrix
};
inline constexpr uint32_t kMovedRows = 128;
inline constexpr uint32_t kMovedColumns = 32;

/// Both are what `quantize` of x, and of its transpose, would be launched with: rows.x is read and
/// columns.x is not, and tiles of x are numbered by rows.grid.
struct RowsAndColumnsParams {
  QuantizeParams rows;
  QuantizeParams columns;
  ScaleMove row_scales = {};
  ScaleMove column_scales = {};

  /// Thread blocks behind those of the tiles. Where there are any the launch is behind another one
  /// for the same x: tiles do not wait, and these move the scales of that launch, which they wait
  /// for (rows_and_columns_cuda_parts.h).
  BLOCKSCALE_HD constexpr uint32_t moving_blocks() const {
    return row_scales.blocks + column_scales.blocks;
  }
};

namespace detail {

/// Columns of a thread. 16 bytes, so that a warp loads whole sectors, where that pays; where much
/// is computed, 16 columns, whose codes a thread stores at once.
BLOCKSCALE_HD constexpr int transpose_columns(Format input, InputTransform transform) {
  if (is_gelu(transform) || transform == InputTransform::swiglu) return 16;
  return input == Format::f32 ? 4 : 8;
}

/// The more a thread has in registers, the fewer of them fit: f32 (of swiglu the values), two
/// operands of modulate, factors of rows; x of a large input itself, four tiles of which are 128
/// KiB in flight.
BLOCKSCALE_HD constexpr QuantizeConfig transpose_config(Format input, InputTransform transform,
                                                        bool large) {
  const bool wide = input == Format::f32 || transform == InputTransform::swiglu;
  const bool four = !wide && (transform == InputTransform::modulate ||
                              (transform == InputTransform::identity && large));
  QuantizeConfig c;
  c.input = input;
  c.transform = transform;
  c.chunk = transpose_columns(input, transform);
  c.threads = four ? 128 : 256;
  c.chunks = static_cast<int>(kTransposeTile * kTransposeTile) / (c.chunk * c.threads);
  c.min_blocks = wide ? 2 : four ? 4 : 3;
  c.large = large;
  return c;
}

/// Whether a kernel has two forms, for small and for large inputs.
BLOCKSCALE_HD constexpr bool has_large_transpose(Format input, InputTransform transform) {
  return input != Format::f32 && transform == InputTransform::identity;
}

/// Whether a kernel can follow another launch of itself, which leaves scales for it to move: where
/// stores of scales are what costs time.
BLOCKSCALE_HD constexpr bool moves_scales(const QuantizeConfig& c) {
  return c.transform == InputTransform::identity &&
         (c.large || !has_large_transpose(c.input, c.transform));
}

BLOCKSCALE_HD constexpr QuantizeKernelList make_rows_and_columns_kernels() {
  QuantizeKernelList list;
  for (const Format input : kQuantizeInputs) {
    for (int t = 0; t < kInputTransformCount; ++t) {
      const auto transform = static_cast<InputTransform>(t);
      list.add(transpose_config(input, transform, false));
      if (has_large_transpose(input, transform)) {
        list.add(transpose_config(input, transform, true));
      }
    }
  }
  return list;
}

}  // namespace detail

#if !defined(__CUDACC_RTC__)  // as kQuantizeKernels
inline constexpr QuantizeKernelList kRowsAndColumnsKernels =
    detail::make_rows_and_columns_kernels();
#endif

/// Dynamic shared memory: the transposed codes of a tile (and before them the maxima of its rows
/// and columns), three words of each column and row about its scale, and a word of each warp.
inline constexpr uint32_t kTransposeCodesBytes = kTransposeTile * kTransposeTile;
inline constexpr uint32_t kTransposeSharedBytes =
    kTransposeCodesBytes + 6 * 4 * kTransposeTile + 8 * 4;

}  // namespace blockscale
