// Scales for 1 x 128 blocks along the rows of x and along its columns, and both sets of codes, the
// second one transposed, from one read of x.
//
// A thread block holds a tile of 128 x 128 in registers: a thread 16 columns of a few consecutive
// rows, eight lanes a row. Shared memory brings together what threads know of the same row or
// column, in four steps with a barrier between each two:
//
//   1. Each thread writes the largest magnitudes of its part of each row, and each warp those of
//      its part of each column.
//   2. A thread for each row and each column finds and stores its scale.
//   3. Each thread stores the codes of its rows, and writes those of its columns.
//   4. Columns are read back, 16 codes at a time, and stored.
//
// In step 3 a thread's codes of a column are 4 or 8 bytes. 16 rows of a column are a *unit* of 16
// bytes; the units of a column are permuted by its number / 16, so that all 32 banks are touched
// once whether lanes of 8 such columns write, or 8 lanes read the units of one column. The maxima
// and the scales of columns, which threads write in another order than they read them, are permuted
// in the same way (`permuted`); those of rows are padded.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_held.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// A tile of x, and a thread's part of it. Functions are collective.
template <QuantizeConfig kConfig>
class TransposeTile {
  using Words = device::Vector<uint32_t, 4>;
  using Values = ValueChunk<kConfig>;
  using Maximum = Largest<kValueFormat<kConfig>, false>;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kVectors = Values::kWords / 4;  // of 4 words with a maximum each
  static constexpr uint32_t kRowLanes = kTransposeTile / kConfig.chunk;
  static constexpr uint32_t kUnits = kTransposeTile / 16;  // of a column
  static constexpr uint32_t kRows = kConfig.chunks;        // of a thread

  // Shared memory, in bytes: maxima lie where codes are later.
  static constexpr uint32_t kColumnMaximaStride = kRowLanes * kVectors * 16;  // of a warp
  static constexpr uint32_t kRowMaxima = kWarps * kColumnMaximaStride;
  static constexpr uint32_t kRowMaximaStride = (kTransposeTile + 4) * 4;  // of a lane of a row
  static constexpr uint32_t kColumnScales = kTransposeCodesBytes;
  static constexpr uint32_t kRowScales = kColumnScales + 2 * kTransposeTile * 4;
  static constexpr uint32_t kExceptional = kRowScales + 2 * kTransposeTile * 4;
  static_assert(kRowMaxima + kRowLanes * kRowMaximaStride <= kTransposeCodesBytes);
  static_assert(kExceptional + kWarps * 4 <= kTransposeSharedBytes);
  static_assert(kConfig.chunk == 16 && kConfig.threads / kRowLanes * kRows == kTransposeTile &&
                kRows % 4 == 0 && kConfig.block == kTransposeTile &&
                kConfig.rule == ScaleRule::fp8 && kConfig.element == Format::e4m3);

 public:
  BLOCKSCALE_DEVICE TransposeTile(const RowsAndColumnsParams& p, const TilePlace& tile)
      : p_(p),
        thread_(ptx::tid_x()),
        tile_{tile.matrix, tile.row, tile.across * kTransposeTile},
        shared_(device::shared_base()),
        chunks_(p.rows, place(0), 1) {
    // Each chunk exists as a whole, or lies beyond the matrix.
    holds_ = p.rows.x.vectors && p.rows.value_vectors && p.rows.k % kConfig.chunk == 0 &&
             rows_share_operands<kConfig>(p.rows, tile.matrix, place(0).row, place(kRows - 1).row);
  }

  BLOCKSCALE_DEVICE void quantize() {
    if (holds_) {
      chunks_.load();
      share_maxima_of_held();
    } else {
      share_maxima_row_by_row();
    }
    ptx::barrier_sync_all();
    find_scales();
    ptx::barrier_sync_all();  // the maxima have been read, and the scales written
    if (holds_ && !any_exceptional_scale()) {
      store_rows();
      transpose_codes();
    } else {
      quantize_exactly();
    }
    ptx::barrier_sync_all();
    store_columns();
  }

