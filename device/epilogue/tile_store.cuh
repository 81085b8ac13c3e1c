// From a warp's accumulators to D: 16 rows of a tile, combined with C and a bias, converted, and
// stored by tensor copies that run while the next tile is computed.
//
// A tensor copy writes rows in steps of 16 bytes, so it serves where D's rows begin and end at
// multiples of them; elsewhere, and where a group's rows end within a box, threads store their
// elements one by one. Rows that a row map moves threads store, or add to what is there, in chunks
// of 16 bytes.
#pragma once

#include "core/tensor_map.h"
#include "device/epilogue/linear.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/convert.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/scheduler/rows.h"
#include "device/vector.h"

namespace blockscale {

namespace epilogue {

/// Elements of a row from one on, as far as the matrix reaches: none in rows from the end on.
struct RowPart {
  uint8_t* at;
  uint32_t left;
};

BLOCKSCALE_DEVICE RowPart row_part(const EpilogueMatrix& m, const LinearEpilogue& e, uint32_t batch,
                                   uint32_t row, uint32_t column, uint32_t end_row) {
  if (row >= end_row || column >= e.columns) return {m.data, 0};
  const int64_t index = batch * m.batch_stride + row * m.row_stride + column;
  return {m.data + index * (m.dtype == Format::f32 ? 4 : 2), e.columns - column};
}

BLOCKSCALE_DEVICE RowPart row_part(const EpilogueMatrix& m, const LinearEpilogue& e, uint32_t batch,
                                   uint32_t row, uint32_t column) {
  return row_part(m, e, batch, row, column, e.rows);
}

/// Element `i` of a part, 0 behind its end.
template <Format kDtype>
BLOCKSCALE_DEVICE float load_element(const RowPart& part, uint32_t i) {
  if constexpr (kDtype == Format::f32) {
    return i < part.left ? ptx::ld_global(reinterpret_cast<const float*>(part.at) + i) : 0.0f;
  } else {
    uint16_t bits = 0;
    if (i < part.left) bits = ptx::ld_global(reinterpret_cast<const uint16_t*>(part.at) + i);
    return kDtype == Format::f16 ? ptx::cvt_f32_f16(bits) : ptx::cvt_f32_bf16(bits);
  }
}
BLOCKSCALE_DEVICE float load_element(const RowPart& part, Format dtype, uint32_t i) {
  if (dtype == Format::f32) return load_element<Format::f32>(part, i);
  if (dtype == Format::f16) return load_element<Format::f16>(part, i);
  return load_element<Format::bf16>(part, i);
}

template <class T>
BLOCKSCALE_DEVICE void store_element(const RowPart& part, uint32_t i, T value) {
  if (i < part.left) ptx::st_global(reinterpret_cast<T*>(part.at) + i, value);
}

/// In any order among threads.
BLOCKSCALE_DEVICE void add_element(const RowPart& part, uint32_t i, float value) {
  if (i < part.left) ptx::red_global_add(reinterpret_cast<float*>(part.at) + i, value);
}

/// Where a lane's elements of a tile lie in D: its first one of each half of the tile's columns,
/// and what is between the columns of a half.
struct LaneColumns {
  uint32_t first[2];
  uint32_t step;
};

/// Of kCount groups of 8 columns of a row a lane's two elements each, the first group's at `part`.
template <Format kDtype, int kCount>
BLOCKSCALE_DEVICE void load_groups(const RowPart& part, uint32_t step, float (&to)[kCount]) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    to[i] = load_element<kDtype>(part, static_cast<uint32_t>(i / 2 * 8 + i % 2) * step);
  }
}

/// alpha of a group.
BLOCKSCALE_DEVICE float alpha_of(const LinearEpilogue& e, uint32_t group = 0) {
  if (e.alpha_factor == nullptr) return e.alpha;
  return ptx::mul_rn(e.alpha, ptx::ld_global(e.alpha_factor + group * e.alpha_factor_stride));
}

