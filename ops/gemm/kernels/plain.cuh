// D = epilogue(A B^T) for every pair of operands, plainly. Start reading here: the fast kernels
// compute what this one does, for some pairs, on some chips.
//
// A block of threads computes a tile of D. It walks along K in tiles of `depth`, or its warps do,
// each by itself, where A has few rows: there is more of K on its way then. Of each tile of K a
// group, a block or a warp,
//   1. copies the codes of A's and B's rows to shared memory, as they lie (copy_codes);
//   2. decodes them to bf16 or f16, which hold every element of 8 bits and fewer exactly; an f32 is
//      the sum of three bf16, an f16 beside bf16 of two (decode_tile);
//   3. multiplies them by mma.sync, a segment of K at a time, in which each row of A and of B has
//      one scale: sum += products * A's scale * B's scale, in f32 (multiply_tile).
// Codes and scales of the tiles behind it are on their way meanwhile. At the end warps that divide
// K add up their sums, and alpha, tensor scales, C and bias are applied (store_pair). What is
// outside of K counts as zero; what is outside of D is not stored.
#pragma once

#include "device/decode/codes.cuh"
#include "device/encode/scale.cuh"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/convert.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/gemm/kernels/plain_params.h"

namespace blockscale {
namespace plain {

using ptx::SharedAddress;
using Words4 = device::Vector<uint32_t, 4>;

/// Some rows of A or of B.
struct Rows {
  uint32_t first;
  uint32_t count;  // that exist, at least one
};

/// A block's tile of D: rows of A times rows of B.
struct Place {
  uint32_t matrix;  // of A and D
  uint32_t group;   // of B
  Rows a, b;

  BLOCKSCALE_DEVICE uint32_t matrix_of(uint32_t operand) const {
    return operand == 0 ? matrix : group;
  }
  /// Those of operand 0 or 1. (An array with an index would lie in local memory.)
  BLOCKSCALE_DEVICE Rows rows(uint32_t operand) const { return operand == 0 ? a : b; }
};

template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE Place place_of(const PlainGemmParams& p) {
  constexpr uint32_t kRows = kConfig.rows, kColumns = kConfig.columns;
  const Tile tile = p.order.tile<kRows>(ptx::ctaid_x());
  const uint32_t rows = tile.end_row - tile.first_row;
  const uint32_t column = tile.n * kColumns, columns = p.operands[1].rows - column;
  return {tile.matrix<DenseOrder>(),
          tile.group,
          {tile.first_row, rows < kRows ? rows : kRows},
          {column, columns < kColumns ? columns : kColumns}};
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

/// Begins to copy an operand's codes of tile `tile` of K. Those beyond K become 0.
template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE void copy_codes(const PlainOperand& x, uint32_t matrix, Rows rows, uint32_t tile,
                                  SharedAddress to) {
  const uint8_t* const from = x.values + matrix * x.batch_stride + rows.first * x.row_stride;
  const uint32_t pieces = x.pieces.divisor;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = thread_of_group<kConfig>(); i < rows.count * pieces;
       i += group_threads_of(kConfig)) {
    const uint32_t row = x.pieces.quotient(i);
    const uint32_t at = (tile * pieces + i - row * pieces) * 16;
    const uint32_t left = at < x.row_bytes ? x.row_bytes - at : 0;
    const uint8_t* const source = left == 0 ? from : from + row * x.row_stride + at;
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

/// Decodes `rows` rows of a tile's codes to the parts of an operand.
template <PlainGemmConfig kConfig, Format kElement>
BLOCKSCALE_DEVICE void decode_rows(uint32_t rows, SharedAddress codes, SharedAddress to,
                                   uint32_t part_bytes) {
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
        const uint32_t* const words = parts[part] + 4 * chunk;
        ptx::st_shared(to + (part * part_bytes + chunk_offset<kConfig>(row, first + chunk)),
                       Words4{{words[0], words[1], words[2], words[3]}});
      }
    }
  }
}

/// What visit_format calls with an operand's element.
template <PlainGemmConfig kConfig>
struct DecodeRows {
  uint32_t rows;
  SharedAddress codes, to;
  uint32_t part_bytes;

