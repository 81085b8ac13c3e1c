// Scales for 1 x 128 blocks along the rows of x and along its columns, and both sets of codes, the
// second one transposed, from one read of x.
//
// It differs from plain.cuh in that a CTA holds a tile of 128 x 128 in registers: a thread 8
// columns of 8 consecutive rows. Shared memory brings together what threads know of the same row or
// column, in three steps with a barrier between each two:
//
//   1. Each warp writes the amaxes of its rows, and those of its part of each column.
//   2. A thread for each row and each column finds and stores its scale.
//   3. Each thread stores the codes of its rows, and writes those of its columns, from where they
//      are stored 16 at a time.
//
// A thread's codes of a column are a *unit* of 8 bytes. The units of a column are permuted by its
// number, so that lanes which write units of 16 columns touch every bank once.
#pragma once

#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/vector.h"
#include "ops/quantize/kernels/plain.cuh"
#include "ops/quantize/kernels/rows_and_columns_config.h"

namespace blockscale::quantizer {

/// A tile of x, and a thread's part of it. Functions are collective.
template <QuantizeConfig kConfig>
class TransposeTile {
  static constexpr uint32_t kChunk = 8;  // columns of a thread, and rows
  static_assert(kConfig.chunk == kChunk && kConfig.chunks == kChunk && kConfig.threads == 256 &&
                kConfig.block == kTransposeTile && kConfig.element == Format::e4m3);
  static constexpr uint32_t kLanes = kTransposeTile / kChunk;  // that hold a row
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  using Values = ValueChunk<kConfig>;
  using RowAmax = Amax<kValueFormat<kConfig>, false>;
  using Unit = device::Vector<uint32_t, 2>;

  // Shared memory, in bytes: amaxes lie where codes are later.
  static constexpr uint32_t kColumnAmaxes = 0;  // kTransposeTile words a warp
  static constexpr uint32_t kRowAmaxes = kWarps * kTransposeTile * 4;
  static constexpr uint32_t kColumnScales = kTransposeCodesBytes;  // factors, then reciprocals
  static constexpr uint32_t kRowScales = kColumnScales + 2 * kTransposeTile * 4;
  static constexpr uint32_t kExceptional = kRowScales + 2 * kTransposeTile * 4;
  static_assert(kExceptional + kWarps * 4 <= kTransposeSharedBytes);

 public:
  BLOCKSCALE_DEVICE TransposeTile(const RowsAndColumnsParams& p, const TilePlace& tile)
      : p_(p), tile_{tile.matrix, tile.row, tile.across * kTransposeTile} {
    const uint32_t thread = ptx::tid_x();
    row_ = thread / kLanes * kChunk;
    column_ = thread % kLanes * kChunk;
  }

  BLOCKSCALE_DEVICE void quantize() {
    load_all();
    share_amaxes();
    ptx::barrier_sync_all();
    find_scales();
    ptx::barrier_sync_all();  // the amaxes have been read, and the scales written
    const bool whole = p_.rows.x.vectors && p_.rows.value_vectors && p_.rows.k % kChunk == 0;
    if (whole && !any_exceptional_scale()) {
      encode_fast();
    } else {
      encode_plainly();
    }
    ptx::barrier_sync_all();
    ptx::griddepcontrol_launch_dependents();  // if they have not let it start before
    store_columns();
  }

 private:
  BLOCKSCALE_DEVICE static ptx::SharedAddress shared(uint32_t at) {
    return device::shared_base() + at;
  }

  /// The thread's columns of its row u.
  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    return {tile_.matrix, tile_.row + row_ + u, tile_.column + column_};
  }