/// What combine() does with C, the bias and the gate. No branch stands between loads, which would
/// wait for each.
template <int kSums>
class AddMatrices {
 public:
  BLOCKSCALE_DEVICE AddMatrices(float (&v)[kSums], const LinearEpilogue& e,
                                const LaneColumns& columns)
      : v_(v), e_(e), columns_(columns) {}

  template <Format kDtype>
  BLOCKSCALE_DEVICE void add_c(const RowSpan& span, uint32_t row) const {
    BLOCKSCALE_UNROLL
    for (int part = 0; part < 4; ++part) {
      const int half = part / 2, below = part % 2;
      float c[kCount];
      load_groups<kDtype>(row_part(e_.c, e_, span.matrix, row + 8 * static_cast<uint32_t>(below),
                                   columns_.first[half], span.end),
                          columns_.step, c);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        float& x = sum_of(half, below, i);
        x = ptx::fma_rn(e_.beta, c[i], x);
      }
    }
  }

  template <Format kDtype>
  BLOCKSCALE_DEVICE void add_bias(uint32_t group) const {
    for_each_column<kDtype>(e_.bias, group, [](float& x, float bias) { x = ptx::add_rn(x, bias); });
  }

  template <Format kDtype>
  BLOCKSCALE_DEVICE void multiply_by_gate() const {
    for_each_column<kDtype>(e_.gate, 0, [](float& x, float gate) { x = ptx::mul_rn(x, gate); });
  }

 private:
  static constexpr int kCount = kSums / 4;  // of each of two rows, in each half of the columns

  /// f(a sum, its column's number in a row of `of`).
  template <Format kDtype, class F>
  BLOCKSCALE_DEVICE void for_each_column(const EpilogueMatrix& of, uint32_t batch,
                                         const F& f) const {
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float numbers[kCount];
      load_groups<kDtype>(row_part(of, e_, batch, 0, columns_.first[half], 1), columns_.step,
                          numbers);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 2 * kCount; ++i) {
        f(sum_of(half, i / kCount, i % kCount), numbers[i % kCount]);
      }
    }
  }

  BLOCKSCALE_DEVICE float& sum_of(int half, int below, int i) const {
    return v_[half * kSums / 2 + i / 2 * 4 + 2 * below + i % 2];
  }

  float (&v_)[kSums];
  const LinearEpilogue& e_;
  const LaneColumns& columns_;
};

/// The scale of a row, the last one's from `count` rows on. (No branch: one between the loads of
/// many columns would wait for each.)
BLOCKSCALE_DEVICE float scale_of(const EpilogueScales& scales, uint32_t batch, uint32_t row,
                                 uint32_t count) {
  const int64_t index = row < count ? row : count - 1;
  return ptx::ld_global(scales.data + batch * scales.batch_stride + index * scales.stride);
}
/// The same of rows that may be gathered.
BLOCKSCALE_DEVICE float row_scale_of(const EpilogueScales& scales, uint32_t batch, uint32_t row,
                                     uint32_t count) {
  if (scales.index == nullptr) return scale_of(scales, batch, row, count);
  const auto from =
      static_cast<uint32_t>(ptx::ld_global(scales.index + (row < count ? row : count - 1)));
  return from < scales.rows ? scale_of(scales, batch, from, scales.rows) : 0;
}