  template <Format kElement>
  BLOCKSCALE_DEVICE void operator()(FormatTag<kElement>) const {
    constexpr bool kIsScale = kElement == Format::ue8m0 || kElement == Format::ue4m3;
    constexpr bool kFits =
        kConfig.form == Format::bf16 || (kElement != Format::f32 && kElement != Format::bf16);
    if constexpr (!kIsScale && kFits) decode_rows<kConfig, kElement>(rows, codes, to, part_bytes);
  }
};

template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE void decode_tile(Format element, const DecodeRows<kConfig>& decode) {
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

// ---------------------------------------------------------------- scales

/// Brings an operand's scales of a tile to shared memory: each thread some of them, in registers
/// from one tile to the next, so that they are on their way while a tile is multiplied.
template <PlainGemmConfig kConfig, int kOperand>
class Scales {
 public:
  BLOCKSCALE_DEVICE Scales(const PlainGemmParams& p, const Place& place)
      : p_(p), x_(p.operands[kOperand]), count_(place.rows(kOperand).count) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      const uint32_t row = item_of(i).row;
      offsets_[i] =
          place.matrix_of(kOperand) * x_.scales.batch_stride +
          x_.scales.row_offset(place.rows(kOperand).first + (row < count_ ? row : count_ - 1));
    }
  }

  /// Begins to load those of tile `tile` of K. No branch stands between loads, which would wait.
  BLOCKSCALE_DEVICE void load(uint32_t tile) {
    if (x_.scales.data == nullptr) return;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (i == 1 && !has_second_slot()) return;
      const Item item = item_of(i);
      const uint32_t k = first_k(tile, item);
      const bool exists = item.row < count_ && k < p_.k;
      const int64_t at = offsets_[i] + x_.scales.k_offset(k >> x_.log2_block_k);
      const auto* const words = reinterpret_cast<const uint32_t*>(x_.scales.data);
      // What was loaded is not looked at here, where it would be waited for.
      bytes_[i] = ptx::ld_global_nc_u8_if(exists && x_.scales.bytes, x_.scales.data + at);
      words_[i] = ptx::ld_global_nc_if(exists && !x_.scales.bytes, words + at);
    }
  }

  /// Stores what load() brought, in f32; beyond K 0.
  BLOCKSCALE_DEVICE void store(uint32_t tile, SharedAddress to) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (i == 1 && !has_second_slot()) return;
      const Item item = item_of(i);
      float scale = bit_cast<float>(words_[i]);
      if (x_.scale_format == Format::ue8m0) scale = decode<Format::ue8m0>(bytes_[i]);
      if (x_.scale_format == Format::ue4m3) scale = encoding::e4m3_value(bytes_[i] & 0x7Fu);
      if (x_.scales.data == nullptr) scale = 1.0f;
      if (first_k(tile, item) >= p_.k) scale = 0.0f;
      const uint32_t row = item.row + (kOperand == 0 ? 0 : static_cast<uint32_t>(kConfig.rows));
      if (item.row < count_) ptx::st_shared(to + (item.segment * kRows + row) * 4, scale);
    }
  }

 private:
  static constexpr uint32_t kThreads = static_cast<uint32_t>(group_threads_of(kConfig));
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows + kConfig.columns);
  static constexpr uint32_t kOwnRows =
      static_cast<uint32_t>(kOperand == 0 ? kConfig.rows : kConfig.columns);
  static constexpr uint32_t kSlots =
      (kOwnRows * static_cast<uint32_t>(kConfig.depth) / 16 + kThreads - 1) / kThreads;
  static constexpr uint32_t kLog2Depth = kConfig.depth == 64 ? 6 : kConfig.depth == 128 ? 7 : 8;
  static_assert(kConfig.depth == 1 << kLog2Depth);

  /// Which scale a thread's slot is for.
  struct Item {
    uint32_t row, segment;  // of the tile
  };
  BLOCKSCALE_DEVICE Item item_of(uint32_t slot) const {
    const uint32_t log2_segments = kLog2Depth - p_.log2_segment;
    const uint32_t item = slot * kThreads + thread_of_group<kConfig>();
    return {item >> log2_segments, item & ((1u << log2_segments) - 1)};
  }
  /// Whether there are more scales than threads: one row of A has few.
  BLOCKSCALE_DEVICE bool has_second_slot() const {
    return count_ << (kLog2Depth - p_.log2_segment) > kThreads;
  }
  BLOCKSCALE_DEVICE uint32_t first_k(uint32_t tile, const Item& item) const {
    return tile * static_cast<uint32_t>(kConfig.depth) + (item.segment << p_.log2_segment);
  }

  const PlainGemmParams& p_;
  const PlainOperand& x_;
  uint32_t count_;           // rows that exist
  int64_t offsets_[kSlots];  // of rows
  uint32_t bytes_[kSlots] = {};
  uint32_t words_[kSlots] = {};
};

