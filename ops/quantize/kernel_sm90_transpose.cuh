// Scales for 1 x 128 blocks along the rows of x and along its columns, and both sets of codes, the
// second one transposed, from one read of x.
//
// A thread block holds a tile of 128 x 128 in registers: a thread 16 columns of 4 consecutive rows,
// eight lanes a row, a warp 16 rows. So a row's maximum is found within eight lanes, and a thread's
// codes of a column are a word of the transposed tile. That goes through shared memory, where 16
// rows of a column are a *unit* of 16 bytes. Units of a column are permuted by its number / 16:
//
//   writing   lane (row r / 4 % 4, columns c): word r of unit `warp ^ c`; all 32 banks once.
//   reading   eight lanes take the units of one column: all 32 banks once for each eight.
//
// The maxima and the scales of columns, which threads write in another order than they read them,
// are permuted in the same way (`permuted`).
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_blocks.cuh"
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
  static_assert(kConfig.chunk == 16 && kConfig.chunks == 4 && kConfig.threads == 256 &&
                kConfig.block == kTransposeTile && kConfig.rule == ScaleRule::fp8);
  static_assert(kWarps * kRowLanes * Values::kWords * 4 <= kTransposeCodesBytes);

 public:
  BLOCKSCALE_DEVICE TransposeTile(const RowsAndColumnsParams& p, uint32_t tile_index) : p_(p) {
    const TilePlace tile = tile_place(p.rows.grid, tile_index);
    thread_ = ptx::tid_x();
    tile_ = {tile.matrix, tile.row, tile.across * kTransposeTile};
    shared_ = device::shared_base();
    // Each chunk exists as a whole, or lies beyond the matrix.
    may_hold_ = p.rows.x.vectors && p.rows.value_vectors && p.rows.k % kConfig.chunk == 0;
  }

  BLOCKSCALE_DEVICE void quantize() {
    load();
    share_column_maxima();
    ptx::barrier_sync_all();
    if (thread_ < kTransposeTile) find_column_scale(thread_);
    quantize_rows();
    ptx::barrier_sync_all();  // the maxima have been read, and the scales written
    transpose_codes();
    ptx::barrier_sync_all();
    store_columns();
  }

 private:
  /// A warp has rows 16 * warp() and the 15 below it; of them a thread rows 4 * quad() and the 3
  /// below it, and columns 16 * across() and the 15 to its right.
  BLOCKSCALE_DEVICE uint32_t warp() const { return thread_ / 32; }
  BLOCKSCALE_DEVICE uint32_t quad() const { return thread_ / kRowLanes % 4; }
  BLOCKSCALE_DEVICE uint32_t across() const { return thread_ % kRowLanes; }

  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    return {tile_.matrix, tile_.row + thread_ / kRowLanes * 4 + u, tile_.column + across() * 16};
  }
  BLOCKSCALE_DEVICE bool exists(uint32_t u) const {
    return place(u).row < p_.rows.rows && place(u).column < p_.rows.k;
  }

  BLOCKSCALE_DEVICE void load() {
    if (may_hold_) {
      const Input<kConfig> input(p_.rows, place(0));
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < 4; ++u) {
        if (exists(u)) {
          input.load_whole(chunks_[u], u);
        } else {
          clear(chunks_[u]);
        }
      }
      return;
    }
    each_in_turn([&](uint32_t u) { load_part_of<kConfig>(chunks_[3], p_.rows, place(u)); });
  }

  /// Calls body(u) for each chunk, which is then chunks_[3]: registers have no index that varies.
  template <class Body>
  BLOCKSCALE_DEVICE void each_in_turn(const Body& body) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < 4; ++u) {
      const Values first = chunks_[0];
      chunks_[0] = chunks_[1];
      chunks_[1] = chunks_[2];
      chunks_[2] = chunks_[3];
      chunks_[3] = first;
      body(u);
    }
  }

  /// Where a vector of four neighbouring columns, the `v`th of the 16 of a lane, lies in a row of
  /// vectors: written by lanes with the same v, and read by threads with neighbouring columns.
  BLOCKSCALE_DEVICE static uint32_t permuted(uint32_t across, uint32_t v) {
    return v * kRowLanes + (across ^ (2 * v));
  }

  /// The largest magnitudes of the columns of each warp, packed as the elements are.
  BLOCKSCALE_DEVICE void share_column_maxima() const {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      Words words;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        Maximum largest;
        BLOCKSCALE_UNROLL
        for (const Values& chunk : chunks_) largest.fold(chunk.word[4 * v + i]);
        BLOCKSCALE_UNROLL
        for (uint32_t lanes = kRowLanes; lanes < 32; lanes *= 2) {
          largest.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, largest.bits, lanes));
        }
        words.at[i] = largest.bits;
      }
      if (quad() == 0) {
        const uint32_t vector = warp() * kRowLanes * kVectors + permuted(across(), v);
        ptx::st_shared(shared_ + vector * 16, words);
      }
    }
  }

  /// Stores the scale of a column of the tile for the caller, and for this block's threads with its
  /// reciprocal, which is 0 where codes must be found the exact way.
  BLOCKSCALE_DEVICE void find_column_scale(uint32_t column) const {
    constexpr uint32_t kInWord = 4 / Values::kElementBytes;
    const uint32_t across = column / 16;
    const uint32_t word = column % 16 / kInWord;
    const uint32_t from = permuted(across, word / 4) * 16 + word % 4 * 4;
    Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      const uint32_t row = warp * kRowLanes * kVectors * 16;
      largest.fold_magnitudes(ptx::ld_shared<uint32_t>(shared_ + (row + from)));
    }
    if constexpr (kInWord == 2) largest.bits = largest.bits >> (column % 2 * 16) & 0xFFFFu;
    const QuantizeParams& p = p_.columns;
    const BlockScale scale[1] = {
        fp8_block_scale<kConfig.element>(largest.f32_bits(), p.amax_floor, p.fp8_scale)};
    store_row_scales<kConfig>(p, {tile_.matrix, tile_.column + column, tile_.row}, scale);
    const ptx::SharedAddress to = scales_at(across, column % 16 / 4) + column % 4 * 4;
    ptx::st_shared(to, scale[0].factor);
    ptx::st_shared(to + kTransposeTile * 4, scale[0].exceptional ? 0.0f : scale[0].reciprocal);
  }

  /// Four scales; their reciprocals lie kTransposeTile * 4 bytes behind them.
  BLOCKSCALE_DEVICE ptx::SharedAddress scales_at(uint32_t across, uint32_t v) const {
    return shared_ + (kTransposeCodesBytes + permuted(across, v) * 16);
  }

  BLOCKSCALE_DEVICE void quantize_rows() {
    bool exactly = !may_hold_;
    if (may_hold_) {
      BLOCKSCALE_UNROLL
      for (uint32_t u = 0; u < 4; ++u) {
        const ChunkPlace at = place(u);
        const Units<kConfig> units =
            find_block_scales<kConfig, false>(p_.rows, 1.0f, at, chunks_[u]);
        exactly |= any_exceptional(units);
        if (exists(u)) store_shortly<kConfig>(p_.rows, at, chunks_[u], units);
      }
    }
    if (!exactly) return;
    each_in_turn([&](uint32_t u) {
      const ChunkPlace at = place(u);
      store_exactly<kConfig>(p_.rows, at, chunks_[3],
                             find_block_scales<kConfig, true>(p_.rows, 1.0f, at, chunks_[3]));
    });
  }

  /// Address of the word with the codes of rows 16 * unit + 4 * quad and the three below it.
  BLOCKSCALE_DEVICE ptx::SharedAddress codes_at_unit(uint32_t column, uint32_t unit) const {
    return shared_ + (column * kTransposeTile + (unit ^ column / 16) * 16);
  }

  /// Codes of the four elements of a column, in one word.
  BLOCKSCALE_DEVICE uint32_t column_codes(int column, float factor, float reciprocal) const {
    Chunk<Format::f32, 4> values;
    BLOCKSCALE_UNROLL
    for (int u = 0; u < 4; ++u) values.word[u] = bit_cast<uint32_t>(value_at(chunks_[u], column));
    BlockScale scale;
    scale.factor = factor;
    scale.reciprocal = reciprocal;
    if (reciprocal != 0) {
      return encode_chunk<kConfig.element, kConfig.rule, false>(values, scale).word[0];
    }
    return encode_chunk<kConfig.element, kConfig.rule, true>(values, scale).word[0];
  }

  BLOCKSCALE_DEVICE void transpose_codes() const {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      const ptx::SharedAddress scales = scales_at(across(), v);
      const Words factors = ptx::ld_shared<Words>(scales);
      const Words reciprocals = ptx::ld_shared<Words>(scales + kTransposeTile * 4);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t column = 4 * v + i;
        const uint32_t codes =
            column_codes(static_cast<int>(column), bit_cast<float>(factors.at[i]),
                         bit_cast<float>(reciprocals.at[i]));
        ptx::st_shared(codes_at_unit(across() * 16 + column, warp()) + quad() * 4, codes);
      }
    }
  }

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
  bool may_hold_;
  Values chunks_[kConfig.chunks] = {};
};

}  // namespace blockscale::quantize_sm90

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_transpose_tile(const RowsAndColumnsParams& params) {
  if (ptx::ctaid_x() >= params.rows.grid.tiles) return;
  quantize_sm90::TransposeTile<kConfig>(params, ptx::ctaid_x()).quantize();
}

}  // namespace blockscale
