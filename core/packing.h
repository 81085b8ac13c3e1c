// Codes in memory: how a row of numbers of one format is packed.
//
// Code i of a row lies in bits [i * bits, (i + 1) * bits) of the row read as one little-endian
// integer: 4-bit codes lie two in a byte, low nibble first, 6-bit codes four in three bytes.
#pragma once

#include "core/config.h"
#include "core/format.h"

namespace blockscale {

/// Bytes that `count` packed codes of `format` fill. count <= 2^57.
BLOCKSCALE_HD constexpr int64_t packed_bytes(Format format, int64_t count) {
  return ceil_div(count * format_traits(format).bits, 8);
}

/// The code at `index` of a packed row of `F`.
template <Format F>
BLOCKSCALE_HD constexpr uint32_t load_code(const uint8_t* row, int64_t index) {
  constexpr int kBits = kFormatTraits[static_cast<int>(F)].bits;
  if constexpr (kBits % 8 == 0) {
    uint32_t code = 0;
    for (int i = 0; i < kBits / 8; ++i) {
      code |= static_cast<uint32_t>(row[index * (kBits / 8) + i]) << (8 * i);
    }
    return code;
  } else {
    const int64_t bit = index * kBits;
    const int shift = static_cast<int>(bit % 8);
    uint32_t bytes = row[bit / 8];
    if (shift + kBits > 8) bytes |= static_cast<uint32_t>(row[bit / 8 + 1]) << 8;
    return (bytes >> shift) & ((1u << kBits) - 1u);
  }
}

/// Replaces the code at `index` of a packed row of `F`; its neighbours stay. Bits of `code` above
/// the format's width are ignored.
template <Format F>
BLOCKSCALE_HD constexpr void store_code(uint8_t* row, int64_t index, uint32_t code) {
  constexpr int kBits = kFormatTraits[static_cast<int>(F)].bits;
  if constexpr (kBits % 8 == 0) {
    for (int i = 0; i < kBits / 8; ++i) {
      row[index * (kBits / 8) + i] = static_cast<uint8_t>(code >> (8 * i));
    }
  } else {
    const int64_t bit = index * kBits;
    const int shift = static_cast<int>(bit % 8);
    const uint32_t mask = ((1u << kBits) - 1u) << shift;
    const uint32_t bytes = (code << shift) & mask;
    uint8_t* const first = row + bit / 8;
    first[0] = static_cast<uint8_t>((first[0] & ~mask) | bytes);
    if (shift + kBits > 8) first[1] = static_cast<uint8_t>((first[1] & ~(mask >> 8)) | bytes >> 8);
  }
}

/// Packs `count` codes, one in a byte of `codes`, into `row`. Every one of its packed_bytes is
/// written; bits behind the last code are 0. The two do not overlap. F is at most 8 bits wide.
template <Format F>
BLOCKSCALE_HD constexpr void pack_codes(const uint8_t* codes, int64_t count, uint8_t* row) {
  static_assert(kFormatTraits[static_cast<int>(F)].bits <= 8);
  for (int64_t i = 0; i < packed_bytes(F, count); ++i) row[i] = 0;
  for (int64_t i = 0; i < count; ++i) store_code<F>(row, i, codes[i]);
}

/// Unpacks `count` codes of `row`, one into each byte of `codes`. The two do not overlap.
template <Format F>
BLOCKSCALE_HD constexpr void unpack_codes(const uint8_t* row, int64_t count, uint8_t* codes) {
  static_assert(kFormatTraits[static_cast<int>(F)].bits <= 8);
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(load_code<F>(row, i));
}

}  // namespace blockscale