// ---------------------------------------------------------------- 3: products

/// A warp's place in a tile, and its sums.
template <PlainGemmConfig kConfig>
class Multiplier {
 public:
  static constexpr int kM = kConfig.rows / kConfig.warps_m / 16;    // products of 16 rows
  static constexpr int kN = kConfig.columns / kConfig.warps_n / 8;  // x 8 columns
  static_assert(kN % 2 == 0);

  /// `rows` of the tile exist.
  BLOCKSCALE_DEVICE explicit Multiplier(uint32_t rows) : lane_(ptx::laneid()), rows_(rows) {
    const uint32_t warp = kConfig.warps_k == 1 ? device::warp_index() : 0;  // of the group
    row_ = warp % kConfig.warps_m * (16 * kM);
    column_ = warp / kConfig.warps_m * (8 * kN);
  }

  /// Adds the products of one decoded tile, whose parts begin at `a` and `b`.
  BLOCKSCALE_DEVICE void multiply(const PlainGemmParams& p, const PlainMemory& memory,
                                  SharedAddress a, SharedAddress b, SharedAddress scales) {
    const PlainOperand &x = p.operands[0], &y = p.operands[1];
    if constexpr (kConfig.form == Format::f16) {
      multiply_parts(p, a, b, scales, false);
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t i = 0; i < x.parts; ++i) {
        BLOCKSCALE_NO_UNROLL
        for (uint32_t j = 0; j < y.parts && i + j < kPlainPartSum; ++j) {
          multiply_parts(p, a + i * memory.a_part_bytes, b + j * memory.b_part_bytes, scales,
                         i + j > 0);
        }
      }
    }
  }

  /// visit(row, column, two neighbouring sums) of this warp's part of the tile.
  template <class Visit>
  BLOCKSCALE_DEVICE void for_each_pair(const Visit& visit) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kM; ++i) {
      BLOCKSCALE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = row_ + static_cast<uint32_t>(16 * i + 8 * half) + lane_ / 4;
        BLOCKSCALE_UNROLL
        for (int j = 0; j < kN; ++j) {
          const uint32_t column = column_ + static_cast<uint32_t>(8 * j) + lane_ % 4 * 2;
          visit(row, column, sums_[i][j][2 * half], sums_[i][j][2 * half + 1]);
        }
      }
    }
  }

 private:
  static constexpr ptx::MmaElement kElement =
      kConfig.form == Format::f16 ? ptx::MmaElement::f16 : ptx::MmaElement::bf16;
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows + kConfig.columns);
  using Two = device::Vector<float, 2>;

  /// Infinities and NaN become 0: they count in the product of first parts alone, as an infinity
  /// times another part of 0 would be NaN.
  template <int kCount>
  BLOCKSCALE_DEVICE static void keep_finite(uint32_t (&words)[kCount]) {
    BLOCKSCALE_UNROLL
    for (uint32_t& word : words) {
      const uint32_t carries = ((word & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
      word &= ~((carries >> 15) * 0xFFFFu);
    }
  }

  BLOCKSCALE_DEVICE void multiply_parts(const PlainGemmParams& p, SharedAddress a, SharedAddress b,
                                        SharedAddress scales, bool finite) {
    if (p.log2_segment == 4) {
      multiply_segments<1>(a, b, scales, finite);
    } else {
      multiply_segments<2>(a, b, scales, finite);
    }
  }

  /// Segments of kSixteens times 16 of K, as many as an instruction multiplies.
  template <int kSixteens>
  BLOCKSCALE_DEVICE void multiply_segments(SharedAddress a, SharedAddress b, SharedAddress scales,
                                           bool finite) {
    constexpr uint32_t kSegments = static_cast<uint32_t>(kConfig.depth / (16 * kSixteens));
    BLOCKSCALE_NO_UNROLL
    for (uint32_t s = 0; s < kSegments; ++s) {
      const uint32_t first_chunk = s * static_cast<uint32_t>(2 * kSixteens);
      const SharedAddress of_segment = scales + s * (kRows * 4);
      Segment<kSixteens> segment;
      load_a(segment, a, first_chunk, finite);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kM; ++i) {
        const uint32_t row = row_ + static_cast<uint32_t>(16 * i) + lane_ / 4;
        segment.scales[i][0] = ptx::ld_shared<float>(of_segment + row * 4);
        segment.scales[i][1] = ptx::ld_shared<float>(of_segment + (row + 8) * 4);
      }
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kN; j += 2) {
        multiply_columns(segment, b, of_segment, first_chunk, j, finite);
      }
    }
  }

  /// A's elements and scales of a segment, in the rows of this warp.
  template <int kSixteens>
  struct Segment {
    ptx::MmaFragmentA a[kM][kSixteens];
    float scales[kM][2];  // of rows lane / 4 and 8 below
  };

  template <int kSixteens>
  BLOCKSCALE_DEVICE void load_a(Segment<kSixteens>& segment, SharedAddress a, uint32_t first_chunk,
                                bool finite) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kM; ++i) {
      uint32_t row = row_ + static_cast<uint32_t>(16 * i) + lane_ % 16;
      if constexpr (kConfig.warps_k > 1)
        row = row < rows_ ? row : rows_ - 1;  // there are no others
      BLOCKSCALE_UNROLL
      for (int x = 0; x < kSixteens; ++x) {
        const uint32_t chunk = first_chunk + static_cast<uint32_t>(2 * x) + lane_ / 16;
        const auto four = ptx::ldmatrix<4>(a + chunk_offset<kConfig>(row, chunk));
        BLOCKSCALE_UNROLL
        for (int w = 0; w < 4; ++w) segment.a[i][x].value[w] = four.value[w];
        if (finite) keep_finite(segment.a[i][x].value);
      }
    }
  }

  /// The products of a segment and of columns 8 j to 8 j + 15.
  template <int kSixteens>
  BLOCKSCALE_DEVICE void multiply_columns(const Segment<kSixteens>& segment, SharedAddress b,
                                          SharedAddress scales, uint32_t first_chunk, int j,
                                          bool finite) {
    const uint32_t column = column_ + static_cast<uint32_t>(8 * j);
    ptx::MmaFragmentB columns[2][kSixteens];
    BLOCKSCALE_UNROLL
    for (int x = 0; x < kSixteens; ++x) {
      const uint32_t row = column + lane_ % 8 + lane_ / 16 * 8;
      const uint32_t chunk = first_chunk + static_cast<uint32_t>(2 * x) + lane_ / 8 % 2;
      auto four = ptx::ldmatrix<4>(b + chunk_offset<kConfig>(row, chunk));
      if (finite) keep_finite(four.value);
      BLOCKSCALE_UNROLL
      for (int w = 0; w < 4; ++w) columns[w / 2][x].value[w % 2] = four.value[w];
    }
    BLOCKSCALE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const uint32_t at = static_cast<uint32_t>(kConfig.rows + 8 * c) + column + lane_ % 4 * 2;
      const Two of_columns = ptx::ld_shared<Two>(scales + at * 4);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kM; ++i) {
        float(&sums)[4] = sums_[i][j + c];
        ptx::MmaAccumulator products = {};
        BLOCKSCALE_UNROLL
        for (int x = 0; x < kSixteens; ++x) {
          ptx::mma_sync_m16n8<kElement>(products, segment.a[i][x], columns[c][x]);
        }
        BLOCKSCALE_UNROLL
        for (int v = 0; v < 4; ++v) {
          const float scaled = ptx::mul_rn(products.value[v], segment.scales[i][v / 2]);
          sums[v] = ptx::fma_rn(scaled, of_columns.at[v % 2], sums[v]);
        }
      }
    }
  }

  uint32_t lane_, rows_, row_, column_;
  float sums_[kM][kN][4] = {};
};

