// The rows and columns of a tile in kernels that quantise both: their maxima, scales and dividers,
// which threads share.
#pragma once

#include "device/kernel.h"
#include "device/ptx/integer.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_transpose_line.cuh"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// The lines of a tile, and what a thread knows of them. Functions are collective.
template <QuantizeConfig kConfig>
class TileLines {
  using Words = device::Vector<uint32_t, 4>;
  using Values = ValueChunk<kConfig>;
  using ValueMaxima =
      LineMaxima<kValueFormat<kConfig>, kConfig.chunk, Largest<kValueFormat<kConfig>, false>>;

 public:
  /// GELU is encoded from approximate values, and until then x is held.
  static constexpr bool kLikely = approximates_gelu(kConfig);
  static constexpr uint32_t kColumns = kConfig.chunk;  // of a thread
  static constexpr uint32_t kRows = kConfig.chunks;
  using Divider = typename LineDivider<kLikely>::Type;

 private:
  /// Of what is held.
  using HeldMaxima = typename MaximaOfHeld<kConfig, kLikely>::Type;
  static constexpr uint32_t kWarps = kConfig.threads / 32;
  static constexpr uint32_t kRowLanes = kTransposeTile / kColumns;
  /// Parts of a row of which the maxima are shared: those of lanes, unless a warp has it all.
  static constexpr uint32_t kRowParts = kRowLanes == 32 ? 1 : kRowLanes;

  // Shared memory, in bytes: maxima lie where codes are later.
  static constexpr uint32_t kColumnMaximaStride = kTransposeTile * 4;  // of a warp
  static constexpr uint32_t kRowMaxima = kWarps * kColumnMaximaStride;
  static constexpr uint32_t kRowMaximaStride = (kTransposeTile + 4) * 4;  // of a part of the rows
  static constexpr uint32_t kColumnScales = kTransposeCodesBytes;
  static constexpr uint32_t kRowScales = kColumnScales + 3 * kTransposeTile * 4;
  static constexpr uint32_t kExceptional = kRowScales + 3 * kTransposeTile * 4;
  static_assert(kRowMaxima + kRowParts * kRowMaximaStride <= kTransposeCodesBytes);
  static_assert(kExceptional + kWarps * 4 <= kTransposeSharedBytes);
  static_assert(kConfig.threads / kRowLanes * kRows == kTransposeTile && kColumns % 4 == 0 &&
                kRows % 4 == 0 && kRows <= 16 && kConfig.block == kTransposeTile &&
                kConfig.rule == ScaleRule::fp8 && kConfig.element == Format::e4m3);

 public:
  BLOCKSCALE_DEVICE TileLines(const RowsAndColumnsParams& p, const TilePlace& tile)
      : p_(p),
        thread_(ptx::tid_x()),
        tile_{tile.matrix, tile.row, tile.across * kTransposeTile},
        shared_(device::shared_base()) {}

  /// The place of the tile.
  BLOCKSCALE_DEVICE const ChunkPlace& tile() const { return tile_; }

  /// A thread has rows first_row() to first_row() + kRows - 1, and kColumns columns from
  /// first_column() on.
  BLOCKSCALE_DEVICE uint32_t first_row() const { return thread_ / kRowLanes * kRows; }
  BLOCKSCALE_DEVICE uint32_t first_column() const { return across() * kColumns; }
  /// Where row u of these begins.
  BLOCKSCALE_DEVICE ChunkPlace place(uint32_t u) const {
    return {tile_.matrix, tile_.row + first_row() + u, tile_.column + first_column()};
  }

  // ---------------------------------------------------------------- maxima

