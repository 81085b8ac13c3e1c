// The plain kernels' steps 1 and 2: a tile's place, copies of codes to shared memory as they lie,
// and their elements.
#pragma once

#include "device/decode/codes.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/convert.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/scheduler/block_tiles.h"
#include "device/scheduler/k_groups.h"
#include "device/vector.h"
#include "ops/gemm/kernels/plain_params.h"

namespace blockscale::plain {

using ptx::SharedAddress;
using Words4 = device::Vector<uint32_t, 4>;

/// Some rows of A or of B.
struct Rows {
  uint32_t first;
  uint32_t count;  // that exist, at least one
};

/// Whether tiles have a part of K.
template <class Order>
inline constexpr bool kDividesK = false;
template <>
inline constexpr bool kDividesK<KGroupedOrder> = true;

/// A block's tile of D: rows of A times rows of B.
struct Place {
  uint32_t matrices[2];  // of A and B
  RowSpan span;
  Rows a, b;
  KRange k;

  /// Those of operand 0 or 1. (An array with an index would lie in local memory.)
  BLOCKSCALE_DEVICE uint32_t matrix_of(uint32_t operand) const {
    return operand == 0 ? matrices[0] : matrices[1];
  }
  BLOCKSCALE_DEVICE Rows rows(uint32_t operand) const { return operand == 0 ? a : b; }
};

template <PlainGemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE Place place_of(const PlainGemmParamsOf<Order>& p, const Tile& tile) {
  constexpr uint32_t kRows = kConfig.rows, kColumns = kConfig.columns;
  const uint32_t rows = tile.end_row - tile.first_row;
  const uint32_t column = tile.n * kColumns, columns = p.operands[1].rows - column;
  const uint32_t matrix = p.order.matrix_of(tile);
  Place place = {{matrix, tile.group},
                 {tile.end_row, Order::kGroupsAreMatrices, matrix, tile.group},
                 {tile.first_row, rows < kRows ? rows : kRows},
                 {column, columns < kColumns ? columns : kColumns},
                 {0, p.k}};
  if constexpr (kDividesK<Order>) {
    place.matrices[0] = place.matrices[1] = 0;
    place.k = p.order.k_of(tile.group);
  }
  return place;
}

struct SourceRow {
  const uint8_t* at;
  bool exists;
};

/// Where A's and B's rows lie of which a tile has some.
struct RowsInTurn {
  const uint8_t* first;
  int64_t stride;

  BLOCKSCALE_DEVICE RowsInTurn(const PlainOperand& x, uint32_t matrix, uint32_t row)
      : first(x.values + matrix * x.batch_stride + row * x.row_stride), stride(x.row_stride) {}
  /// Of the operand's memory.
  BLOCKSCALE_DEVICE const uint8_t* any() const { return first; }
  BLOCKSCALE_DEVICE SourceRow at(uint32_t row) const { return {first + row * stride, true}; }
};

/// The row of A that row `row` of a product is; of A's rows none: -1, which stands for zeros.
template <class Order>
BLOCKSCALE_DEVICE int64_t row_of_a(const PlainGemmParamsOf<Order>& p, uint32_t row) {
  if (!Order::kGathersRows || p.a_index == nullptr) return row;
  const int32_t from = ptx::ld_global(p.a_index + row);
  return static_cast<uint32_t>(from) < p.operands[0].rows ? from : -1;
}
template <class Order>
struct GatheredRows {
  const PlainGemmParamsOf<Order>& p;
  const uint8_t* matrix;
  uint32_t first;

  BLOCKSCALE_DEVICE const uint8_t* any() const { return matrix; }
  BLOCKSCALE_DEVICE SourceRow at(uint32_t row) const {
    const int64_t from = row_of_a(p, first + row);
    return {matrix + from * p.operands[0].row_stride, from >= 0};
  }
};

template <class Order>
BLOCKSCALE_DEVICE auto rows_of_a(const PlainGemmParamsOf<Order>& p, const Place& place) {
  const PlainOperand& x = p.operands[0];
  if constexpr (Order::kGathersRows) {
    return GatheredRows<Order>{p, x.values + place.matrix_of(0) * x.batch_stride, place.a.first};
  } else {
    return RowsInTurn(x, place.matrix_of(0), place.a.first);
  }
}

/// The number of a thread in its group, and of its group.
template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t thread_of_group() {
  return kConfig.warps_k == 1 ? ptx::tid_x() : ptx::laneid();
}
template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t group_of_block() {
  static_assert(kConfig.warps_k == 1 || group_threads_of(kConfig) == 32);
  return kConfig.warps_k == 1 ? 0 : device::warp_index();
}

template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE void sync_group() {
  if constexpr (kConfig.warps_k == 1) {
    ptx::barrier_sync_all();
  } else {
    ptx::bar_warp_sync(ptx::kFullMask);
  }
}

// ---------------------------------------------------------------- 1: codes

/// Up to 16 bytes that begin anywhere, the others 0.
BLOCKSCALE_DEVICE Words4 load_bytes(const uint8_t* from, uint32_t count) {
  Words4 words{};
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 16; ++i) {
    if (i < count) words.at[i / 4] |= uint32_t{ptx::ld_global(from + i)} << (8 * (i % 4));
  }
  return words;
}

