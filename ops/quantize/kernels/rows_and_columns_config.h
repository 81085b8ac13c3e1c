// The kernels of quantize_rows_and_columns, and what they are launched with.
//
// Compiled by the host, NVRTC and the emulator alike. A configuration is that of the quantizer for
// scales of 1 x 128 (config.h), but for its tile: a block of rows and of columns both ways.
#pragma once

#include "ops/quantize/kernels/config.h"

namespace blockscale {

/// Rows and columns of a tile: one block along k, and one along the rows of x.
inline constexpr uint32_t kTransposeTile = 128;

/// Both are what `quantize` of x, and of its transpose, would be launched with: rows.x is read and
/// columns.x is not, and tiles of x are numbered by rows.grid.
struct RowsAndColumnsParams {
  QuantizeParams rows;
  QuantizeParams columns;
};

/// Dynamic shared memory: the transposed codes of a tile (before them partial amaxes), factor and
/// reciprocal of the scale of each row and column, and a word of each warp.
inline constexpr uint32_t kTransposeCodesBytes = kTransposeTile * kTransposeTile;
inline constexpr uint32_t kTransposeSharedBytes =
    kTransposeCodesBytes + 4 * 4 * kTransposeTile + 8 * 4;

namespace detail {

BLOCKSCALE_HD constexpr QuantizeKernelList make_rows_and_columns_kernels() {
  QuantizeKernelList list;
  for (const Format input : kQuantizeInputs) {
    for (int i = 0; i < kFusedCount; ++i) {
      QuantizeConfig c;
      c.input = input;
      c.fused = static_cast<Fused>(i);
      c.chunk = 8;
      c.chunks = 8;
      c.threads = 256;
      c.min_blocks = holds_most(c) ? 1 : 2;
      list.add(c);
    }
  }
  return list;
}

}  // namespace detail

#if !defined(__CUDACC_RTC__)  // as kQuantizeKernels
inline constexpr QuantizeKernelList kRowsAndColumnsKernels =
    detail::make_rows_and_columns_kernels();
#endif

}  // namespace blockscale
