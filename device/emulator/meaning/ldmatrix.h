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

}  // namespace blockscale::emulator::meaning
