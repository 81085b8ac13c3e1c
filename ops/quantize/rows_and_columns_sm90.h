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
/// columns.x is not.
///
/// Tiles of x are numbered by rows.grid as if they were a whole number of bands of `band_rows`
/// tiles from above to below; within a band from above to below first, so that neighbours both
/// ways, whose scales share sectors of memory, are worked on at about the same time.
struct RowsAndColumnsParams {
  QuantizeParams rows;
  QuantizeParams columns;
  Divisor band_rows = {};
  Divisor band_tiles = {};
  uint32_t down = 0;  // rows of a matrix that have tiles
};

/// Threads that work on a tile; a thread block may have several groups of so many.
BLOCKSCALE_HD constexpr uint32_t transpose_threads(const QuantizeConfig& c) {
  return kTransposeTile * kTransposeTile / static_cast<uint32_t>(c.chunk * c.chunks);
}

/// Whether x is copied to shared memory a tile ahead.
BLOCKSCALE_HD constexpr bool has_slot(const QuantizeConfig& c) {
  return c.persistent && !c.table;
}

/// Bytes of x of a tile.
BLOCKSCALE_HD constexpr uint32_t transpose_slot_bytes(const QuantizeConfig& c) {
  const uint32_t parts = c.transform == InputTransform::swiglu ? 2 : 1;
  const uint32_t element = c.input == Format::f32 ? 4 : 2;
  return kTransposeTile * kTransposeTile * element * parts;
}

/// Dynamic shared memory of a group of threads: the transposed codes of a tile (and before them the
/// maxima of its rows and columns), the scales of its columns and of its rows with their
/// reciprocals, and two words of each warp. Behind it the slot, if there is one.
inline constexpr uint32_t kTransposeCodesBytes = kTransposeTile * kTransposeTile;
inline constexpr uint32_t kTransposeSharedBytes =
    kTransposeCodesBytes + 4 * 4 * kTransposeTile + 2 * 8 * 4;

/// Whether large inputs have a kernel of their own, with a slot. From f32 two thread blocks of
/// swiglu's do not fit into shared memory, and those of modulate's not into registers.
BLOCKSCALE_HD constexpr bool has_large_transpose(Format input, InputTransform transform) {
  return input != Format::f32 ||
         (transform != InputTransform::swiglu && transform != InputTransform::modulate);
}

namespace detail {

/// Threads hold 16 columns of 8 rows where x is as narrow as its values are cheap; else of 4 rows.
/// Four thread blocks of the former fit on a multiprocessor, or two of the latter. Small inputs
/// take more threads a tile where nothing is fused.
BLOCKSCALE_HD constexpr QuantizeConfig transpose_config(Format input, InputTransform transform,
                                                        bool large) {
  const bool holds_x = transform == InputTransform::identity ||
                       transform == InputTransform::modulate ||
                       transform == InputTransform::rms_norm;
  const bool narrow = input != Format::f32 && holds_x;
  const bool spread = narrow && !large && transform == InputTransform::identity;
  const bool tall = narrow && !spread;
  QuantizeConfig c;
  c.input = input;
  c.transform = transform;
  c.chunks = tall ? 8 : 4;
  c.threads = tall ? 128 : 256;
  // Operands of modulate and a slot's addresses do not fit into 128 registers with x.
  const bool wide = spread || (tall && large && transform == InputTransform::modulate);
  c.min_blocks = wide ? 3 : tall ? 4 : 2;
  c.large = large;
  c.persistent = large;
  return c;
}

/// Two groups of threads that share a table.
BLOCKSCALE_HD constexpr QuantizeConfig transpose_table_config(Format input,
                                                              InputTransform transform) {
  QuantizeConfig c = transpose_config(input, transform, true);
  c.table = true;
  c.threads = 512;
  c.min_blocks = 1;
  return c;
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
      if (has_table(QuantizeKernel::blocks, input, transform)) {
        list.add(transpose_table_config(input, transform));
      }
    }
  }
  return list;
}

}  // namespace detail

inline constexpr QuantizeKernelList kRowsAndColumnsKernels =
    detail::make_rows_and_columns_kernels();

}  // namespace blockscale
