// Matrices of 8 x 16 numbers of 4 or 6 bits from shared memory to bytes of a warp's registers,
// which Blackwell (sm_100f, sm_120f) has and Hopper lacks. PTX ISA "ldmatrix", ".b8x16".
//
// A row is 16 bytes, at a multiple of 16: 16 numbers side by side, the first in the lowest bits,
// and then a gap that is not read: 12 bytes of numbers of 6 bits, or 8 of 4. Tensor copies leave
// them so (TensorMapElement::u6x16_align16b, u4x16_align16b). Lane 8 i + r says where row r of
// matrix i begins. Word i of lane l has numbers 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 of matrix
// i, one a byte, in its low bits; the others are 0. (mma.sync takes numbers of 4 bits in bits 2 to
// 5: shift the word.) For all lanes of the warp at the same line.
#pragma once

#include "device/kernel.h"
#include "device/ptx/ldmatrix.h"

namespace blockscale::ptx {

/// ldmatrix.sync.aligned.m8n16.b8x16.b6x16_p32 (kBits = 6) or .b4x16_p64 (4), .x1, .x2 or .x4.
template <int kBits, int kCount>
BLOCKSCALE_DEVICE MatrixFragment<kCount> ldmatrix_b8x16(
    SharedAddress row, SourceLocation at = SourceLocation::current()) {
  static_assert(kBits == 4 || kBits == 6);
  MatrixFragment<kCount> f;
#if BLOCKSCALE_GPU
#define BLOCKSCALE_LDMATRIX(source)                                                               \
  if constexpr (kCount == 1) {                                                                    \
    asm volatile("ldmatrix.sync.aligned.m8n16.x1.shared.b8x16." source " {%0}, [%1];"             \
                 : "=r"(f.value[0])                                                               \
                 : "r"(row.value)                                                                 \
                 : "memory");                                                                     \
  } else if constexpr (kCount == 2) {                                                             \
    asm volatile("ldmatrix.sync.aligned.m8n16.x2.shared.b8x16." source " {%0, %1}, [%2];"         \
                 : "=r"(f.value[0]), "=r"(f.value[1])                                             \
                 : "r"(row.value)                                                                 \
                 : "memory");                                                                     \
  } else {                                                                                        \
    asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16." source " {%0, %1, %2, %3}, [%4];" \
                 : "=r"(f.value[0]), "=r"(f.value[1]), "=r"(f.value[2]), "=r"(f.value[3])         \
                 : "r"(row.value)                                                                 \
                 : "memory");                                                                     \
  }
  if constexpr (kBits == 6) {
    BLOCKSCALE_LDMATRIX("b6x16_p32")
  } else {
    BLOCKSCALE_LDMATRIX("b4x16_p64")
  }
#undef BLOCKSCALE_LDMATRIX
#else
  emulator::ldmatrix_b8x16(row.value, kBits, kCount, f.value, at);
#endif
  return f;
}

}  // namespace blockscale::ptx
