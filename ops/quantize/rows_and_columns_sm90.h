// The kernels of quantize_rows_and_columns for sm_90a, and what they are launched with.
//
// Compiled by the host, NVRTC and the emulator alike. A configuration is that of the quantiser for
// scales of 1 x 128 (kernels_sm90.h), but for its tile: a block of rows and of columns both ways.
#pragma once

#include "ops/quantize/kernels_sm90.h"

namespace blockscale {

/// Rows and columns of a tile: one block along k, and one along the rows of x.
inline constexpr uint32_t kTransposeTile = 128;

/// Both are what `quantize` of x, and of its transpose, would be launched with: rows.x is read and
/// columns.x is not, and tiles of x are numbered by rows.grid.
struct RowsAndColumnsParams {
  QuantizeParams rows;
  QuantizeParams columns;
};

/// What every kernel of the list does: threads of 16 columns of 8 rows, or of 4 rows where elements
/// are as wide as registers. Four tiles of 16-bit elements on a multiprocessor, or two of f32, are
/// 128 KiB in flight.
BLOCKSCALE_HD constexpr QuantizeConfig transpose_config(Format input) {
  const bool wide = input == Format::f32;
  QuantizeConfig c;
  c.input = input;
  c.chunks = wide ? 4 : 8;
  c.threads = wide ? 256 : 128;
  c.min_blocks = wide ? 2 : 4;
  return c;
}

inline constexpr QuantizeConfig kRowsAndColumnsKernels[] = {
    transpose_config(Format::bf16), transpose_config(Format::f16), transpose_config(Format::f32)};
inline constexpr int kRowsAndColumnsKernelCount = 3;

/// Dynamic shared memory: the transposed codes of a tile (and before them the maxima of its rows
/// and columns), the scales of its columns and of its rows with their reciprocals, and a word of
/// each warp.
inline constexpr uint32_t kTransposeCodesBytes = kTransposeTile * kTransposeTile;
inline constexpr uint32_t kTransposeSharedBytes =
    kTransposeCodesBytes + 4 * 4 * kTransposeTile + 8 * 4;

}  // namespace blockscale