/// Begins to copy an operand's codes of tile `tile` of K, of `count` rows. Those beyond K, and of
/// rows that there are not, become 0.
template <PlainGemmConfig kConfig, class RowsOf>
BLOCKSCALE_DEVICE void copy_codes(const PlainOperand& x, const RowsOf& rows, uint32_t count,
                                  uint32_t tile, SharedAddress to) {
  const uint32_t pieces = x.pieces.divisor;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = thread_of_group<kConfig>(); i < count * pieces;
       i += group_threads_of(kConfig)) {
    const uint32_t row = x.pieces.quotient(i);
    const uint32_t at = (tile * pieces + i - row * pieces) * 16;
    const SourceRow from = rows.at(row);
    const uint32_t left = at < x.row_bytes && from.exists ? x.row_bytes - at : 0;
    const uint8_t* const source = left == 0 ? rows.any() : from.at + at;
    const SharedAddress place = to + i * 16;
    if (x.vectors) {
      ptx::cp_async_cg(place, source, left < 16 ? left : 16);
    } else {
      ptx::st_shared(place, load_bytes(source, left));
    }
  }
}

/// Waits until all but this thread's `pending` newest groups of copies are complete.
template <int kMost>
BLOCKSCALE_DEVICE void wait_copies(uint32_t pending) {
  if constexpr (kMost > 0) {
    if (pending < static_cast<uint32_t>(kMost)) return wait_copies<kMost - 1>(pending);
  }
  ptx::cp_async_wait_group<kMost>();
}

// ---------------------------------------------------------------- 2: elements

/// Where 8 elements of a row lie in a part of an operand: chunks of 16 bytes are exchanged by the
/// row's number, so that ldmatrix meets no bank twice.
template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t chunk_offset(uint32_t row, uint32_t chunk) {
  return row * static_cast<uint32_t>(kConfig.depth * 2) + (chunk ^ (row & 7)) * 16;
}

/// Two numbers to bf16, and what is left of them. Numbers that round to infinity are cut off;
/// infinities and NaN leave nothing.
BLOCKSCALE_DEVICE uint32_t take_bf16(float (&x)[2]) {
  uint32_t pair = ptx::cvt_rn_bf16x2_f32(x[1], x[0]);
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    constexpr uint32_t kInfinity = 0x7F800000u;
    const uint32_t bits = bit_cast<uint32_t>(x[i]);
    uint32_t part = i == 0 ? pair << 16 : pair & 0xFFFF0000u;
    const bool is_finite = (bits & kInfinity) != kInfinity;
    if (is_finite && (part & kInfinity) == kInfinity) {
      part = bits & 0xFFFF0000u;
      pair = i == 0 ? (pair & 0xFFFF0000u) | part >> 16 : (pair & 0xFFFFu) | part;
    }
    x[i] = is_finite ? ptx::sub_rn(x[i], bit_cast<float>(part)) : 0.0f;
  }
  return pair;
}

/// Elements that a thread decodes at a time.
BLOCKSCALE_HD constexpr int plain_group(Format element) {
  return format_traits(element).bits <= 8 ? 16 : 8;
}

/// The elements of a group as their parts in kForm, two in a word.
template <Format kForm, Format kElement>
BLOCKSCALE_DEVICE void decode_group(
    SharedAddress codes,
    uint32_t (&parts)[plain_parts(kElement, kForm)][plain_group(kElement) / 2]) {
  constexpr int kBits = format_traits(kElement).bits, kGroup = plain_group(kElement);
  constexpr int kWords = kGroup * kBits / 32;
  encoding::Codes<kElement, kGroup> group;
  if constexpr (kWords % 4 == 0) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kWords / 4; ++i) {
      const Words4 four = ptx::ld_shared<Words4>(codes + static_cast<uint32_t>(16 * i));
      BLOCKSCALE_UNROLL
      for (int j = 0; j < 4; ++j) group.word[4 * i + j] = four.at[j];
    }
  } else if constexpr (kWords == 2) {
    using Words2 = device::Vector<uint32_t, 2>;
    const Words2 two = ptx::ld_shared<Words2>(codes);
    group.word[0] = two.at[0];
    group.word[1] = two.at[1];
  } else {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      group.word[i] = ptx::ld_shared<uint32_t>(codes + static_cast<uint32_t>(4 * i));
    }
  }
  if constexpr (kBits <= 8) {
    decoding::widen_codes<kForm>(parts[0], group);
  } else if constexpr (kElement == kForm) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kGroup / 2; ++i) parts[0][i] = group.word[i];
  } else {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kGroup / 2; ++i) {
      float rest[2];
      if constexpr (kElement == Format::f32) {
        rest[0] = bit_cast<float>(group.word[2 * i]);
        rest[1] = bit_cast<float>(group.word[2 * i + 1]);
      } else {
        rest[0] = ptx::cvt_f32_f16(static_cast<uint16_t>(group.word[i]));
        rest[1] = ptx::cvt_f32_f16(static_cast<uint16_t>(group.word[i] >> 16));
      }
      BLOCKSCALE_UNROLL
      for (uint32_t part = 0; part < plain_parts(kElement, kForm); ++part) {
        parts[part][i] = take_bf16(rest);
      }
    }
  }
}

