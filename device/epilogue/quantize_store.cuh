// From a warp's accumulators to codes and scales: 16 rows x 128 columns, each block of which lies
// in the four lanes that share a row of a wgmma accumulator. The lanes exchange amaxes by shuffles
// and codes through shared memory, so that each stores 16 bytes and neighbours store a whole row.
//
// The bytes are those that the quantizers' kernels make of the same f32 numbers: the arithmetic is
// device/encode's.
#pragma once

#include "core/math.h"
#include "device/encode/code_quotient.cuh"
#include "device/encode/codes.cuh"
#include "device/encode/store.cuh"
#include "device/epilogue/quantize.h"
#include "device/epilogue/tile_store.cuh"
#include "device/math.h"
#include "device/ptx/shared_memory.h"

namespace blockscale {

/// Where a warp's 16 rows lie in D and in y, and which rows of the scale layout's padding are
/// theirs.
struct QuantizedPlace {
  uint32_t lane;
  RowSpan span;
  uint32_t row;
  uint32_t column;                  // of y
  epilogue::LaneColumns d_columns;  // of this lane's elements, in D
  uint32_t padding_row_step;        // also rows of scales that are so far below; 0: none
  uint32_t padding_end;             // behind the last row of scales that may be theirs
};

namespace epilogue {

/// The 16 rows x 128 columns of y, by one rule. A thread's element (half, group, i) is that of its
/// row + 8 half and of column 8 group + 2 (lane % 4) + i.
template <ScaleRule kRule>
class BlockQuantizer {
 public:
  static constexpr Format kElement = epilogue_element(kRule);
  static constexpr int kBlock = 1 << log2_epilogue_block(kRule);
  static constexpr int kBlocks = kQuantizedColumns / kBlock;  // of a row
  /// Blocks of a row whose scales a lane makes: each its share, or all the same one.
  static constexpr int kOwn = kBlocks < 4 ? 1 : kBlocks / 4;

  /// Where codes wait to be stored: a row has kPitch bytes, so that lanes of one access meet no
  /// bank twice. Lane q of a row has word q of each 16 bytes.
  static constexpr uint32_t kRowBytes = kQuantizedColumns * format_traits(kElement).bits / 8;
  static constexpr uint32_t kPitch = kRowBytes + 16;

  /// `held`: the warp's shared memory, which a quantizer may overwrite.
  BLOCKSCALE_DEVICE BlockQuantizer(const QuantizingEpilogue& q, const QuantizedPlace& place,
                                   ptx::SharedAddress held)
      : q_(q), place_(place), lane_(place.lane), held_(held) {
    if constexpr (kRule == ScaleRule::nvfp4) {
      if (q.tensor_scale == nullptr) return;
      const float stored =
          ptx::ld_global(q.tensor_scale + place.span.matrix * q.tensor_scale_stride);
      tensor_scale_ =
          q.is_multiplier ? ptx::min(ptx::rcp_rn(stored), encoding::kLargestFinite) : stored;
    }
  }

  /// The short way of encoding is not right for all blocks, nor for rows that do not begin and end
  /// at multiples of 16 bytes.
  BLOCKSCALE_DEVICE void quantize(const float (&y)[kQuantizedColumns / 2]) {
    uint32_t amax[2][kOwn];
    find_amaxes<true>(y, amax);
    const bool is_short = find_scales<false>(amax);
    if (is_short) {
      encode(y);
    } else {
      if constexpr (kRule == ScaleRule::fp8) find_amaxes<false>(y, amax);
      (void)find_scales<true>(amax);
      encode_exactly(y);
    }
    store_scales();
    if (is_short) store_rows();
  }

 private:
  static constexpr int kVectorCodes = 128 / format_traits(kElement).bits;  // of 16 bytes
  using Words = device::Vector<uint32_t, 4>;