  /// Shares the maxima of what a thread holds: held_of(u) of row u.
  template <class HeldOf>
  BLOCKSCALE_DEVICE void share_maxima_of_held(const HeldOf& held_of) const {
    typename HeldMaxima::Maximum columns[HeldMaxima::kWords];
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kRows / 4; ++v) {
      Words rows;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) rows.at[i] = fold<HeldMaxima>(held_of(4 * v + i), columns);
      if (across() >= kRowParts) continue;
      ptx::st_shared(row_maximum_at(across(), first_row() + 4 * v), rows);
    }
    share_column_maxima<HeldMaxima>(columns);
  }

  /// The same of values that are loaded now, which any matrix allows for.
  BLOCKSCALE_DEVICE void share_maxima_row_by_row() const {
    typename ValueMaxima::Maximum columns[ValueMaxima::kWords];
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kRows; ++u) {
      Values chunk;
      load_part_of<kConfig>(chunk, p_.rows, place(u));
      const uint32_t largest = fold<ValueMaxima>(chunk, columns);
      if (across() < kRowParts) ptx::st_shared(row_maximum_at(across(), first_row() + u), largest);
    }
    share_column_maxima<ValueMaxima>(columns);
  }

  // ---------------------------------------------------------------- scales

  /// Stores the scales of the columns and of the rows of the tile for the caller, and for this
  /// block's threads what they divide by. A barrier lies between this and the maxima, which are
  /// those `of_held`, and another one between this and whoever reads it.
  BLOCKSCALE_DEVICE void find_scales(bool of_held) const {
    if constexpr (kLikely) {
      if (of_held) return find_scales_from<HeldMaxima>();
    }
    find_scales_from<ValueMaxima>();
  }

  /// Whether the short way of encoding may be wrong for a line.
  BLOCKSCALE_DEVICE bool any_exceptional_scale() const {
    uint32_t any = 0;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; warp += 4) {
      const Words words = ptx::ld_shared<Words>(shared_ + (kExceptional + warp * 4));
      any |= words.at[0] | words.at[1] | words.at[2] | words.at[3];
    }
    return any != 0;
  }

  /// What four lines are divided by.
  struct FourDividers {
    Words first, second;

    BLOCKSCALE_DEVICE explicit FourDividers(ptx::SharedAddress from)
        : first(ptx::ld_shared<Words>(from)),
          second(ptx::ld_shared<Words>(from + kTransposeTile * 4)) {}
    BLOCKSCALE_DEVICE Divider at(uint32_t i) const {
      return {bit_cast<float>(first.at[i]), bit_cast<float>(second.at[i])};
    }
  };
  /// Rows 4 v to 4 v + 3 of the thread.
  BLOCKSCALE_DEVICE FourDividers dividers_of_rows(uint32_t v) const {
    return FourDividers(row_scales_at(first_row() + 4 * v));
  }
  /// Its columns 4 g to 4 g + 3.
  BLOCKSCALE_DEVICE FourDividers dividers_of_columns(uint32_t g) const {
    return FourDividers(column_scales_at(across(), g));
  }

  /// The scale of the thread's row u, and of its column i.
  BLOCKSCALE_DEVICE float scale_of_row(uint32_t u) const {
    return shared_scale(row_scales_at(first_row() + u));
  }
  BLOCKSCALE_DEVICE float scale_of_column(uint32_t i) const {
    return shared_scale(column_scale_at(first_column() + i));
  }

  /// An element of x, 0 beyond the matrix.
  BLOCKSCALE_DEVICE float x_at(const ChunkPlace& place) const {
    const QuantizeParams& p = p_.rows;
    if (place.row >= p.rows || place.column >= p.k) return 0;
    const auto* const from =
        reinterpret_cast<const uint16_t*>(quantize_sm90::x_at<kConfig>(p, place));
    const Chunk<kConfig.input, 2> x = {{ptx::ld_global(from)}};
    return value_at(x, 0);
  }

 private:
  BLOCKSCALE_DEVICE uint32_t across() const { return thread_ % kRowLanes; }

  /// The maximum of a part of a row, the thread's elements of which count for its columns too.
  template <class Maxima>
  BLOCKSCALE_DEVICE static uint32_t fold(const typename Maxima::Values& chunk,
                                         typename Maxima::Maximum (&columns)[Maxima::kWords]) {
    typename Maxima::Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < Maxima::kWords; ++i) {
      columns[i].fold(chunk.word[i]);
      largest.fold(chunk.word[i]);
    }
    if constexpr (kRowParts == 1) {
      static_assert(!Maxima::kPacked);  // magnitudes in f32 compare as their bits do
      return ptx::redux_sync_max(ptx::kFullMask, largest.bits);
    }
    return largest.bits;
  }

  /// The maxima of a part of the rows, row after row.
  BLOCKSCALE_DEVICE ptx::SharedAddress row_maximum_at(uint32_t part, uint32_t row) const {
    return shared_ + (kRowMaxima + part * kRowMaximaStride + row * 4);
  }

  /// Where a vector of four words, the `v`th of a lane's columns, lies in a row of vectors: written
  /// by lanes with the same v, and read by threads with neighbouring columns.
  BLOCKSCALE_DEVICE static uint32_t permuted(uint32_t across, uint32_t v) {
    return v * kRowLanes + (across ^ (32 / kColumns * v));
  }

  /// Writes the maxima of the columns of each warp, packed as the elements are.
  template <class Maxima>
  BLOCKSCALE_DEVICE void share_column_maxima(
      const typename Maxima::Maximum (&of_thread)[Maxima::kWords]) const {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < Maxima::kWords / 4; ++v) {
      Words words;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        typename Maxima::Maximum largest = of_thread[4 * v + i];
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

  template <class Maxima>
  BLOCKSCALE_DEVICE void find_scales_from() const {
    bool exceptional = false;
    BLOCKSCALE_UNROLL
    for (uint32_t first = 0; first < 2 * kTransposeTile; first += kConfig.threads) {
      const uint32_t line = first + thread_;
      exceptional |= line < kTransposeTile ? find_scale<Maxima, true>(line)
                                           : find_scale<Maxima, false>(line - kTransposeTile);
    }
    const bool any = ptx::vote_sync_any(ptx::kFullMask, exceptional);
    if (thread_ % 32 != 0) return;
    ptx::st_shared(shared_ + (kExceptional + thread_ / 32 * 4), any ? 1u : 0u);
  }

  /// The scale of a column of the tile, or of a row.
  template <class Maxima, bool kOfColumn>
  BLOCKSCALE_DEVICE bool find_scale(uint32_t line) const {
    const QuantizeParams& p = kOfColumn ? p_.columns : p_.rows;
    const uint32_t amax = amax_of(maximum<Maxima, kOfColumn>(line), [&](uint32_t of, uint32_t i) {
      return ChunkPlace{tile_.matrix, tile_.row + (kOfColumn ? i : of),
                        tile_.column + (kOfColumn ? of : i)};
    });
    const BlockScale scale[1] = {fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale)};
    const ChunkPlace place = kOfColumn ? ChunkPlace{tile_.matrix, tile_.column + line, tile_.row}
                                       : ChunkPlace{tile_.matrix, tile_.row + line, tile_.column};
    store_scales_of_blocks<kConfig, ScaleSectors::shared>(p, place, scale);
    share_scale(kOfColumn ? column_scale_at(line) : row_scales_at(line), scale[0], amax);
    return Divider::is_exceptional(scale[0]);
  }

  template <class Maxima, bool kOfColumn>
  BLOCKSCALE_DEVICE typename Maxima::Maximum maximum(uint32_t line) const {
    if constexpr (kOfColumn) {
      return column_maximum<Maxima>(line);
    } else {
      return row_maximum<Maxima>(line);
    }
  }

  template <class Maxima>
  BLOCKSCALE_DEVICE typename Maxima::Maximum column_maximum(uint32_t column) const {
    constexpr uint32_t kInWord = kColumns / Maxima::kWords;
    const uint32_t word = column % kColumns / kInWord;
    const uint32_t from = permuted(column / kColumns, word / 4) * 16 + word % 4 * 4;
    typename Maxima::Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      largest.fold_magnitudes(
          ptx::ld_shared<uint32_t>(shared_ + (warp * kColumnMaximaStride + from)));
    }
    if constexpr (kInWord == 2) {
      largest.bits = ptx::prmt(largest.bits, largest.bits, column % 2 == 0 ? 0x1010u : 0x3232u);
    }
    return largest;
  }

  template <class Maxima>
  BLOCKSCALE_DEVICE typename Maxima::Maximum row_maximum(uint32_t row) const {
    typename Maxima::Maximum largest;
    BLOCKSCALE_UNROLL
    for (uint32_t part = 0; part < kRowParts; ++part) {
      largest.fold_magnitudes(ptx::ld_shared<uint32_t>(row_maximum_at(part, row)));
    }
    return largest;
  }

  /// The largest magnitude (bits) of a line of the tile.
  template <Format kFormat, class PlaceOf>
  BLOCKSCALE_DEVICE uint32_t amax_of(const Largest<kFormat, false>& largest,
                                     const PlaceOf& /*place_of*/) const {
    return largest.f32_bits();
  }

  /// That of GELU: of the largest x where this is large enough, else of the values themselves,
  /// which a warp computes together. place_of(line, i): element i of a line. All lanes of a warp
  /// call it for lines that follow each other.
  template <Format kFormat, class PlaceOf>
  BLOCKSCALE_DEVICE uint32_t amax_of(const LargestX<kFormat>& largest,
                                     const PlaceOf& place_of) const {
    const float x = largest.value();
    const bool ordered = x >= kLeastOrderedX;
    uint32_t amax = bit_cast<uint32_t>(gelu<kConfig.transform>(x));
    const uint32_t lane = thread_ % 32;
    for (uint32_t left = ptx::vote_sync_ballot(ptx::kFullMask, !ordered); left != 0;
         left &= left - 1) {
      const uint32_t next = lowest_bit(left);
      const uint32_t line = (thread_ - lane + next) % kTransposeTile;
      Largest<Format::f32, false> computed;
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kTransposeTile; i += 32) {
        computed.fold(bit_cast<uint32_t>(gelu<kConfig.transform>(x_at(place_of(line, i + lane)))));
      }
      const uint32_t of_line = ptx::redux_sync_max(ptx::kFullMask, computed.bits);
      if (lane == next) amax = of_line;
    }
    return amax;
  }

  /// The dividers of four columns; their second parts lie kTransposeTile * 4 bytes behind the
  /// first, and the scales themselves as far behind these.
  BLOCKSCALE_DEVICE ptx::SharedAddress column_scales_at(uint32_t across, uint32_t v) const {
    return shared_ + (kColumnScales + permuted(across, v) * 16);
  }
  /// Those of one column.
  BLOCKSCALE_DEVICE ptx::SharedAddress column_scale_at(uint32_t column) const {
    return column_scales_at(column / kColumns, column % kColumns / 4) + column % 4 * 4;
  }
  /// Those of rows.
  BLOCKSCALE_DEVICE ptx::SharedAddress row_scales_at(uint32_t row) const {
    return shared_ + (kRowScales + row * 4);
  }

  BLOCKSCALE_DEVICE static void share_scale(ptx::SharedAddress to, const BlockScale& scale,
                                            uint32_t amax) {
    const Divider divider(scale, amax);
    ptx::st_shared(to, divider.first());
    ptx::st_shared(to + kTransposeTile * 4, divider.second());
    ptx::st_shared(to + 2 * kTransposeTile * 4, scale.factor);
  }
  BLOCKSCALE_DEVICE static float shared_scale(ptx::SharedAddress from) {
    return ptx::ld_shared<float>(from + 2 * kTransposeTile * 4);
  }

  const RowsAndColumnsParams& p_;
  uint32_t thread_;
  ChunkPlace tile_;
  ptx::SharedAddress shared_;
};

}  // namespace blockscale::quantize_sm90