/// Two elements from `k` on as far as they lie in a range, else 0.
BLOCKSCALE_DEVICE uint32_t in_range(uint32_t pair, uint32_t k, const KRange& range) {
  const uint32_t low = k >= range.begin && k < range.end ? 0xFFFFu : 0;
  const uint32_t high = k + 1 >= range.begin && k + 1 < range.end ? 0xFFFF0000u : 0;
  return pair & (low | high);
}

/// Decodes `rows` rows of a tile's codes to the parts of an operand. Where groups divide K, what
/// lies outside of `k`, counted from the tile's first, becomes 0.
template <PlainGemmConfig kConfig, Format kElement, bool kCutsK>
BLOCKSCALE_DEVICE void decode_rows(uint32_t rows, SharedAddress codes, SharedAddress to,
                                   uint32_t part_bytes, const KRange& k) {
  constexpr uint32_t kGroup = static_cast<uint32_t>(plain_group(kElement));
  constexpr uint32_t kGroups = static_cast<uint32_t>(kConfig.depth) / kGroup;  // of a row
  constexpr uint32_t kBytes = kGroup * static_cast<uint32_t>(format_traits(kElement).bits) / 8;
  constexpr uint32_t kParts = plain_parts(kElement, kConfig.form);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = thread_of_group<kConfig>(); i < rows * kGroups;
       i += group_threads_of(kConfig)) {
    uint32_t parts[kParts][kGroup / 2];
    decode_group<kConfig.form, kElement>(codes + i * kBytes, parts);
    const uint32_t row = i / kGroups, first = i % kGroups * (kGroup / 8);
    BLOCKSCALE_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      BLOCKSCALE_UNROLL
      for (uint32_t chunk = 0; chunk < kGroup / 8; ++chunk) {
        uint32_t* const words = parts[part] + 4 * chunk;
        if constexpr (kCutsK) {
          BLOCKSCALE_UNROLL
          for (uint32_t w = 0; w < 4; ++w) {
            words[w] = in_range(words[w], (first + chunk) * 8 + 2 * w, k);
          }
        }
        ptx::st_shared(to + (part * part_bytes + chunk_offset<kConfig>(row, first + chunk)),
                       Words4{{words[0], words[1], words[2], words[3]}});
      }
    }
  }
}

/// What visit_format calls with an operand's element.
template <PlainGemmConfig kConfig, bool kCutsK>
struct DecodeRows {
  uint32_t rows;
  SharedAddress codes, to;
  uint32_t part_bytes;
  KRange k;

  template <Format kElement>
  BLOCKSCALE_DEVICE void operator()(FormatTag<kElement>) const {
    constexpr bool kIsScale = kElement == Format::ue8m0 || kElement == Format::ue4m3;
    constexpr bool kFits =
        kConfig.form == Format::bf16 || (kElement != Format::f32 && kElement != Format::bf16);
    if constexpr (!kIsScale && kFits) {
      decode_rows<kConfig, kElement, kCutsK>(rows, codes, to, part_bytes, k);
    }
  }
};

template <PlainGemmConfig kConfig, bool kCutsK>
BLOCKSCALE_DEVICE void decode_tile(Format element, const DecodeRows<kConfig, kCutsK>& decode) {
  switch (element) {
    case Format::e2m1: return decode(FormatTag<Format::e2m1>{});
    case Format::e2m3: return decode(FormatTag<Format::e2m3>{});
    case Format::e3m2: return decode(FormatTag<Format::e3m2>{});
    case Format::e4m3: return decode(FormatTag<Format::e4m3>{});
    case Format::e5m2: return decode(FormatTag<Format::e5m2>{});
    case Format::f16: return decode(FormatTag<Format::f16>{});
    case Format::bf16: return decode(FormatTag<Format::bf16>{});
    default: return decode(FormatTag<Format::f32>{});
  }
}

}  // namespace blockscale::plain