  template <class Amax, int kCount>
  static BLOCKSCALE_DEVICE void keep_half(uint32_t (&bits)[kCount], bool upper, uint32_t lanes) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      Amax kept{upper ? bits[i + kCount / 2] : bits[i]};
      const uint32_t sent = upper ? bits[i] : bits[i + kCount / 2];
      kept.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, sent, lanes));
      bits[i] = kept.bits;
    }
  }

  /// Largest magnitudes (bits) of this lane's blocks. With kPoison a NaN among the elements makes
  /// them one, which it does to a block of MX or NVFP4; FP8 has nothing but a code for it.
  template <bool kPoison>
  BLOCKSCALE_DEVICE void find_amaxes(const float (&y)[kQuantizedColumns / 2],
                                     uint32_t (&own)[2][kOwn]) const {
    using Amax = encoding::Amax<Format::f32, kPoison>;
    constexpr int kElements = kBlock / 4;  // of a thread's row
    constexpr int kAtOnce = kElements < 16 ? kElements : 16;
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t bits[kBlocks];
      BLOCKSCALE_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        Amax amax;
        BLOCKSCALE_UNROLL
        for (int first = 0; first < kElements; first += kAtOnce) {
          encoding::Chunk<Format::f32, kAtOnce> part;
          BLOCKSCALE_UNROLL
          for (int i = 0; i < kAtOnce; ++i) {
            const int at = first + i, group = (b * kElements + at) / 2;
            part.word[i] = bit_cast<uint32_t>(y[4 * group + 2 * half + at % 2]);
          }
          amax.fold(part);
        }
        bits[b] = amax.bits;
      }
      exchange_amaxes<Amax>(bits, own[half]);
    }
  }

  /// From the four lanes' amaxes of a row's blocks to those of this lane's.
  template <class Amax>
  BLOCKSCALE_DEVICE void exchange_amaxes(uint32_t (&bits)[kBlocks], uint32_t (&own)[kOwn]) const {
    if constexpr (kBlocks < 4) {
      BLOCKSCALE_UNROLL
      for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
        Amax amax{bits[0]};
        amax.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, bits[0], lanes));
        bits[0] = amax.bits;
      }
      own[0] = bits[0];
    } else {
      keep_half<Amax>(bits, (lane_ & 2) != 0, 2);
      uint32_t rest[kBlocks / 2];
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kBlocks / 2; ++i) rest[i] = bits[i];
      keep_half<Amax>(rest, (lane_ & 1) != 0, 1);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kOwn; ++i) own[i] = rest[i];
    }
  }

  /// Scales of this lane's blocks. Whether the short way serves all that is the warp's.
  template <bool kExact>
  BLOCKSCALE_DEVICE bool find_scales(const uint32_t (&amax)[2][kOwn]) {
    bool exceptional = !q_.vectors;
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        encoding::BlockScale& scale = scale_[half][i];
        scale = encoding::block_scale<kRule, kElement, kExact>(amax[half][i], tensor_scale_,
                                                               q_.options);
        bool is_short = !scale.exceptional;
        if constexpr (kRule == ScaleRule::fp8) {
          is_short =
              amax[half][i] < encoding::kInfinityBits && encoding::has_code_quotients(scale.factor);
        }
        exceptional |= has_row(half) && !is_short;
      }
    }
    return !ptx::vote_sync_any(ptx::kFullMask, exceptional);
  }

  BLOCKSCALE_DEVICE uint32_t row(int half) const {
    return place_.row + lane_ / 4 + 8 * static_cast<uint32_t>(half);
  }
  BLOCKSCALE_DEVICE bool has_row(int half) const { return row(half) < place_.span.end; }

  BLOCKSCALE_DEVICE void store_scales() const {
    const uint32_t column = place_.column / kBlock + (kBlocks < 4 ? 0 : lane_ % 4 * kOwn);
    const bool has_column = (kBlocks >= 4 || lane_ % 4 == 0) && column * kBlock < q_.columns;
    ScaleMatrix m = q_.scales;
    m.bytes |= kRule != ScaleRule::fp8;
    const uint32_t left = kOwn == 1 ? 1 : m.columns - column;
    const int64_t matrix = place_.span.matrix * m.batch_stride;
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t stored[kOwn];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kOwn; ++i) {
        const bool exists = i == 0 || (column + i) * kBlock < q_.columns;
        stored[i] = exists ? scale_[half][i].stored : 0;
      }
      if (!has_column || !has_row(half)) continue;
      const int64_t at = matrix + q_.scale_steps.offset(row(half), column);
      encoding::store_scales_at(m, at, left, stored);
    }
  }

  /// A field of block `b`'s scale, from the lane that made it.
  template <class T>
  BLOCKSCALE_DEVICE T of_block(const T (&own)[kOwn], int b) const {
    if constexpr (kBlocks < 4) return own[0];
    return ptx::shfl_sync_idx(ptx::kFullMask, own[b % kOwn], static_cast<uint32_t>(b / kOwn), 4);
  }

  /// The short way: words of four (eight) codes to shared memory, from where store_rows takes them.
  BLOCKSCALE_DEVICE void encode(const float (&y)[kQuantizedColumns / 2]) const {
    constexpr int kGroups = 4 * kVectorCodes / 8 / 4;  // of 8 columns in a word
    const ptx::SharedAddress own = held_ + (lane_ / 4 * kPitch + lane_ % 4 * 4);
    ptx::bar_warp_sync(ptx::kFullMask);
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float own_factor[kOwn], factor[kBlocks];
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kOwn; ++i) own_factor[i] = scale_[half][i].factor;
      BLOCKSCALE_UNROLL
      for (int b = 0; b < kBlocks; ++b) factor[b] = of_block(own_factor, b);
      BLOCKSCALE_UNROLL
      for (int first = 0; first < 16; first += kGroups) {
        encoding::Chunk<Format::f32, 2 * kGroups> chunk;
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 2 * kGroups; ++i) {
          chunk.word[i] = bit_cast<uint32_t>(y[4 * (first + i / 2) + 2 * half + i % 2]);
        }
        const auto block = [first](int i) { return 8 * (first + i / 2) / kBlock; };
        const auto word = static_cast<uint32_t>(first / kGroups);
        ptx::st_shared(own + (static_cast<uint32_t>(half) * 8 * kPitch + word * 16),
                       encode_word(chunk, half, [&](int i) { return factor[block(i)]; }));
      }
    }
    clear_blocks();
  }

  /// Codes of a word; factor_of(i) is that of element i's block.
  template <int kCount, class FactorOf>
  BLOCKSCALE_DEVICE uint32_t encode_word(const encoding::Chunk<Format::f32, kCount>& chunk,
                                         int half, const FactorOf& factor_of) const {
    if constexpr (kRule == ScaleRule::nvfp4) {
      return encoding::encode_nvfp4<false>(chunk, factor_of).word[0];
    } else if constexpr (kRule == ScaleRule::mx) {
      return encoding::fp8_bytes<kElement>(
          [&](int i) { return ptx::mul_rn(encoding::value_at(chunk, i), factor_of(i)); }, 0);
    } else {
      const encoding::BlockScale& scale = scale_[half][0];
      const encoding::CodeQuotient quotient(scale.factor, scale.reciprocal);
      return encoding::fp8_bytes<kElement>(
          [&](int i) { return quotient(encoding::value_at(chunk, i)); }, 0);
    }
  }

  /// Codes of 0 where a block has no scale.
  BLOCKSCALE_DEVICE void clear_blocks() const {
    if constexpr (kRule != ScaleRule::fp8) {
      bool is_empty = false;
      BLOCKSCALE_UNROLL
      for (const auto& row : scale_) {
        BLOCKSCALE_UNROLL
        for (const encoding::BlockScale& scale : row) is_empty |= scale.keep == 0;
      }
      if (!ptx::vote_sync_any(ptx::kFullMask, is_empty)) return;
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        const ptx::SharedAddress own =
            held_ + ((lane_ / 4 + 8 * half) * kPitch + lane_ % 4 * (kRowBytes / 4));
        BLOCKSCALE_UNROLL
        for (uint32_t i = 0; i < kRowBytes / 4; i += 16 / kOwn / 4) {
          // Of each word nvfp4's two blocks have a half.
          if (scale_[half][i / (4 / kOwn) % kOwn].keep != 0) continue;
          if constexpr (kOwn == 2) {
            ptx::st_shared(own + i, uint16_t{0});
          } else {
            ptx::st_shared(own + i, uint32_t{0});
          }
        }
      }
    }
  }

  /// Rows of codes from shared memory: a lane has 16 bytes at a time.
  BLOCKSCALE_DEVICE void store_rows() const {
    constexpr uint32_t kLanes = kRowBytes / 16;  // of a row
    constexpr uint32_t kRows = 32 / kLanes;      // at a time
    // Eight lanes read from rows whose banks differ.
    const uint32_t first = kLanes == 8 ? lane_ / 8 : lane_ / 8 + lane_ / 4 % 2 * 4;
    const uint32_t byte = lane_ % kLanes * 16;
    const uint32_t codes = byte * 8 / format_traits(kElement).bits;
    const bool has_column = place_.column + codes < q_.columns;
    const uint32_t at_row = place_.row + first;
    uint8_t* to = q_.values + place_.span.matrix * q_.value_batch_stride +
                  at_row * q_.value_row_stride +
                  int64_t{place_.column} * format_traits(kElement).bits / 8 + byte;
    const ptx::SharedAddress from = held_ + (first * kPitch + byte);
    ptx::bar_warp_sync(ptx::kFullMask);
    BLOCKSCALE_UNROLL
    for (uint32_t row = 0; row < 16; row += kRows) {
      const Words words = in_order(ptx::ld_shared<Words>(from + row * kPitch));
      if (has_column && at_row + row < place_.span.end)
        ptx::st_global(reinterpret_cast<Words*>(to), words);
      to += kRows * q_.value_row_stride;
    }
  }

  /// From word q of lane q to consecutive codes: of each eight columns lane q has two.
  BLOCKSCALE_DEVICE static Words in_order(const Words& w) {
    if constexpr (kElement == Format::e2m1) {
      const uint32_t a = ptx::prmt(w.at[0], w.at[1], 0x5140),
                     b = ptx::prmt(w.at[2], w.at[3], 0x5140);
      const uint32_t c = ptx::prmt(w.at[0], w.at[1], 0x7362),
                     d = ptx::prmt(w.at[2], w.at[3], 0x7362);
      return {{ptx::prmt(a, b, 0x5410), ptx::prmt(a, b, 0x7632), ptx::prmt(c, d, 0x5410),
               ptx::prmt(c, d, 0x7632)}};
    } else {
      return {{ptx::prmt(w.at[0], w.at[1], 0x5410), ptx::prmt(w.at[2], w.at[3], 0x5410),
               ptx::prmt(w.at[0], w.at[1], 0x7632), ptx::prmt(w.at[2], w.at[3], 0x7632)}};
    }
  }

  /// Any blocks, to any address: elements through shared memory, eight of a row for each lane.
  BLOCKSCALE_DEVICE void encode_exactly(const float (&y)[kQuantizedColumns / 2]) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t side = 0; side < 2; ++side) {
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        const ptx::SharedAddress own =
            held_ + ((lane_ / 4 + 8 * half) * kSideBytes + lane_ % 4 * 8);
        BLOCKSCALE_UNROLL
        for (uint32_t j = 0; j < 8; ++j) {
          const uint32_t i = 4 * j + 2 * half;
          using Two = device::Vector<float, 2>;
          ptx::st_shared(own + j * 32,
                         side == 0 ? Two{{y[i], y[i + 1]}} : Two{{y[i + 32], y[i + 33]}});
        }
      }
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_NO_UNROLL
      for (uint32_t first = 0; first < 16; first += 4) encode_eight(side, first + lane_ / 8);
    }
  }

  /// Eight elements of a row, counted from the warp's first, of one half of the columns.
  BLOCKSCALE_DEVICE void encode_eight(uint32_t side, uint32_t row) const {
    const uint32_t column = 64 * side + lane_ % 8 * 8, block = column / kBlock;
    const uint32_t source = row % 8 * 4 + (kBlocks < 4 ? 0 : block / kOwn);
    encoding::BlockScale scale;
    BLOCKSCALE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kOwn; ++i) {
        const encoding::BlockScale& own = scale_[half][i];
        const float factor = ptx::shfl_sync_idx(ptx::kFullMask, own.factor, source);
        const uint32_t keep = ptx::shfl_sync_idx(ptx::kFullMask, own.keep, source);
        if (row / 8 != half || block % kOwn != i) continue;
        scale.factor = factor;
        scale.keep = keep;
      }
    }
    const ptx::SharedAddress from = held_ + (row * kSideBytes + lane_ % 8 * 32);
    encoding::Chunk<Format::f32, 8> chunk;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const auto four = ptx::ld_shared<Words>(from + 16 * i);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) chunk.word[4 * i + j] = four.at[j];
    }
    const int32_t left = static_cast<int32_t>(q_.columns - place_.column - column);
    if (place_.row + row >= place_.span.end || left <= 0) return;
    encoding::store_code_bytes(
        encoding::encode_chunk<kElement, kRule, true>(chunk, scale), left,
        q_.values + place_.span.matrix * q_.value_batch_stride +
            (place_.row + row) * q_.value_row_stride +
            int64_t{place_.column + column} * format_traits(kElement).bits / 8);
  }
  static constexpr uint32_t kSideBytes = kQuantizedColumns / 2 * 4;  // of a row in f32

  const QuantizingEpilogue& q_;
  const QuantizedPlace& place_;
  uint32_t lane_;
  ptx::SharedAddress held_;
  float tensor_scale_ = 1;
  encoding::BlockScale scale_[2][kOwn];
};

