// Matrices of 8 x 8 numbers of 16 bits between shared memory and the registers of a warp. PTX ISA
// "ldmatrix", "stmatrix".
//
// A row is 16 bytes, at a multiple of 16. Lane 8 i + r says where row r of matrix i begins; the
// addresses of lanes beyond the last matrix are not looked at. Word i of lane l has elements
// 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i; transposed, of column l / 4. The lower
// element lies in the lower half. Every lane touches the memory of its own words: all of them must
// be ordered behind, or before, what others do to it.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// A lane's words of kCount (1, 2 or 4) matrices.
template <int kCount>
struct MatrixFragment {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  uint32_t value[kCount];
};

/// ldmatrix.sync.aligned.m8n8, .x1, .x2 or .x4, for all lanes of the warp at the same line.
template <int kCount, bool kTransposed = false>
BLOCKSCALE_DEVICE MatrixFragment<kCount> ldmatrix(SharedAddress row,
                                                  SourceLocation at = SourceLocation::current()) {
  MatrixFragment<kCount> f;
#if BLOCKSCALE_GPU
#define BLOCKSCALE_LDMATRIX(trans)                                                           \
  if constexpr (kCount == 1) {                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" trans ".shared.b16 {%0}, [%1];"             \
                 : "=r"(f.value[0])                                                          \
                 : "r"(row.value)                                                            \
                 : "memory");                                                                \
  } else if constexpr (kCount == 2) {                                                        \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" trans ".shared.b16 {%0, %1}, [%2];"         \
                 : "=r"(f.value[0]), "=r"(f.value[1])                                        \
                 : "r"(row.value)                                                            \
                 : "memory");                                                                \
  } else {                                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(f.value[0]), "=r"(f.value[1]), "=r"(f.value[2]), "=r"(f.value[3])    \
                 : "r"(row.value)                                                            \
                 : "memory");                                                                \
  }
  if constexpr (kTransposed) {
    BLOCKSCALE_LDMATRIX(".trans")
  } else {
    BLOCKSCALE_LDMATRIX("")
  }
#undef BLOCKSCALE_LDMATRIX
#else
  emulator::ldmatrix(row.value, kCount, kTransposed, f.value, at);
#endif
  return f;
}

/// stmatrix.sync.aligned.m8n8, .x1, .x2 or .x4, for all lanes of the warp at the same line. Needs
/// sm_90.
template <bool kTransposed = false, int kCount>
BLOCKSCALE_DEVICE void stmatrix(SharedAddress row, const MatrixFragment<kCount>& f,
                                SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_STMATRIX(trans)                                                           \
  if constexpr (kCount == 1) {                                                               \
    asm volatile("stmatrix.sync.aligned.m8n8.x1" trans ".shared.b16 [%0], {%1};"             \
                 :                                                                           \
                 : "r"(row.value), "r"(f.value[0])                                           \
                 : "memory");                                                                \
  } else if constexpr (kCount == 2) {                                                        \
    asm volatile("stmatrix.sync.aligned.m8n8.x2" trans ".shared.b16 [%0], {%1, %2};"         \
                 :                                                                           \
                 : "r"(row.value), "r"(f.value[0]), "r"(f.value[1])                          \
                 : "memory");                                                                \
  } else {                                                                                   \
    asm volatile("stmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 [%0], {%1, %2, %3, %4};" \
                 :                                                                           \
                 : "r"(row.value), "r"(f.value[0]), "r"(f.value[1]), "r"(f.value[2]),        \
                   "r"(f.value[3])                                                           \
                 : "memory");                                                                \
  }
  if constexpr (kTransposed) {
    BLOCKSCALE_STMATRIX(".trans")
  } else {
    BLOCKSCALE_STMATRIX("")
  }
#undef BLOCKSCALE_STMATRIX
#else
  emulator::stmatrix(row.value, kCount, kTransposed, f.value, at);
#endif
}

}  // namespace blockscale::ptx
