// One code at a time in a row of packed values: what SIMD loops fall back on for their tails.
//
// Value i of a row lies in bits [i * bits, (i + 1) * bits) of the row read as one little-endian
// integer, so 4-bit values have the low nibble first and 6-bit ones take 4 values in 3 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/format.h"

namespace blockscale {

/// The code at `index` of a packed row of `F`.
template <Format F>
std::uint32_t load_code(const std::uint8_t* row, std::int64_t index) {
  constexpr int kBits = format_traits(F).bits;
  if constexpr (kBits >= 8) {
    std::uint32_t code = 0;
    std::memcpy(&code, row + index * (kBits / 8), kBits / 8);
    return code;
  } else {
    const std::int64_t bit = index * kBits;
    const int shift = static_cast<int>(bit % 8);
    std::uint32_t bytes = row[bit / 8];
    if (shift + kBits > 8) bytes |= std::uint32_t{row[bit / 8 + 1]} << 8;
    return (bytes >> shift) & ((1u << kBits) - 1);
  }
}

/// Stores `code` at `index` of a packed row of `F`. Sub-byte codes are stored in order of their
/// index: a code that starts a byte clears the rest of it.
template <Format F>
void store_code(std::uint8_t* row, std::int64_t index, std::uint32_t code) {
  constexpr int kBits = format_traits(F).bits;
  if constexpr (kBits >= 8) {
    std::memcpy(row + index * (kBits / 8), &code, kBits / 8);
  } else {
    const std::int64_t bit = index * kBits;
    const int shift = static_cast<int>(bit % 8);
    std::uint8_t* const first = row + bit / 8;
    const std::uint32_t kept = shift == 0 ? 0u : *first & ((1u << shift) - 1);
    *first = static_cast<std::uint8_t>(kept | code << shift);
    if (shift + kBits > 8) first[1] = static_cast<std::uint8_t>(code >> (8 - shift));
  }
}

}  // namespace blockscale