/// Sums times the scales that hold for all of K, in place: of A's rows and then of B's.
template <int kSums>
BLOCKSCALE_DEVICE void apply_scales(float (&v)[kSums], const LinearEpilogue& e, const RowSpan& span,
                                    uint32_t row, const LaneColumns& columns) {
  constexpr int kCount = kSums / 4;  // columns of each half
  if (e.row_scales.data != nullptr) {
    const float scales[2] = {row_scale_of(e.row_scales, span.matrix, row, span.end),
                             row_scale_of(e.row_scales, span.matrix, row + 8, span.end)};
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kSums; ++i) v[i] = ptx::mul_rn(v[i], scales[i / 2 % 2]);
  }
  if (e.column_scales.data == nullptr) return;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kSums / 2; ++i) {  // of the lane's columns, each of two rows
    const int half = i / kCount, of_half = i % kCount;
    const uint32_t at = static_cast<uint32_t>(of_half / 2 * 8 + of_half % 2) * columns.step;
    const float scale = scale_of(e.column_scales, span.group, columns.first[half] + at, e.columns);
    BLOCKSCALE_UNROLL
    for (int below = 0; below < 2; ++below) {
      float& x = v[i / 2 * 4 + 2 * below + i % 2];
      x = ptx::mul_rn(x, scale);
    }
  }
}

/// The same scales, which there are, of a tile of kColumns columns from `column` on, loaded while
/// its products run: a warp waits for them no more when it has its sums. All lanes call all of it.
template <int kColumns>
class EndScales {
 public:
  static_assert(kColumns % 32 == 0);

  /// `row`: as combine() has it.
  BLOCKSCALE_DEVICE void load(const LinearEpilogue& e, const RowSpan& span, uint32_t row,
                              uint32_t column) {
    rows_[0] = row_scale_of(e.row_scales, span.matrix, row, span.end);
    rows_[1] = row_scale_of(e.row_scales, span.matrix, row + 8, span.end);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns / 32; ++i) {
      columns_[i] =
          scale_of(e.column_scales, span.group, column + 32 * i + ptx::laneid(), e.columns);
    }
  }

  BLOCKSCALE_DEVICE void apply(float (&v)[kColumns / 2]) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kColumns / 4; ++i) {  // of the lane's columns, each of two rows
      const uint32_t column = i / 2 * 8 + ptx::laneid() % 4 * 2 + i % 2;
      const float scale = ptx::shfl_sync_idx(ptx::kFullMask, columns_[i / 8], column % 32);
      BLOCKSCALE_UNROLL
      for (uint32_t below = 0; below < 2; ++below) {
        float& x = v[i / 2 * 4 + 2 * below + i % 2];
        x = ptx::mul_rn(ptx::mul_rn(x, rows_[below]), scale);
      }
    }
  }

 private:
  float rows_[2];
  float columns_[kColumns / 32];  // of column 32 i + lane
};

/// gate * (alpha * sums + bias) + beta * C, the gate with kGates only, in place, of a wgmma
/// accumulator whose first row is `row` in this lane. C has no rows behind the span.
template <bool kGates, int kSums>
BLOCKSCALE_DEVICE void combine(float (&v)[kSums], const LinearEpilogue& e, const RowSpan& span,
                               uint32_t row, const LaneColumns& columns) {
  if (const float alpha = alpha_of(e, span.group); alpha != 1) {
    BLOCKSCALE_UNROLL
    for (float& sum : v) sum = ptx::mul_rn(alpha, sum);
  }
  const AddMatrices<kSums> add(v, e, columns);
  if (e.bias.data != nullptr) {
    if (e.bias.dtype == Format::f32) {
      add.template add_bias<Format::f32>(span.group);
    } else if (e.bias.dtype == Format::f16) {
      add.template add_bias<Format::f16>(span.group);
    } else {
      add.template add_bias<Format::bf16>(span.group);
    }
  }
  if (kGates && e.gate.data != nullptr) {
    if (e.gate.dtype == Format::f32) {
      add.template multiply_by_gate<Format::f32>();
    } else if (e.gate.dtype == Format::f16) {
      add.template multiply_by_gate<Format::f16>();
    } else {
      add.template multiply_by_gate<Format::bf16>();
    }
  }
  if (e.beta != 0) {
    if (e.c.dtype == Format::f32) {
      add.template add_c<Format::f32>(span, row);
    } else if (e.c.dtype == Format::f16) {
      add.template add_c<Format::f16>(span, row);
    } else {
      add.template add_c<Format::bf16>(span, row);
    }
  }
}

