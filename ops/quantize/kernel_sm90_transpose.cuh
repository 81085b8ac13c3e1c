// Scales for 1 x 128 blocks along the rows of x and along its columns, and both sets of codes, the
// second one transposed, from one read of x.
//
// A thread block holds a tile of 128 x 128 in registers: a thread a chunk of each of a few
// consecutive rows. Shared memory brings together what threads know of the same row or column, in
// four steps with a barrier between each two:
//
//   1. Each thread writes the maxima of its part of each row, and each warp those of its part of
//      each column.
//   2. A thread for each row and each column finds and stores its scale.
//   3. Each thread stores the codes of its rows, and writes those of its columns. An element is
//      computed once for both: four rows and four columns at a time give four codes of each.
//   4. Columns are read back, 16 codes at a time, and stored. The next kernel may start then.
//
// In step 3 a thread's codes of a column are 4, 8 or 16 bytes. 16 rows of a column are a *unit* of
// 16 bytes; the units of a column are permuted by its number, so that all 32 banks are touched once
// whether eight lanes write units of their columns, or 8 lanes read the units of one column. The
// maxima and the scales of columns, which threads write in another order than they read them, are
// permuted in the same way (`permuted`); those of rows are padded.
//
// GELU of 16-bit elements is encoded from approximate values (kernel_sm90_gelu_codes.cuh), and x is
// held until then: its largest magnitude in a row or column follows from the largest x.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_transpose_lines.cuh"
#include "ops/quantize/kernel_sm90_transpose_moves.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// A tile of x, and a thread's part of it. Functions are collective.
template <QuantizeConfig kConfig>
class TransposeTile {
  using Lines = TileLines<kConfig>;
  using Values = ValueChunk<kConfig>;
  using Words = device::Vector<uint32_t, 4>;
  static constexpr bool kLikely = Lines::kLikely;
  static constexpr uint32_t kColumns = Lines::kColumns;
  static constexpr uint32_t kRows = Lines::kRows;
  static constexpr uint32_t kUnits = kTransposeTile / 16;  // of a column

 public:
  BLOCKSCALE_DEVICE TransposeTile(const RowsAndColumnsParams& p, const TilePlace& tile)
      : p_(p), lines_(p, tile), chunks_(p.rows, lines_.place(0), 1) {
    // Each chunk exists as a whole, or lies beyond the matrix.
    const bool holds =
        p.rows.x.vectors && p.rows.value_vectors && p.rows.k % kConfig.chunk == 0 &&
        rows_share_operands<kConfig>(p.rows, tile.matrix, place(0).row, place(kRows - 1).row);
    holds_ = ptx::vote_sync_all(ptx::kFullMask, holds);
  }

  BLOCKSCALE_DEVICE void quantize() {
    if (holds_) {
      chunks_.load(await_factors);
      lines_.share_maxima_of_held([&](uint32_t u) { return chunks_.values(u); });
    } else {
      await_factors();
      lines_.share_maxima_row_by_row();
    }
    ptx::barrier_sync_all();
    lines_.find_scales(holds_);
    ptx::barrier_sync_all();  // the maxima have been read, and the scales written
    if (holds_ && !lines_.any_exceptional_scale()) {
      encode_both();
    } else {
      quantize_exactly();
    }
    ptx::barrier_sync_all();
    ptx::griddepcontrol_launch_dependents();  // if they have not let it start before
    store_columns();
  }

 private:
  /// The kernel before finds rms_norm's factors. It has waited for whoever wrote x, and lets this
  /// one start then.
  BLOCKSCALE_DEVICE static void await_factors() {
    if constexpr (kConfig.transform == InputTransform::rms_norm) ptx::griddepcontrol_wait();
  }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const { return lines_.place(u); }

  // ---------------------------------------------------------------- codes

  using RowCodes = Codes<kConfig.element, kConfig.chunk>;
  using ColumnCodes = device::Vector<uint32_t, kRows / 4>;