// ---------------------------------------------------------------- the end

/// What sums are multiplied with, one after the other: alpha, A's tensor scale, B's.
struct Factors {
  float alpha;
  float tensor_scales[2];
  bool divides[2];

  BLOCKSCALE_DEVICE Factors(const PlainGemmParams& p, const Place& place)
      : alpha(epilogue::alpha_of(p.epilogue)) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const PlainOperand& x = p.operands[i];
      tensor_scales[i] =
          x.tensor_scale == nullptr
              ? 1.0f
              : ptx::ld_global(x.tensor_scale +
                               place.matrix_of(static_cast<uint32_t>(i)) * x.tensor_scale_stride);
      divides[i] = x.tensor_scale_divides;
    }
  }

  BLOCKSCALE_DEVICE float operator()(float sum) const {
    sum = ptx::mul_rn(alpha, sum);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      sum = divides[i] ? ptx::div_rn(sum, tensor_scales[i]) : ptx::mul_rn(sum, tensor_scales[i]);
    }
    return sum;
  }
};

/// Elements (row, column) and (row, column + 1) of D, which has that row, as far as they exist.
BLOCKSCALE_DEVICE void store_pair(const PlainGemmParams& p, const Factors& factors, uint32_t matrix,
                                  uint32_t row, uint32_t column, float first, float second) {
  const LinearEpilogue& e = p.epilogue;
  const epilogue::RowPart d = epilogue::row_part(e.d, e, matrix, row, column);
  if (d.left == 0) return;
  float v[2] = {factors(first), factors(second)};
  if (e.beta != 0) {
    const epilogue::RowPart c = epilogue::row_part(e.c, e, matrix, row, column);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      v[i] = ptx::fma_rn(e.beta, epilogue::load_element(c, e.c.dtype, i), v[i]);
    }
  }
  if (e.bias.data != nullptr) {
    const epilogue::RowPart bias = epilogue::row_part(e.bias, e, 0, 0, column);
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      v[i] = ptx::add_rn(v[i], epilogue::load_element(bias, e.bias.dtype, i));
    }
  }
  const bool as_pair = p.store_pairs && d.left >= 2;
  if (e.d.dtype == Format::f32) {
    using Two = device::Vector<float, 2>;
    if (as_pair) {
      ptx::st_global(reinterpret_cast<Two*>(d.at), Two{{v[0], v[1]}});
    } else {
      epilogue::store_element(d, 0, v[0]);
      epilogue::store_element(d, 1, v[1]);
    }
    return;
  }
  const uint32_t pair = e.d.dtype == Format::f16 ? ptx::cvt_rn_f16x2_f32(v[1], v[0])
                                                 : ptx::cvt_rn_bf16x2_f32(v[1], v[0]);
  if (as_pair) {
    ptx::st_global(reinterpret_cast<uint32_t*>(d.at), pair);
  } else {
    epilogue::store_element(d, 0, static_cast<uint16_t>(pair));
    epilogue::store_element(d, 1, static_cast<uint16_t>(pair >> 16));
  }
}

