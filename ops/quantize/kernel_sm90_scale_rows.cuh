// The scales of quantize_rows_and_columns from columns of their grids into rows.
//
// A tile has one scale for each of its rows and columns. In row_major these lie far apart, and 256
// stores of 4 bytes cost a tenth of all its time. So kernels may store them one column of the grid
// after the other, as mn_major, into the workspace, and this one moves them: a thread takes eight
// neighbours of a row, which are whole sectors on both sides.
#pragma once

#include "core/config.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// Eight scales of a row of the grid, of which `count` exist.
template <class Scale>
BLOCKSCALE_DEVICE void move_scales(const ScaleMove& move, const Scale* from, Scale* to,
                                   uint32_t count) {
  constexpr uint32_t kAtOnce = kMovedScales;
  Scale scales[kAtOnce];
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kAtOnce; ++i) {
    if (i < count) scales[i] = ptx::ld_global(from + i * move.from_stride);
  }
  if (count == kAtOnce && move.vectors) {
    using Words = device::Vector<uint32_t, sizeof(Scale) == 1 ? 2 : 4>;
    constexpr uint32_t kVectors = kAtOnce * sizeof(Scale) / sizeof(Words);
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      Words words;
      BLOCKSCALE_UNROLL
      for (uint32_t w = 0; w < sizeof(Words) / 4; ++w) {
        constexpr uint32_t kInWord = 4 / sizeof(Scale);
        words.at[w] = 0;
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kInWord; ++i) {
          const uint32_t scale = scales[(v * (sizeof(Words) / 4) + w) * kInWord + i];
          words.at[w] |= scale << (32 / kInWord * i);
        }
      }
      ptx::st_global(reinterpret_cast<Words*>(to) + v, words);
    }
  } else {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (i < count) ptx::st_global(to + i, scales[i]);
    }
  }
}

}  // namespace blockscale::quantize_sm90

namespace blockscale {

/// Scales of 32 bits, f32, or of 8, ue8m0.
template <int kBits>
BLOCKSCALE_DEVICE void move_scales_into_rows(const ScaleMoves& params) {
  using Scale = UnsignedOf<kBits>;
  ptx::griddepcontrol_wait();
  const bool of_rows = ptx::ctaid_x() < params.rows.blocks;
  const ScaleMove& move = of_rows ? params.rows : params.columns;
  const uint32_t block = of_rows ? ptx::ctaid_x() : ptx::ctaid_x() - params.rows.blocks;
  const uint32_t matrix = move.blocks_of_matrix.quotient(block);
  const uint32_t in_matrix = block - matrix * move.blocks_of_matrix.divisor;
  const uint32_t group = move.blocks_of_column.quotient(in_matrix);
  const uint32_t first = in_matrix - group * move.blocks_of_column.divisor;
  const uint32_t row = first * kScaleMoveThreads + ptx::tid_x();
  const uint32_t column = group * kMovedScales;
  if (row >= move.rows) return;
  const Scale* const from = reinterpret_cast<const Scale*>(move.from) +
                            matrix * move.from_batch_stride + column * move.from_stride + row;
  Scale* const to = reinterpret_cast<Scale*>(move.to) + matrix * move.to_batch_stride +
                    row * move.to_stride + column;
  const uint32_t left = move.columns - column;
  quantize_sm90::move_scales(move, from, to, left < kMovedScales ? left : kMovedScales);
}

}  // namespace blockscale