/// Two f32 as a pair of D's dtype, the first in the low half.
template <class Pair, bool kF16>
BLOCKSCALE_DEVICE Pair convert(float low, float high) {
  if constexpr (sizeof(Pair) == 8) {
    return {{low, high}};
  } else {
    return {kF16 ? ptx::cvt_rn_f16x2_f32(high, low) : ptx::cvt_rn_bf16x2_f32(high, low)};
  }
}

}  // namespace epilogue

/// Stores tiles of kColumns through kBuffers of 16 rows of kBytes (64 or 128) in shared memory,
/// rows where the row map says. kHasScales: sums have had the epilogue's scales.
template <int kColumns, int kBytes, int kBuffers, class RowMap = SameRows, bool kHasScales = false>
class TileStore {
 public:
  static constexpr int kPairs = kColumns / 8;  // of a thread's row, 8 columns apart

  /// `buffers` are the warp's own, at a multiple of 1024 bytes.
  BLOCKSCALE_DEVICE TileStore(const LinearEpilogue& e, const TensorMap* d,
                              ptx::SharedAddress buffers, const RowMap& map = {})
      : e_(e), d_(d), buffers_(buffers), lane_(ptx::laneid()), map_(map) {}

  /// The sums of 16 rows from `row` on, as a wgmma accumulator has them, of which those of the span
  /// are stored. All lanes call it.
  BLOCKSCALE_DEVICE void operator()(float (&sums)[kColumns / 2], const RowSpan& span, uint32_t row,
                                    uint32_t column,
                                    SourceLocation at = SourceLocation::current()) const {
    if (row >= span.end) return;
    if (!e_.keeps_sums) {
      const uint32_t first = column + lane_ % 4 * 2, own_row = row + lane_ / 4;
      const epilogue::LaneColumns columns = {{first, first + kColumns / 2}, 1};
      if constexpr (!kHasScales) epilogue::apply_scales(sums, e_, span, own_row, columns);
      epilogue::combine<RowMap::kGates>(sums, e_, span, own_row, columns);
    }
    if (map_.moves()) weigh(sums, span, row);
    if (e_.d.dtype == Format::bf16) {
      store<Pair16, false>(sums, span, row, column, at);
    } else if (e_.d.dtype == Format::f16) {
      store<Pair16, true>(sums, span, row, column, at);
    } else {
      store<Pair32, false>(sums, span, row, column, at);
    }
  }

  /// Before the warp exits: copies have read its buffers.
  BLOCKSCALE_DEVICE static void finish() { ptx::cp_async_bulk_wait_group_read<0>(); }

 private:
  using Pair16 = device::Vector<uint32_t, 1>;
  using Pair32 = device::Vector<float, 2>;

  template <class Pair, bool kF16>
  BLOCKSCALE_DEVICE void store(const float (&v)[kColumns / 2], const RowSpan& span, uint32_t row,
                               uint32_t column, SourceLocation at) const {
    // A span's last rows one by one: a box that crosses its end writes the next group's.
    if (e_.d.chunks && map_.moves()) {
      move_chunks<Pair, kF16>(v, span, row, column);
    } else if (e_.d.chunks && span.holds_box(row)) {
      store_by_tma<Pair, kF16>(v, span.matrix, row, column, at);
    } else {
      store_elements<Pair, kF16>(v, span, row, column);
    }
  }