/// Zeros where the scale layout has more rows or columns than there are blocks: those below and
/// beside this warp's.
BLOCKSCALE_DEVICE void clear_padding(const QuantizingEpilogue& q, const QuantizedPlace& place) {
  const ScaleMatrix& m = q.scales;
  const uint32_t shift = log2_epilogue_block(q.rule);
  const uint32_t columns = ((q.columns - 1) >> shift) + 1;
  const bool is_last = place.column + kQuantizedColumns >= q.columns;
  const uint32_t first = place.column >> shift;
  const uint32_t end = is_last ? m.columns : first + (kQuantizedColumns >> shift);
  const uint32_t row_step = place.padding_row_step == 0 ? m.rows : place.padding_row_step;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t row = place.row + place.lane % 16; row < place.padding_end; row += row_step) {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t column = first + place.lane / 16; column < end; column += 2) {
      if (row < place.span.end && column < columns) continue;
      encoding::store_scales(m, place.span.matrix, row, column, {0});
    }
  }
}

}  // namespace epilogue

/// Quantizes tiles of 16 rows x 128 columns of D a warp.
class QuantizeStore {
 public:
  static constexpr int kSums = kQuantizedColumns / 2;  // of a thread
  /// Of a warp's shared memory, at a multiple of 16.
  static constexpr uint32_t kHeldBytes = 32 * kSums / 2 * 4;

