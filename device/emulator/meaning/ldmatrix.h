// Where ldmatrix and stmatrix move the words of a warp: a pure function. PTX ISA "ldmatrix".
#pragma once

#include <cstdint>

namespace blockscale::emulator::meaning {

inline constexpr uint32_t kMatrixRows = 8;       // and columns, of 16 bits
inline constexpr uint32_t kMatrixRowBytes = 16;  // of one row

struct MatrixPlace {
  uint32_t row;
  uint32_t byte;  // in the row
};

/// Of half `half` (0: the lower bits) of a lane's word of one matrix.
constexpr MatrixPlace matrix_place(uint32_t lane, uint32_t half, bool transposed) {
  const uint32_t along = lane / 4, across = 2 * (lane % 4) + half;
  return transposed ? MatrixPlace{across, 2 * along} : MatrixPlace{along, 2 * across};
}

/// Of .b8x16: a lane's 4 numbers of `bits` (4 or 6), which begin at byte `packed_byte` of a row,
/// to a byte each.
constexpr uint32_t packed_byte(uint32_t lane, uint32_t bits) {
  return lane % 4 * bits / 2;
}
constexpr uint32_t unpack_numbers(uint32_t packed, uint32_t bits) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4; ++i) word |= (packed >> bits * i & ((1u << bits) - 1)) << 8 * i;
  return word;
}

}  // namespace blockscale::emulator::meaning