/// Stores a tile: sums go through shared memory, where elements were, so that neighbouring threads
/// store neighbouring elements. Those of groups that divide K are added in their order.
template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE void store_tile(const PlainGemmParams& p, const Place& place,
                                  Multiplier<kConfig>& multiplier) {
  using Two = device::Vector<float, 2>;
  constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.columns);
  constexpr uint32_t kPairs = static_cast<uint32_t>(kConfig.rows) * kColumns / 2;
  const SharedAddress sums = device::shared_base();
  ptx::barrier_sync_all();
  multiplier.for_each_pair([&](uint32_t row, uint32_t column, float first, float second) {
    const uint32_t pair = (row * kColumns + column) / 2;
    ptx::st_shared(sums + (group_of_block<kConfig>() * kPairs + pair) * 8, Two{{first, second}});
  });
  ptx::barrier_sync_all();
  const Factors factors(p, place);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t pair = ptx::tid_x(); pair < kPairs; pair += threads_of(kConfig)) {
    const uint32_t row = pair * 2 / kColumns, column = pair * 2 % kColumns;
    if (row >= place.a.count || column >= place.b.count) continue;
    Two sum = ptx::ld_shared<Two>(sums + pair * 8);
    BLOCKSCALE_UNROLL
    for (uint32_t k = 1; k < kConfig.warps_k; ++k) {
      const Two add = ptx::ld_shared<Two>(sums + (k * kPairs + pair) * 8);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 2; ++i) sum.at[i] = ptx::add_rn(sum.at[i], add.at[i]);
    }
    store_pair(p, factors, place.matrix, place.a.first + row, place.b.first + column, sum.at[0],
               sum.at[1]);
  }
}

}  // namespace plain