  BLOCKSCALE_DEVICE QuantizeStore(const LinearEpilogue& e, const QuantizingEpilogue& q,
                                  ptx::SharedAddress held)
      : e_(e), q_(q), held_(held) {}

  /// The sums of a tile. With swiglu its first 64 columns are gates and the others their ups, and
  /// two tiles make 128 columns: those of `sub_tile` 0 are held until those of 1 come.
  BLOCKSCALE_DEVICE void operator()(float (&v)[kSums], const QuantizedPlace& place,
                                    uint32_t sub_tile) const {
    bool is_y = q_.takes_sums && place.row < place.span.end;
    if (!is_y && place.row < place.span.end) is_y = make_y(v, place, sub_tile);
    if (is_y) quantize(v, place);
    if (q_.has_padding) epilogue::clear_padding(q_, place);
  }

 private:
  /// From sums to y. False with swiglu's sub-tile 0, which is held.
  BLOCKSCALE_DEVICE bool make_y(float (&v)[kSums], const QuantizedPlace& place,
                                uint32_t sub_tile) const {
    const uint32_t row = place.row + place.lane / 4;
    epilogue::apply_scales(v, e_, place.span, row, place.d_columns);
    epilogue::combine<false>(v, e_, place.span, row, place.d_columns);
    activate(v, sub_tile, held_ + place.lane * 16);
    return !is_gated(q_.activation) || sub_tile != 0;
  }