  /// Fills all buffers before it begins their copies: to make what threads wrote visible to copies
  /// takes as long for one buffer as for all.
  template <class Pair, bool kF16>
  BLOCKSCALE_DEVICE void store_by_tma(const float (&v)[kColumns / 2], uint32_t batch, uint32_t row,
                                      uint32_t column, SourceLocation where) const {
    constexpr int kBoxColumns = kBytes / (sizeof(Pair) / 2);
    constexpr int kBoxes = kColumns / kBoxColumns;
    BLOCKSCALE_UNROLL
    for (int first = 0; first < kBoxes; first += kBuffers) {
      const int count = kBoxes - first < kBuffers ? kBoxes - first : kBuffers;
      // The copies are lane 0's; the others wait for none.
      ptx::cp_async_bulk_wait_group_read<0>();
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < count; ++i) {
        fill<Pair, kF16>(buffer(i), v + (first + i) * kBoxColumns / 2);
      }
      ptx::fence_proxy_async_shared();
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < count; ++i) {
        const uint32_t at = column + static_cast<uint32_t>((first + i) * kBoxColumns);
        if (lane_ == 0 && at < e_.columns) {
          ptx::cp_async_bulk_tensor_global_shared<3>(
              d_,
              {{static_cast<int32_t>(at), static_cast<int32_t>(row), static_cast<int32_t>(batch)}},
              buffer(i), where);
        }
      }
      ptx::cp_async_bulk_commit_group();
    }
  }

  /// Rows times their weights, of those that go somewhere.
  BLOCKSCALE_DEVICE void weigh(float (&v)[kColumns / 2], const RowSpan& span, uint32_t row) const {
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t own_row = row + lane_ / 4 + 8 * static_cast<uint32_t>(half);
      const float weight = own_row < span.end ? map_.weight(own_row) : 1.0f;
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kPairs; ++j) {
        float &low = v[4 * j + 2 * half], &high = v[4 * j + 2 * half + 1];
        low = ptx::mul_rn(low, weight);
        high = ptx::mul_rn(high, weight);
      }
    }
  }

  /// Through the buffers: neighbouring lanes then have neighbouring chunks of a row.
  template <class Pair, bool kF16>
  BLOCKSCALE_DEVICE void move_chunks(const float (&v)[kColumns / 2], const RowSpan& span,
                                     uint32_t row, uint32_t column) const {
    using Chunk = device::Vector<uint32_t, 4>;
    constexpr int kBoxColumns = kBytes / (sizeof(Pair) / 2);
    constexpr int kBoxes = kColumns / kBoxColumns;
    constexpr uint32_t kOfRow = kBytes / 16, kOfLane = kOfRow / 2;  // chunks of a buffer
    constexpr Format kDtype = sizeof(Pair) == 8 ? Format::f32 : kF16 ? Format::f16 : Format::bf16;
    BLOCKSCALE_UNROLL
    for (int first = 0; first < kBoxes; first += kBuffers) {
      const int count = kBoxes - first < kBuffers ? kBoxes - first : kBuffers;
      ptx::bar_warp_sync(ptx::kFullMask);  // others have read what was there
      BLOCKSCALE_UNROLL
      for (int i = 0; i < count; ++i) {
        fill<Pair, kF16>(buffer(i), v + (first + i) * kBoxColumns / 2);
      }
      ptx::bar_warp_sync(ptx::kFullMask);
      BLOCKSCALE_UNROLL
      for (uint32_t j = 0; j < kOfLane; ++j) {
        const uint32_t line = j * (32 / kOfRow) + lane_ / kOfRow, chunk = lane_ % kOfRow;
        const uint32_t at = column + static_cast<uint32_t>(first * kBoxColumns) +
                            chunk * static_cast<uint32_t>(kBoxColumns) / kOfRow;
        const epilogue::RowPart part = destination(span, row + line, at);
        const ptx::SharedAddress from = buffers_ + swizzled(line * kBytes + chunk * 16);
        BLOCKSCALE_UNROLL
        for (int i = 0; i < count; ++i) {
          if (static_cast<uint32_t>(i * kBoxColumns) >= part.left) break;
          const auto value = ptx::ld_shared<Chunk>(from + static_cast<uint32_t>(i * 16 * kBytes));
          uint8_t* const to = part.at + i * kBytes;
          if (map_.adds()) {
            ptx::red_global_add_v4<kDtype>(to, value);
          } else {
            ptx::st_global(reinterpret_cast<Chunk*>(to), value);
          }
        }
      }
    }
  }

  BLOCKSCALE_DEVICE ptx::SharedAddress buffer(int i) const {
    return buffers_ + static_cast<uint32_t>(i * 16 * kBytes);
  }

  /// Stores 16 rows of kBytes, of which a thread has the values `v` on. Its places in a row are 32
  /// bytes apart, which the swizzle leaves alone.
  template <class Pair, bool kF16>
  BLOCKSCALE_DEVICE void fill(ptx::SharedAddress buffer, const float* v) const {
    if constexpr (sizeof(Pair) == 4) {
      // Four matrices of 8 x 8: the upper and the lower rows of 8 columns, then of the next 8.
      const uint32_t line = lane_ % 16, place = swizzled(line * kBytes + lane_ / 16 * 16);
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kBytes / 32; ++j) {
        ptx::MatrixFragment<4> four;
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 4; ++i) {
          four.value[i] =
              epilogue::convert<Pair, kF16>(v[8 * j + 2 * i], v[8 * j + 2 * i + 1]).at[0];
        }
        ptx::stmatrix(buffer + (place ^ static_cast<uint32_t>(32 * j)), four);
      }
    } else {
      const uint32_t place = swizzled(lane_ / 4 * kBytes + lane_ % 4 * 8);
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kBytes / 32; ++j) {
        BLOCKSCALE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int i = 4 * j + 2 * half;
          ptx::st_shared(buffer + ((place ^ static_cast<uint32_t>(32 * j)) +
                                   static_cast<uint32_t>(half * 8 * kBytes)),
                         epilogue::convert<Pair, kF16>(v[i], v[i + 1]));
        }
      }
    }
  }

  /// Where TMA wants a byte of a buffer: 16-byte chunks of a span are exchanged by the number of
  /// the 128-byte line.
  BLOCKSCALE_DEVICE static uint32_t swizzled(uint32_t offset) {
    return offset ^ (offset >> 7 & (kBytes / 16 - 1)) << 4;
  }

  /// Where the elements of a row go from a column on.
  BLOCKSCALE_DEVICE epilogue::RowPart destination(const RowSpan& span, uint32_t row,
                                                  uint32_t column) const {
    const int64_t to = row < span.end ? map_.destination(row) : -1;
    if (to < 0) return {e_.d.data, 0};
    return epilogue::row_part(e_.d, e_, span.matrix, static_cast<uint32_t>(to), column);
  }

  template <class Pair, bool kF16>
  BLOCKSCALE_DEVICE void store_elements(const float (&v)[kColumns / 2], const RowSpan& span,
                                        uint32_t row, uint32_t column) const {
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t own_row = row + lane_ / 4 + 8 * static_cast<uint32_t>(half);
      const epilogue::RowPart own = destination(span, own_row, column + lane_ % 4 * 2);
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kPairs; ++j) {
        const uint32_t at = static_cast<uint32_t>(8 * j);
        const float low = v[4 * j + 2 * half], high = v[4 * j + 2 * half + 1];
        if constexpr (sizeof(Pair) == 8) {
          if (map_.adds()) {
            epilogue::add_element(own, at, low);
            epilogue::add_element(own, at + 1, high);
            continue;
          }
          epilogue::store_element(own, at, low);
          epilogue::store_element(own, at + 1, high);
        } else {
          const uint32_t pair = epilogue::convert<Pair, kF16>(low, high).at[0];
          epilogue::store_element(own, at, static_cast<uint16_t>(pair));
          epilogue::store_element(own, at + 1, static_cast<uint16_t>(pair >> 16));
        }
      }
    }
  }

  const LinearEpilogue& e_;
  const TensorMap* d_;
  ptx::SharedAddress buffers_;
  uint32_t lane_;
  RowMap map_;
};

}  // namespace blockscale
