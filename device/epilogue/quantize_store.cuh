// From a warp's accumulators to codes and scales: 16 rows x 128 columns, each block of which lies
// in the four lanes that share a row of a wgmma accumulator. The lanes exchange amaxes, then codes,
// so that each stores 16 bytes that lie side by side.
//
// The bytes are those that the quantizers' kernels make of the same f32 numbers: the arithmetic is
// device/encode's.
#pragma once

#include "core/math.h"
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
  uint32_t batch;
  uint32_t row;
  uint32_t column;                  // of y
  epilogue::LaneColumns d_columns;  // of this lane's elements, in D
  uint32_t padding_row_step;        // also rows of scales that are so far below; 0: none
};

namespace epilogue {

/// Lane i of each four gets element i of all four lanes, in their order: of pairs of codes of 16
/// bits, the lane's four in two words, and of 8 bits, its four in one.
BLOCKSCALE_DEVICE void transpose_in_quad(uint32_t (&word)[2], uint32_t lane) {
  const bool is_upper = (lane & 2) != 0, is_odd = (lane & 1) != 0;
  const uint32_t sent = is_upper ? word[0] : word[1];
  const uint32_t received = ptx::shfl_sync_bfly(ptx::kFullMask, sent, 2);
  const uint32_t a = is_upper ? received : word[0], b = is_upper ? word[1] : received;
  const uint32_t low = ptx::prmt(a, b, 0x5410), high = ptx::prmt(a, b, 0x7632);
  const uint32_t other = ptx::shfl_sync_bfly(ptx::kFullMask, is_odd ? low : high, 1);
  const uint32_t first = is_odd ? other : low, second = is_odd ? high : other;
  word[0] = ptx::prmt(first, second, 0x5410);
  word[1] = ptx::prmt(first, second, 0x7632);
}
BLOCKSCALE_DEVICE uint32_t transpose_in_quad(uint32_t word, uint32_t lane) {
  const uint32_t other = ptx::shfl_sync_bfly(ptx::kFullMask, word, 2);
  const uint32_t pairs = ptx::prmt(word, other, (lane & 2) != 0 ? 0x3276 : 0x5410);
  const uint32_t more = ptx::shfl_sync_bfly(ptx::kFullMask, pairs, 1);
  return ptx::prmt(pairs, more, (lane & 1) != 0 ? 0x3715 : 0x6240);
}

/// The 16 rows x 128 columns of y, by one rule. A thread's element (half, group, i) is that of its
/// row + 8 half and of column 8 group + 2 (lane % 4) + i.
template <ScaleRule kRule>
class BlockQuantizer {
 public:
  static constexpr Format kElement = epilogue_element(kRule);
  static constexpr int kBlock = epilogue_block(kRule);
  static constexpr int kBlocks = kQuantizedColumns / kBlock;  // of a row
  /// Blocks of a row whose scales a lane makes: each its share, or all the same one.
  static constexpr int kOwn = kBlocks < 4 ? 1 : kBlocks / 4;

  BLOCKSCALE_DEVICE BlockQuantizer(const LinearEpilogue& e, const QuantizingEpilogue& q,
                                   const QuantizedPlace& place)
      : e_(e), q_(q), place_(place), lane_(place.lane) {
    if constexpr (kRule == ScaleRule::nvfp4) {
      if (q.tensor_scale == nullptr) return;
      const float stored = ptx::ld_global(q.tensor_scale + place.batch * q.tensor_scale_stride);
      tensor_scale_ =
          q.is_multiplier ? ptx::min(ptx::rcp_rn(stored), encoding::kLargestFinite) : stored;
    }
  }

  BLOCKSCALE_DEVICE void quantize(const float (&y)[kQuantizedColumns / 2]) {
    uint32_t amax[2][kOwn];
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) find_amaxes(y, half, amax[half]);
    // The short way of encoding is not right for all blocks, and does not clear those without a
    // scale.
    if (find_scales<false>(amax)) {
      store_scales();
      encode<false>(y);
    } else {
      (void)find_scales<true>(amax);
      store_scales();
      encode<true>(y);
    }
  }