 private:
  /// A thread has rows kRows * row_group() and the next ones, and columns 16 * across() and the 15
  /// to its right.
  BLOCKSCALE_DEVICE uint32_t row_group() const { return thread_ / kRowLanes; }
  BLOCKSCALE_DEVICE uint32_t across() const { return thread_ % kRowLanes; }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    return {tile_.matrix, tile_.row + row_group() * kRows + u, tile_.column + across() * 16};
  }

  // ---------------------------------------------------------------- 1. maxima

  BLOCKSCALE_DEVICE void share_maxima_of_held() const {
    Maximum columns[Values::kWords];
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kRows / 4; ++v) {
      Words rows;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        rows.at[i] = fold(chunks_.values(4 * v + i), columns).bits;
      }
      ptx::st_shared(row_maximum_at(across(), row_group() * kRows + 4 * v), rows);
    }
    share_column_maxima(columns);
  }

  BLOCKSCALE_DEVICE void share_maxima_row_by_row() const {
    Maximum columns[Values::kWords];
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kRows; ++u) {
      Values chunk;
      load_part_of<kConfig>(chunk, p_.rows, place(u));
      const uint32_t largest = fold(chunk, columns).bits;
      ptx::st_shared(row_maximum_at(across(), row_group() * kRows + u), largest);
    }
    share_column_maxima(columns);
  }

  /// The largest magnitude of a row of the thread, which also counts for those of its columns.
  BLOCKSCALE_DEVICE static Maximum fold(const Values& chunk, Maximum (&columns)[Values::kWords]) {
    Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < Values::kWords; ++i) {
      columns[i].fold(chunk.word[i]);
      largest.fold(chunk.word[i]);
    }
    return largest;
  }

  /// The maxima of the parts of rows that lane `across` has, row after row.
  BLOCKSCALE_DEVICE ptx::SharedAddress row_maximum_at(uint32_t across, uint32_t row) const {
    return shared_ + (kRowMaxima + across * kRowMaximaStride + row * 4);
  }

  /// Where a vector of four neighbouring columns, the `v`th of the 16 of a lane, lies in a row of
  /// vectors: written by lanes with the same v, and read by threads with neighbouring columns.
  BLOCKSCALE_DEVICE static uint32_t permuted(uint32_t across, uint32_t v) {
    return v * kRowLanes + (across ^ (2 * v));
  }

  /// Writes the largest magnitudes of the columns of each warp, packed as the elements are.
  BLOCKSCALE_DEVICE void share_column_maxima(const Maximum (&of_thread)[Values::kWords]) const {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      Words words;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        Maximum largest = of_thread[4 * v + i];
        BLOCKSCALE_UNROLL
        for (uint32_t lanes = kRowLanes; lanes < 32; lanes *= 2) {
          largest.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, largest.bits, lanes));
        }
        words.at[i] = largest.bits;
      }
      if (thread_ % 32 < kRowLanes) {
        const uint32_t warp = thread_ / 32;
        ptx::st_shared(shared_ + (warp * kColumnMaximaStride + permuted(across(), v) * 16), words);
      }
    }
  }

  // ---------------------------------------------------------------- 2. scales

  /// Stores the scales of the columns and of the rows of the tile for the caller, and for this
  /// block's threads with their reciprocals.
  BLOCKSCALE_DEVICE void find_scales() const {
    bool exceptional = false;
    BLOCKSCALE_UNROLL
    for (uint32_t first = 0; first < 2 * kTransposeTile; first += kConfig.threads) {
      const uint32_t line = first + thread_;
      exceptional |=
          line < kTransposeTile ? find_column_scale(line) : find_row_scale(line - kTransposeTile);
    }
    const bool any = ptx::vote_sync_any(ptx::kFullMask, exceptional);
    if (thread_ % 32 != 0) return;
    ptx::st_shared(shared_ + (kExceptional + thread_ / 32 * 4), any ? 1u : 0u);
  }

  /// What find_scales has found; a barrier lies in between.
  BLOCKSCALE_DEVICE bool any_exceptional_scale() const {
    uint32_t any = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; warp += 4) {
      const Words words = ptx::ld_shared<Words>(shared_ + (kExceptional + warp * 4));
      any |= words.at[0] | words.at[1] | words.at[2] | words.at[3];
    }
    return any != 0;
  }

  BLOCKSCALE_DEVICE bool find_column_scale(uint32_t column) const {
    const BlockScale scale[1] = {scale_of(p_.columns, column_maximum(column))};
    store_row_scales<kConfig>(p_.columns, {tile_.matrix, tile_.column + column, tile_.row}, scale);
    share_scale(column_scales_at(column / 16, column % 16 / 4) + column % 4 * 4, scale[0]);
    return scale[0].exceptional;
  }

  BLOCKSCALE_DEVICE bool find_row_scale(uint32_t row) const {
    const BlockScale scale[1] = {scale_of(p_.rows, row_maximum(row))};
    store_row_scales<kConfig>(p_.rows, {tile_.matrix, tile_.row + row, tile_.column}, scale);
    share_scale(row_scales_at(row), scale[0]);
    return scale[0].exceptional;
  }

  BLOCKSCALE_DEVICE static BlockScale scale_of(const QuantizeParams& p, uint32_t amax) {
    return fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  }

  BLOCKSCALE_DEVICE uint32_t column_maximum(uint32_t column) const {
    constexpr uint32_t kInWord = 16 / Values::kWords;
    const uint32_t word = column % 16 / kInWord;
    const uint32_t from = permuted(column / 16, word / 4) * 16 + word % 4 * 4;
    Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      largest.fold_magnitudes(
          ptx::ld_shared<uint32_t>(shared_ + (warp * kColumnMaximaStride + from)));
    }
    if constexpr (kInWord == 2) largest.bits = largest.bits >> (column % 2 * 16) & 0xFFFFu;
    return largest.f32_bits();
  }

  BLOCKSCALE_DEVICE uint32_t row_maximum(uint32_t row) const {
    Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t lane = 0; lane < kRowLanes; ++lane) {
      largest.fold_magnitudes(ptx::ld_shared<uint32_t>(row_maximum_at(lane, row)));
    }
    return largest.f32_bits();
  }

  /// Four scales of columns; reciprocals lie kTransposeTile * 4 bytes behind them.
  BLOCKSCALE_DEVICE ptx::SharedAddress column_scales_at(uint32_t across, uint32_t v) const {
    return shared_ + (kColumnScales + permuted(across, v) * 16);
  }
  /// The scales of rows, likewise.
  BLOCKSCALE_DEVICE ptx::SharedAddress row_scales_at(uint32_t row) const {
    return shared_ + (kRowScales + row * 4);
  }

  BLOCKSCALE_DEVICE static void share_scale(ptx::SharedAddress to, const BlockScale& scale) {
    ptx::st_shared(to, scale.factor);
    ptx::st_shared(to + kTransposeTile * 4, scale.reciprocal);
  }

  // ---------------------------------------------------------------- 3. codes

  /// The i-th of four scales with their reciprocals.
  struct FourScales {
    Words factors, reciprocals;

    BLOCKSCALE_DEVICE explicit FourScales(ptx::SharedAddress from)
        : factors(ptx::ld_shared<Words>(from)),
          reciprocals(ptx::ld_shared<Words>(from + kTransposeTile * 4)) {}
    BLOCKSCALE_DEVICE BlockScale at(uint32_t i) const {
      BlockScale scale;
      scale.factor = bit_cast<float>(factors.at[i]);
      scale.reciprocal = bit_cast<float>(reciprocals.at[i]);
      return scale;
    }
  };

  BLOCKSCALE_DEVICE void store_rows() const {
    uint8_t* const to = codes_at<kConfig.element>(p_.rows, place(0));
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kRows / 4; ++v) {
      const FourScales scales(row_scales_at(row_group() * kRows + 4 * v));
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t u = 4 * v + i;
        if (!chunks_.is_present(u)) continue;
        const Values values = chunks_.values(u);
        store_codes(encode_chunk<kConfig.element, kConfig.rule, false>(values, scales.at(i)),
                    to + u * p_.rows.value_row_stride);
      }
    }
  }

  /// Address of the codes of rows 16 * unit and the 15 below it.
  BLOCKSCALE_DEVICE ptx::SharedAddress codes_at_unit(uint32_t column, uint32_t unit) const {
    return shared_ + (column * kTransposeTile + (unit ^ column / 16) * 16);
  }

  BLOCKSCALE_DEVICE void transpose_codes() const {
    const uint32_t row = row_group() * kRows;
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      const FourScales scales(column_scales_at(across(), v));
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t column = 4 * v + i;
        Chunk<Format::f32, kRows> values;
        fill_values(values, [&](int u) {
          return chunks_.value(static_cast<uint32_t>(u), static_cast<int>(column));
        });
        const auto codes = encode_chunk<kConfig.element, kConfig.rule, false>(values, scales.at(i));
        device::Vector<uint32_t, kRows / 4> words;
        BLOCKSCALE_UNROLL
        for (uint32_t w = 0; w < kRows / 4; ++w) words.at[w] = codes.word[w];
        ptx::st_shared(codes_at_unit(across() * 16 + column, row / 16) + row % 16, words);
      }
    }
  }

  /// Both, for any elements, from x once more.
  BLOCKSCALE_DEVICE void quantize_exactly() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kRows; ++u) {
      Values chunk;
      load_part_of<kConfig>(chunk, p_.rows, place(u));
      const uint32_t row = row_group() * kRows + u;
      BlockScale scale;
      scale.factor = ptx::ld_shared<float>(row_scales_at(row));
      store_exactly<kConfig>(p_.rows, place(u), chunk, scale);
      BLOCKSCALE_UNROLL
      for (uint32_t column = 0; column < 16; ++column) {
        const ExactQuotient<kConfig.element> quotient(
            ptx::ld_shared<float>(column_scales_at(across(), column / 4) + column % 4 * 4));
        const float scaled = quotient(chunk, static_cast<int>(column));
        const uint16_t code = ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, scaled);
        ptx::st_shared(codes_at_unit(across() * 16 + column, row / 16) + row % 16,
                       static_cast<uint8_t>(code));
      }
    }
  }

  // ---------------------------------------------------------------- 4. columns

  BLOCKSCALE_DEVICE void store_columns() const {
    constexpr uint32_t kStep = kConfig.threads / kUnits;
    const QuantizeParams& p = p_.columns;
    const uint32_t column = thread_ / kUnits;
    const uint32_t unit = thread_ % kUnits;
    const ChunkPlace first = {tile_.matrix, tile_.column + column, tile_.row + unit * 16};
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
  uint32_t thread_;
  ChunkPlace tile_;
  ptx::SharedAddress shared_;
  HeldChunks<kConfig> chunks_;
  bool holds_;
};

}  // namespace blockscale::quantize_sm90

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_transpose_tile(const RowsAndColumnsParams& params) {
  ptx::griddepcontrol_wait();
  if (ptx::ctaid_x() >= params.rows.grid.tiles) return;
  const auto tile = quantize_sm90::tile_place(params.rows.grid, ptx::ctaid_x());
  quantize_sm90::TransposeTile<kConfig>(params, tile).quantize();
}

}  // namespace blockscale