  BLOCKSCALE_DEVICE void quantize(const float (&y)[kSums], const QuantizedPlace& place) const {
    using epilogue::BlockQuantizer;
    if (q_.rule == ScaleRule::fp8) {
      BlockQuantizer<ScaleRule::fp8>(q_, place, held_).quantize(y);
    } else if (q_.rule == ScaleRule::mx) {
      BlockQuantizer<ScaleRule::mx>(q_, place, held_).quantize(y);
    } else {
      BlockQuantizer<ScaleRule::nvfp4>(q_, place, held_).quantize(y);
    }
  }

  BLOCKSCALE_DEVICE void activate(float (&v)[kSums], uint32_t sub_tile,
                                  ptx::SharedAddress own_held) const {
    using M = device::KernelMath;
    if (q_.activation == Activation::gelu) {
      BLOCKSCALE_UNROLL
      for (float& x : v) x = math::gelu<M>(x, q_.gelu);
    } else if (is_gated(q_.activation)) {
      using Four = device::Vector<float, 4>;
      if (q_.activation == Activation::swiglu) {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kSums / 2; ++i) {
          v[kSums / 2 + i] = math::swiglu<M>(v[i], v[kSums / 2 + i]);
        }
      } else {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < kSums / 2; ++i) {
          v[kSums / 2 + i] = math::clamped_swiglu<M>(v[i], v[kSums / 2 + i], q_.swiglu);
        }
      }
      if (sub_tile == 0) ptx::bar_warp_sync(ptx::kFullMask);  // others may still read it
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums / 2; i += 4) {
        const ptx::SharedAddress held = own_held + static_cast<uint32_t>(i / 4 * 32 * 16);
        float* const own = v + kSums / 2 + i;
        if (sub_tile == 0) {
          ptx::st_shared(held, Four{{own[0], own[1], own[2], own[3]}});
        } else {
          const Four first = ptx::ld_shared<Four>(held);
          BLOCKSCALE_UNROLL
          for (int j = 0; j < 4; ++j) v[i + j] = first.at[j];
        }
      }
    }
  }

  const LinearEpilogue& e_;
  const QuantizingEpilogue& q_;
  ptx::SharedAddress held_;
};

}  // namespace blockscale