  /// All of x before rstd is waited for, and before anything is computed.
  BLOCKSCALE_DEVICE void load_all() {
    RawChunk<kConfig> raw[kChunk];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) load_raw(raw[u], p_.rows, place(u), extent(u));
    if constexpr (kConfig.fused == Fused::rms_norm) ptx::griddepcontrol_wait();
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) {
      const float rstd = stored_rstd<kConfig>(p_.rows, place(u));
      find_values(values_[u], raw[u], p_.rows, place(u), extent(u), rstd);
    }
  }

  BLOCKSCALE_DEVICE Extent extent(uint32_t u) const {
    return extent_at<kConfig>(p_.rows, place(u));
  }

  // ---------------------------------------------------------------- amaxes and scales

  BLOCKSCALE_DEVICE void share_amaxes() const {
    uint32_t rows[kChunk];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) {
      RowAmax amax;
      amax.fold(values_[u]);
      rows[u] = amax.f32_bits();
    }
    const uint32_t row = amax_of_row(rows);
    const uint32_t lane = ptx::tid_x() % 32;
    if (lane % kLanes < kChunk) {
      ptx::st_shared(shared(kRowAmaxes + (row_ + lane % kChunk) * 4), row);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kChunk; ++j) {
      float column = 0;
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < kChunk; ++u) {
        column = ptx::max(column, ptx::abs(value_at(values_[u], static_cast<int>(j))));
      }
      const uint32_t bits = bit_cast<uint32_t>(column);
      const uint32_t other = ptx::shfl_sync_bfly(ptx::kFullMask, bits, kLanes);
      if (lane >= kLanes) continue;
      const uint32_t at = (ptx::tid_x() / 32 * kTransposeTile + column_ + j) * 4;
      ptx::st_shared(shared(kColumnAmaxes + at), other > bits ? other : bits);
    }
  }

  /// Of a word for each of the thread's rows from each of the lanes that hold them: lane i gets the
  /// largest of row i % kChunk. Each bit of i says which half of the rows are left.
  BLOCKSCALE_DEVICE static uint32_t amax_of_row(const uint32_t (&rows)[kChunk]) {
    const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
    const uint32_t lane = ptx::tid_x() % 32;
    uint32_t words[kChunk];
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) words[u] = rows[u];
    BLOCKSCALE_UNROLL
    for (uint32_t half = kChunk / 2; half > 0; half /= 2) {
      const bool upper = (lane & half) != 0;
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < half; ++u) {
        const uint32_t mine = upper ? words[u + half] : words[u];
        const uint32_t given = upper ? words[u] : words[u + half];
        words[u] = larger(mine, ptx::shfl_sync_bfly(ptx::kFullMask, given, half));
      }
    }
    return larger(words[0], ptx::shfl_sync_bfly(ptx::kFullMask, words[0], kChunk));
  }

  /// Stores the scale of a column of the tile for the first half of the threads, of a row for the
  /// second, and shares it.
  BLOCKSCALE_DEVICE void find_scales() const {
    const uint32_t thread = ptx::tid_x();
    const bool of_column = thread < kTransposeTile;
    const uint32_t line = thread % kTransposeTile;
    uint32_t amax = 0;
    if (of_column) {
      BLOCKSCALE_UNROLL
      for (uint32_t warp = 0; warp < kWarps; ++warp) {
        const uint32_t at = (warp * kTransposeTile + line) * 4;
        const uint32_t other = ptx::ld_shared<uint32_t>(shared(kColumnAmaxes + at));
        amax = other > amax ? other : amax;
      }
    } else {
      amax = ptx::ld_shared<uint32_t>(shared(kRowAmaxes + line * 4));
    }
    const QuantizeParams& p = of_column ? p_.columns : p_.rows;
    const BlockScale scale = encoding::fp8_block_scale<kConfig.element>(amax, p.scale_options);
    const uint32_t row = (of_column ? tile_.column : tile_.row) + line;
    const uint32_t column = of_column ? tile_.row : tile_.column;
    if (row < p.scales.rows) {
      const uint32_t stored[1] = {row < p.rows && column < p.k ? scale.stored : 0u};
      encoding::store_scales(p.scales, tile_.matrix, row, column / kTransposeTile, stored);
    }
    const ptx::SharedAddress to = shared((of_column ? kColumnScales : kRowScales) + line * 4);
    ptx::st_shared(to, scale.factor);
    ptx::st_shared(to + kTransposeTile * 4, scale.reciprocal);
    const bool any = ptx::vote_sync_any(ptx::kFullMask, scale.exceptional);
    if (thread % 32 == 0) ptx::st_shared(shared(kExceptional + thread / 32 * 4), any ? 1u : 0u);
  }

  BLOCKSCALE_DEVICE static bool any_exceptional_scale() {
    uint32_t any = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      any |= ptx::ld_shared<uint32_t>(shared(kExceptional + warp * 4));
    }
    return any != 0;
  }

  BLOCKSCALE_DEVICE static BlockScale shared_scale(uint32_t at) {
    BlockScale scale;
    scale.factor = ptx::ld_shared<float>(shared(at));
    scale.reciprocal = ptx::ld_shared<float>(shared(at + kTransposeTile * 4));
    return scale;
  }
  BLOCKSCALE_DEVICE BlockScale scale_of_row(uint32_t u) const {
    return shared_scale(kRowScales + (row_ + u) * 4);
  }
  BLOCKSCALE_DEVICE BlockScale scale_of_column(uint32_t j) const {
    return shared_scale(kColumnScales + (column_ + j) * 4);
  }

  // ---------------------------------------------------------------- codes

  /// Where the codes of rows 8 * unit and the 7 below it lie, of a column of the tile.
  BLOCKSCALE_DEVICE static ptx::SharedAddress unit_at(uint32_t column, uint32_t unit) {
    return shared(column * kTransposeTile + (unit ^ column / kChunk) * kChunk);
  }

  BLOCKSCALE_DEVICE void encode_fast() const {
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) {
      const ChunkPlace at = place(u);
      if (at.row >= p_.rows.rows || at.column >= p_.rows.k) continue;
      const auto codes =
          encoding::encode_chunk<kConfig.element, kConfig.rule, false>(values_[u], scale_of_row(u));
      encoding::store_codes(codes, codes_at<kConfig.element>(p_.rows, at));
    }
    BLOCKSCALE_UNROLL
    for (uint32_t j = 0; j < kChunk; ++j) {
      Chunk<Format::f32, kChunk> column;
      fill_values(column, [&](int u) { return value_at(values_[u], static_cast<int>(j)); });
      const auto codes =
          encoding::encode_chunk<kConfig.element, kConfig.rule, false>(column, scale_of_column(j));
      ptx::st_shared(unit_at(column_ + j, row_ / kChunk), Unit{{codes.word[0], codes.word[1]}});
    }
  }

  /// Both, for any elements, from x once more.
  BLOCKSCALE_DEVICE void encode_plainly() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kChunk; ++u) {
      const float rstd = stored_rstd<kConfig>(p_.rows, place(u));
      Values values;
      load_values<kConfig>(values, p_.rows, place(u), extent(u), rstd);
      Blocks<kConfig> blocks;
      blocks.scale[0] = scale_of_row(u);
      store<kConfig>(p_.rows, place(u), encode<kConfig, true>(values, blocks));
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kChunk; ++j) {
        const encoding::ExactQuotient<kConfig.element> quotient(scale_of_column(j).factor);
        const uint16_t code =
            ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, quotient(values, static_cast<int>(j)));
        ptx::st_shared(unit_at(column_ + j, row_ / kChunk) + u, static_cast<uint8_t>(code));
      }
    }
  }

  /// 16 codes of a column at a time.
  BLOCKSCALE_DEVICE void store_columns() const {
    constexpr uint32_t kPieces = kTransposeTile / 16;
    constexpr uint32_t kStep = kConfig.threads / kPieces;
    const QuantizeParams& p = p_.columns;
    const uint32_t piece = ptx::tid_x() % kPieces;
    BLOCKSCALE_UNROLL
    for (uint32_t down = 0; down < kTransposeTile; down += kStep) {
      const uint32_t column = down + ptx::tid_x() / kPieces;
      const ChunkPlace at = {tile_.matrix, tile_.column + column, tile_.row + piece * 16};
      Codes<kConfig.element, 16> codes;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const Unit unit = ptx::ld_shared<Unit>(unit_at(column, 2 * piece + i));
        codes.word[2 * i] = unit.at[0];
        codes.word[2 * i + 1] = unit.at[1];
      }
      const int32_t left = static_cast<int32_t>(p.k - at.column);
      if (at.row >= p.rows || left <= 0) continue;
      uint8_t* const to = codes_at<kConfig.element>(p, at);
      if (p.value_vectors && left >= 16) {
        encoding::store_codes(codes, to);
      } else {
        encoding::store_code_bytes(codes, left, to);
      }
    }
  }

  const RowsAndColumnsParams& p_;
  ChunkPlace tile_;
  uint32_t row_, column_;  // of the tile
  Values values_[kChunk];
};

}  // namespace blockscale::quantizer

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_transpose_tile(const RowsAndColumnsParams& params) {
  // With rms_norm an `rstd` kernel comes first, whose results are waited for later.
  quantizer::wait_for_turn(params.rows, kConfig.fused == Fused::rms_norm);
  const auto tile = quantizer::tile_of_cta(params.rows);
  quantizer::TransposeTile<kConfig>(params, tile).quantize();
}

}  // namespace blockscale