  /// Where all of the rows are padding of the scale layout.
  BLOCKSCALE_DEVICE void clear_scales() {
    BLOCKSCALE_UNROLL
    for (auto& row : scale_) {
      BLOCKSCALE_UNROLL
      for (encoding::BlockScale& scale : row) scale = {};
    }
    store_scales();
  }

 private:
  // A NaN makes a block of MX or NVFP4 one, of FP8 just its own code.
  using Amax = encoding::Amax<Format::f32, kRule != ScaleRule::fp8>;

  template <int kCount>
  static BLOCKSCALE_DEVICE void keep_half(uint32_t (&bits)[kCount], bool upper, uint32_t lanes) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      Amax kept{upper ? bits[i + kCount / 2] : bits[i]};
      const uint32_t sent = upper ? bits[i] : bits[i + kCount / 2];
      kept.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, sent, lanes));
      bits[i] = kept.bits;
    }
  }

  /// Largest magnitudes (bits) of this lane's blocks of a row.
  BLOCKSCALE_DEVICE void find_amaxes(const float (&y)[kQuantizedColumns / 2], int half,
                                     uint32_t (&own)[kOwn]) const {
    constexpr int kGroups = kBlock / 8;
    uint32_t bits[kBlocks];
    BLOCKSCALE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      encoding::Chunk<Format::f32, 2 * kGroups> block;
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 2 * kGroups; ++i) {
        block.word[i] = bit_cast<uint32_t>(y[4 * (b * kGroups + i / 2) + 2 * half + i % 2]);
      }
      Amax amax;
      amax.fold(block);
      bits[b] = amax.bits;
    }
    if constexpr (kBlocks < 4) {
      BLOCKSCALE_UNROLL
      for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
        Amax amax{bits[0]};
        amax.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, bits[0], lanes));
        bits[0] = amax.bits;
      }
    } else {
      keep_half(bits, (lane_ & 2) != 0, 2);
      uint32_t rest[kBlocks / 2];
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kBlocks / 2; ++i) rest[i] = bits[i];
      keep_half(rest, (lane_ & 1) != 0, 1);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kOwn; ++i) bits[i] = rest[i];
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kOwn; ++i) own[i] = bits[i];
  }

  /// Scales of this lane's blocks. Whether the short way serves all of the warp's blocks.
  template <bool kExact>
  BLOCKSCALE_DEVICE bool find_scales(const uint32_t (&amax)[2][kOwn]) {
    bool exceptional = false;
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        encoding::BlockScale& scale = scale_[half][i];
        scale = encoding::block_scale<kRule, kElement, kExact>(amax[half][i], tensor_scale_,
                                                               q_.options);
        exceptional |= has_row(half) && (scale.exceptional || scale.keep == 0);
      }
    }
    return !ptx::vote_sync_any(ptx::kFullMask, exceptional);
  }

  BLOCKSCALE_DEVICE uint32_t row(int half) const {
    return place_.row + lane_ / 4 + 8 * static_cast<uint32_t>(half);
  }
  BLOCKSCALE_DEVICE bool has_row(int half) const { return row(half) < e_.rows; }

  /// Stores this lane's scales, and 0 for padding.
  BLOCKSCALE_DEVICE void store_scales() const {
    if (kBlocks < 4 && lane_ % 4 != 0) return;
    const ScaleMatrix& m = q_.scales;
    const uint32_t first = place_.column / kBlock + (kBlocks < 4 ? 0 : lane_ % 4 * kOwn);
    const uint32_t row_step = place_.padding_row_step == 0 ? m.rows : place_.padding_row_step;
    const bool is_last = place_.column + kQuantizedColumns >= q_.columns;
    const uint32_t column_step = is_last ? kBlocks : m.columns;
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t r = row(half); r < m.rows; r += row_step) {
        BLOCKSCALE_NO_UNROLL
        for (uint32_t c = first; c < m.columns; c += column_step) {
          uint32_t stored[kOwn];
          BLOCKSCALE_UNROLL
          for (uint32_t i = 0; i < kOwn; ++i) {
            const bool exists = r < e_.rows && (c + i) * kBlock < q_.columns;
            stored[i] = exists ? scale_[half][i].stored : 0;
          }
          encoding::store_scales(m, place_.batch, r, c, stored);
        }
      }
    }
  }

  template <bool kExact>
  BLOCKSCALE_DEVICE void encode(const float (&y)[kQuantizedColumns / 2]) const {
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (kElement == Format::e2m1) {
        store(encode_nibbles<kExact>(y, half), half, lane_ % 4 * 32);
      } else {
        BLOCKSCALE_UNROLL
        for (int side = 0; side < 2; ++side) {
          const auto codes = encode_bytes<kExact>(y, half, side);
          store(codes, half, static_cast<uint32_t>(64 * side) + lane_ % 4 * 16);
        }
      }
    }
  }

  /// Elements of four groups of a row.
  BLOCKSCALE_DEVICE static encoding::Chunk<Format::f32, 8> groups_of(
      const float (&y)[kQuantizedColumns / 2], int half, const int (&group)[4]) {
    encoding::Chunk<Format::f32, 8> chunk;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 8; ++i) {
      chunk.word[i] = bit_cast<uint32_t>(y[4 * group[i / 2] + 2 * half + i % 2]);
    }
    return chunk;
  }

  /// A field of block `b`'s scale, from the lane that made it.
  template <class T>
  BLOCKSCALE_DEVICE T of_block(const T (&own)[kOwn], int b) const {
    if constexpr (kBlocks < 4) return own[0];
    return ptx::shfl_sync_idx(ptx::kFullMask, own[b % kOwn], static_cast<uint32_t>(b / kOwn), 4);
  }

  /// 16 codes of a row's 64 columns from 64 `side` on: those of column 16 (lane % 4) and up.
  template <bool kExact>
  BLOCKSCALE_DEVICE encoding::Codes<kElement, 16> encode_bytes(
      const float (&y)[kQuantizedColumns / 2], int half, int side) const {
    // A thread's two neighbours in each of four groups of 8 columns go to four lanes.
    uint32_t even[2], odd[2];  // groups
    BLOCKSCALE_UNROLL
    for (int part = 0; part < 2; ++part) {
      const int g = 8 * side + 4 * part;
      encoding::BlockScale scale = scale_[half][0];
      if constexpr (kBlocks >= 4) {
        const int b = 2 * side + part;
        scale.factor = of_block({scale.factor}, b);
        if constexpr (kExact) scale.keep = of_block({scale.keep}, b);
      }
      if constexpr (!kExact) scale.keep = ~0u;
      const auto codes = encoding::encode_chunk<kElement, kRule, kExact>(
          groups_of(y, half, {g, g + 2, g + 1, g + 3}), scale);
      even[part] = codes.word[0];
      odd[part] = codes.word[1];
    }
    transpose_in_quad(even, lane_);
    transpose_in_quad(odd, lane_);
    return {{even[0], even[1], odd[0], odd[1]}};
  }

  /// 32 codes of a row: those of column 32 (lane % 4) and up.
  template <bool kExact>
  BLOCKSCALE_DEVICE encoding::Codes<kElement, 32> encode_nibbles(
      const float (&y)[kQuantizedColumns / 2], int half) const {
    float own_factor[kOwn], factor[kBlocks];
    uint32_t own_keep[kOwn], keep[kBlocks];
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      own_factor[i] = scale_[half][i].factor;
      own_keep[i] = scale_[half][i].keep;
    }
    BLOCKSCALE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      factor[b] = of_block(own_factor, b);
      keep[b] = kExact ? of_block(own_keep, b) : ~0u;
    }
    encoding::Codes<kElement, 32> codes;
    BLOCKSCALE_UNROLL
    for (int g = 0; g < 4; ++g) {
      const auto block = [g](int pair) { return (g + 4 * pair) / 2; };
      uint32_t word =
          encoding::encode_nvfp4<kExact>(groups_of(y, half, {g, g + 4, g + 8, g + 12}), [&](int i) {
            return factor[block(i / 2)];
          }).word[0];
      if constexpr (kExact) {
        uint32_t mask = 0;
        BLOCKSCALE_UNROLL
        for (int pair = 0; pair < 4; ++pair) mask |= keep[block(pair)] & 0xFFu << 8 * pair;
        word &= mask;
      }
      codes.word[g] = transpose_in_quad(word, lane_);
    }
    return codes;
  }

  template <int kCount>
  BLOCKSCALE_DEVICE void store(const encoding::Codes<kElement, kCount>& codes, int half,
                               uint32_t column) const {
    const int32_t left = static_cast<int32_t>(q_.columns - place_.column - column);
    if (!has_row(half) || left <= 0) return;
    uint8_t* const to = q_.values + place_.batch * q_.value_batch_stride +
                        row(half) * q_.value_row_stride +
                        int64_t{place_.column + column} * format_traits(kElement).bits / 8;
    if (q_.vectors && left >= kCount) {
      encoding::store_codes(codes, to);
    } else {
      encoding::store_code_bytes(codes, left, to);
    }
  }

  const LinearEpilogue& e_;
  const QuantizingEpilogue& q_;
  const QuantizedPlace& place_;
  uint32_t lane_;
  float tensor_scale_ = 1;
  encoding::BlockScale scale_[2][kOwn];
};

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
  /// two tiles make 128 columns: those of `part` 0 are held until those of part 1 come.
  BLOCKSCALE_DEVICE void operator()(float (&v)[kSums], const QuantizedPlace& place,
                                    uint32_t part) const {
    const bool has_rows = place.row < e_.rows;
    if (has_rows) {
      epilogue::combine(v, e_, epilogue::alpha_of(e_), place.batch, place.row + place.lane / 4,
                        place.d_columns);
      activate(v, part, held_ + place.lane * 16);
    }
    if (q_.activation == Activation::swiglu && part == 0) return;
    if (q_.rule == ScaleRule::fp8) {
      quantize<ScaleRule::fp8>(v, place, has_rows);
    } else if (q_.rule == ScaleRule::mx) {
      quantize<ScaleRule::mx>(v, place, has_rows);
    } else {
      quantize<ScaleRule::nvfp4>(v, place, has_rows);
    }
  }

 private:
  template <ScaleRule kRule>
  BLOCKSCALE_DEVICE void quantize(const float (&y)[kSums], const QuantizedPlace& place,
                                  bool has_rows) const {
    epilogue::BlockQuantizer<kRule> quantizer(e_, q_, place);
    if (has_rows) {
      quantizer.quantize(y);
    } else {
      quantizer.clear_scales();
    }
  }

  BLOCKSCALE_DEVICE void activate(float (&v)[kSums], uint32_t part,
                                  ptx::SharedAddress own_held) const {
    using M = device::KernelMath;
    if (q_.activation == Activation::gelu) {
      BLOCKSCALE_UNROLL
      for (float& x : v) x = math::gelu<M>(x, q_.gelu);
    } else if (q_.activation == Activation::swiglu) {
      using Four = device::Vector<float, 4>;
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums / 2; ++i) {
        v[kSums / 2 + i] = math::swiglu<M>(v[i], v[kSums / 2 + i]);
      }
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums / 2; i += 4) {
        const ptx::SharedAddress held = own_held + static_cast<uint32_t>(i / 4 * 32 * 16);
        float* const own = v + kSums / 2 + i;
        if (part == 0) {
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
