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

namespace detail {

/// Threads hold 16 columns of 8 rows where x is as narrow as its values are cheap; else of 4 rows.
/// Four thread blocks of the former on a multiprocessor, or two of the latter, are 128 KiB of x in
/// flight where it is not narrower. Small inputs take more threads a tile where nothing is fused.
BLOCKSCALE_HD constexpr QuantizeConfig transpose_config(Format input, InputTransform transform,
                                                        bool large) {
  const bool holds_x = transform == InputTransform::identity ||
                       transform == InputTransform::modulate ||
                       transform == InputTransform::rms_norm;
  const bool narrow = input != Format::f32 && holds_x;
  QuantizeConfig c;
  c.input = input;
  c.transform = transform;
  c.chunks = narrow && large ? 8 : 4;
  c.threads = narrow && large ? 128 : 256;
  c.min_blocks = !narrow ? 2 : large ? 4 : 3;
  c.large = large;
  return c;
}

BLOCKSCALE_HD constexpr bool has_small_transpose(Format input, InputTransform transform) {
  return input != Format::f32 && transform == InputTransform::identity;
}

BLOCKSCALE_HD constexpr QuantizeKernelList make_rows_and_columns_kernels() {
  QuantizeKernelList list;
  for (const Format input : kQuantizeInputs) {
    for (int t = 0; t < kInputTransformCount; ++t) {
      const auto transform = static_cast<InputTransform>(t);
      list.add(transpose_config(input, transform, true));
      if (has_small_transpose(input, transform)) {
        list.add(transpose_config(input, transform, false));
      }
    }
  }
  return list;
}

}  // namespace detail

inline constexpr QuantizeKernelList kRowsAndColumnsKernels =
    detail::make_rows_and_columns_kernels();

/// Dynamic shared memory: the transposed codes of a tile (and before them the maxima of its rows
/// and columns), the scales of its columns and of its rows with their reciprocals, and a word of
/// each warp.
inline constexpr uint32_t kTransposeCodesBytes = kTransposeTile * kTransposeTile;
inline constexpr uint32_t kTransposeSharedBytes =
    kTransposeCodesBytes + 4 * 4 * kTransposeTile + 8 * 4;

}  // namespace blockscale