template <PlainGemmConfig kConfig>
BLOCKSCALE_DEVICE void plain_gemm_kernel(const PlainGemmParams& p) {
  using namespace plain;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  constexpr uint32_t kGroups = static_cast<uint32_t>(kConfig.warps_k);
  constexpr uint32_t kBuffers = buffers_of(kConfig);
  const PlainMemory memory = memory_of(kConfig, p.operands, p.stages);
  const Place place = place_of<kConfig>(p);
  const uint32_t group = group_of_block<kConfig>();
  const SharedAddress shared = device::shared_base() + group * memory.group_bytes;
  // A group's tiles of K are group, group + kGroups, ..: its own are counted from 0 on here.
  const uint32_t tiles = (p.k_tiles + kGroups - 1 - group) / kGroups;
  const auto tile_of_k = [&](uint32_t tile) { return tile * kGroups + group; };
  // Stages are taken in turn: the next one to copy to, and the next one to decode.
  uint32_t copied = 0, decoded = 0;
  const auto take_stage = [&](uint32_t& stage) {
    const SharedAddress at = shared + (memory.stages + stage * memory.stage_bytes);
    stage = stage + 1 == p.stages ? 0 : stage + 1;
    return at;
  };
  const auto begin_copy = [&](uint32_t tile) {
    const SharedAddress stage = take_stage(copied);
    if (tile < tiles) {
      copy_codes<kConfig>(p.operands[0], place.matrix, place.a, tile_of_k(tile), stage);
      copy_codes<kConfig>(p.operands[1], place.group, place.b, tile_of_k(tile),
                          stage + memory.b_stage);
    }
    ptx::cp_async_commit_group();
  };
  const auto elements_of = [&](uint32_t tile, uint32_t operand) {
    return shared + (tile % kBuffers * memory.buffer_bytes +
                     (operand == 0 ? 0 : p.operands[0].parts * memory.a_part_bytes));
  };
  const auto scales_of = [&](uint32_t tile) {
    return shared + (memory.scales + tile % kBuffers * memory.scale_bytes);
  };
  Scales<kConfig, 0> a_scales(p, place);
  Scales<kConfig, 1> b_scales(p, place);
  const auto decode = [&](uint32_t tile) {
    const SharedAddress stage = take_stage(decoded);
    a_scales.store(tile_of_k(tile), scales_of(tile));
    b_scales.store(tile_of_k(tile), scales_of(tile));
    a_scales.load(tile_of_k(tile + 1));
    b_scales.load(tile_of_k(tile + 1));
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      decode_tile<kConfig>(
          i == 0 ? p.operands[0].element : p.operands[1].element,
          {place.rows(i).count, stage + (i == 0 ? 0 : memory.b_stage), elements_of(tile, i),
           i == 0 ? memory.a_part_bytes : memory.b_part_bytes});
    }
  };
  Multiplier<kConfig> multiplier(place.a.count);
  const auto multiply = [&](uint32_t tile) {
    multiplier.multiply(p, memory, elements_of(tile, 0), elements_of(tile, 1), scales_of(tile));
  };

  if (thread_of_group<kConfig>() == 0) {
    ptx::accept_any_shared(shared, memory.stages);  // rows outside of the operands
  }
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = 0; tile + 1 < p.stages; ++tile) begin_copy(tile);
  a_scales.load(tile_of_k(0));
  b_scales.load(tile_of_k(0));
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = 0; tile < tiles + kBuffers - 1; ++tile) {
    // Codes of this tile are here, and what was decoded last is multiplied, or with two buffers
    // what was decoded before that.
    wait_copies<kConfig.stages - 2>(p.stages - 2);
    sync_group<kConfig>();
    begin_copy(tile + p.stages - 1);
    if (tile < tiles) decode(tile);
    if constexpr (kBuffers == 1) {
      sync_group<kConfig>();
      multiply(tile);
    } else {
      if (tile > 0) multiply(tile - 1);
    }
  }
  store_tile<kConfig>(p, place, multiplier);
}

}  // namespace blockscale