  /// Address of the codes of rows 16 * unit and the 15 below it.
  BLOCKSCALE_DEVICE ptx::SharedAddress codes_at_unit(uint32_t column, uint32_t unit) const {
    return device::shared_base() +
           (column * kTransposeTile + (unit ^ column / kColumns % kUnits) * 16);
  }

  /// Address of the code of the thread's column i in a row of the tile.
  BLOCKSCALE_DEVICE ptx::SharedAddress column_codes_at(uint32_t i, uint32_t row) const {
    return codes_at_unit(lines_.first_column() + i, row / 16) + row % 16;
  }

  /// Codes of four rows and four columns at a time: an element is computed once for both.
  BLOCKSCALE_DEVICE void encode_both() const {
    uint8_t* row_codes = codes_at<kConfig.element>(p_.rows, place(0));
    ColumnCodes columns[kColumns];
    uint32_t doubtful = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kRows / 4; ++v) {
      RowCodes rows[4];
      BLOCKSCALE_UNROLL
      for (uint32_t g = 0; g < kColumns / 4; ++g) encode_square(v, g, rows, columns, doubtful);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        uint8_t* const to = row_codes;
        row_codes += p_.rows.value_row_stride;
        if (!chunks_.is_present(4 * v + i)) continue;
        store_codes(rows[i], to);
      }
    }
    const ptx::SharedAddress column_codes = column_codes_at(0, lines_.first_row());
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kColumns; ++j) {
      ptx::st_shared(column_codes + j * kTransposeTile, columns[j]);
    }
    if constexpr (kLikely) encode_again(doubtful);
  }

  BLOCKSCALE_DEVICE float value(uint32_t u, uint32_t column) const {
    const float held = chunks_.value(u, static_cast<int>(column));
    if constexpr (kLikely) return approximate_gelu<kConfig.transform>(held).value();
    return held;
  }

  /// The v-th four rows of the thread, and the g-th four of its columns. Of `doubtful` bit
  /// u kColumns / 4 + g stands for these columns of row u.
  BLOCKSCALE_DEVICE void encode_square(uint32_t v, uint32_t g, RowCodes (&rows)[4],
                                       ColumnCodes (&columns)[kColumns], uint32_t& doubtful) const {
    const auto columns_by = lines_.dividers_of_columns(g);
    float values[4][4];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) values[i][j] = value(4 * v + i, 4 * g + j);
    }
    uint32_t of_row[4];  // differences
    uint32_t of_columns = 0;
    const auto encode_rows = [&] {
      const auto rows_by = lines_.dividers_of_rows(v);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        rows[i].word[g] = rows_by.at(i).codes([&](int j) { return values[i][j]; }, of_row[i]);
      }
    };
    const auto encode_columns = [&] {
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) {
        uint32_t of_column;
        columns[4 * g + j].at[v] =
            columns_by.at(j).codes([&](int i) { return values[i][j]; }, of_column);
        of_columns |= of_column;
      }
    };
    // In this order ptxas needs no more registers than there are.
    if constexpr (kConfig.transform == InputTransform::modulate) {
      encode_columns();
      encode_rows();
    } else {
      encode_rows();
      encode_columns();
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      if ((of_row[i] | (of_columns & 0xFFu << 8 * i)) == 0) continue;
      doubtful |= 1u << ((4 * v + i) * (kColumns / 4) + g);
    }
  }

  /// Four elements of a row for each bit, the exact way.
  BLOCKSCALE_DEVICE void encode_again(uint32_t doubtful) const {
    static_assert(!kLikely || kRows * kColumns / 4 <= 32);
    for (; doubtful != 0; doubtful &= doubtful - 1) {
      const uint32_t bit = lowest_bit(doubtful);
      const uint32_t u = bit / (kColumns / 4);
      if (!chunks_.is_present(u)) continue;
      const uint32_t first = bit % (kColumns / 4) * 4;
      ChunkPlace at = place(u);
      at.column += first;
      Chunk<Format::f32, 4> values;
      fill_values(values, [&](int i) {
        return gelu<kConfig.transform>(
            lines_.x_at({at.matrix, at.row, at.column + static_cast<uint32_t>(i)}));
      });
      BlockScale scale;
      scale.factor = lines_.scale_of_row(u);
      store_codes(encode_chunk<kConfig.element, kConfig.rule, true>(values, scale),
                  codes_at<kConfig.element>(p_.rows, at));
      share_column_codes(values, u, first);
    }
  }

  /// Both, for any elements, from x once more.
  BLOCKSCALE_DEVICE void quantize_exactly() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kRows; ++u) {
      Values chunk;
      load_part_of<kConfig>(chunk, p_.rows, place(u));
      BlockScale scale;
      scale.factor = lines_.scale_of_row(u);
      store_exactly<kConfig>(p_.rows, place(u), chunk, scale);
      share_column_codes(chunk, u, 0);
    }
  }

  /// Codes of the columns of elements of row u, from the thread's column `first` on.
  template <Format kFormat, int kCount>
  BLOCKSCALE_DEVICE void share_column_codes(const Chunk<kFormat, kCount>& values, uint32_t u,
                                            uint32_t first) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t column = first + i;
      const ExactQuotient<kConfig.element> quotient(lines_.scale_of_column(column));
      const uint16_t code =
          ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, quotient(values, static_cast<int>(i)));
      ptx::st_shared(column_codes_at(column, lines_.first_row() + u), static_cast<uint8_t>(code));
    }
  }

  // ---------------------------------------------------------------- columns

  BLOCKSCALE_DEVICE void store_columns() const {
    constexpr uint32_t kStep = kConfig.threads / kUnits;
    const QuantizeParams& p = p_.columns;
    const ChunkPlace& tile = lines_.tile();
    const uint32_t column = ptx::tid_x() / kUnits;
    const uint32_t unit = ptx::tid_x() % kUnits;
    const ChunkPlace first = {tile.matrix, tile.column + column, tile.row + unit * 16};
    const int32_t left = static_cast<int32_t>(p.k - first.column);
    if (left <= 0) return;
    if (p.value_vectors && left >= 16) {
      BLOCKSCALE_UNROLL
      for (uint32_t down = 0; down < kTransposeTile; down += kStep) {
        if (first.row + down >= p.rows) continue;
        store_codes(load_codes(column + down, unit),
                    codes_at<kConfig.element>(p, below(first, down)));
      }
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t down = 0; down < kTransposeTile; down += kStep) {
        if (first.row + down >= p.rows) break;
        store_code_bytes(load_codes(column + down, unit), left < 16 ? left : 16,
                         codes_at<kConfig.element>(p, below(first, down)));
      }
    }
  }

  BLOCKSCALE_DEVICE Codes<kConfig.element, 16> load_codes(uint32_t column, uint32_t unit) const {
    const Words words = ptx::ld_shared<Words>(codes_at_unit(column, unit));
    Codes<kConfig.element, 16> codes;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 4; ++i) codes.word[i] = words.at[i];
    return codes;
  }

  const RowsAndColumnsParams& p_;
  Lines lines_;
  HeldChunks<with_held(kConfig)> chunks_;
  bool holds_;
};

}  // namespace blockscale::quantize_sm90

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_transpose_tile(const RowsAndColumnsParams& params) {
  constexpr bool kAfterNorm = kConfig.transform == InputTransform::rms_norm;
  constexpr bool kMoves = detail::moves_scales(kConfig);
  const TileGrid& grid = params.rows.grid;
  const uint32_t turn = ptx::ctaid_x();
  if (turn >= grid.tiles) {
    if constexpr (kMoves) {
      quantize_sm90::move_scales<kConfig.threads>(params, turn - grid.tiles);
    }
    return;
  }
  // Whoever wrote x has ended when the launch before, which has waited for it, lets this one start.
  quantize_sm90::await_turn(params.rows, kAfterNorm || (kMoves && params.moving_blocks() > 0));
  // What that one has read last is still in the level-2 cache.
  const auto tile = quantize_sm90::tile_place(grid, kAfterNorm ? grid.tiles - 1 - turn : turn);
  quantize_sm90::TransposeTile<kConfig>(params, tile).quantize();
}

}  // namespace blockscale
