// Matrix products of a warp. PTX ISA "mma", "Matrix Fragments for mma.m16n8k16 with floating point
// type", "Matrix Fragments for mma.m16n8k32".
//
// D (16 x 8, f32) += A (16 x K) * B (8 x K)^T; K is 32 bytes of a row, k contiguous: 16 elements of
// 16 bits or 32 of 8. All 32 lanes of the warp execute each product at the same line. Everything
// lies in registers, and is there when it returns.
//
// The layouts below are the same for both widths when k is counted in bytes.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// What A and B hold.
enum class MmaElement : uint8_t { f16, bf16, e4m3, e5m2 };

/// This lane's part of A, 16 rows of 32 bytes. Word i of lane l has the 4 bytes of row
/// l / 4 + 8 (i % 2) that begin at byte 4 (l % 4) + 16 (i / 2), the lowest k in the lowest bits.
struct MmaFragmentA {
  uint32_t value[4];
};

/// This lane's part of B, 8 rows (D's columns) of 32 bytes. Word i of lane l has the 4 bytes of row
/// l / 4 that begin at byte 4 (l % 4) + 16 i.
struct MmaFragmentB {
  uint32_t value[2];
};

/// This lane's part of D. Value i of lane l is D[row][column] with row = l / 4 + 8 (i / 2),
/// column = 2 (l % 4) + i % 2.
struct MmaAccumulator {
  float value[4];
};

/// mma.sync.aligned.m16n8k16 (16-bit elements) or m16n8k32 (8-bit): d += a * b^T, f32 sums. The
/// 8-bit ones need sm_89. For sm_90a ptxas converts them to f16 and makes two m16n8k16 of one, so
/// that they save memory there and no time.
template <MmaElement kElement>
BLOCKSCALE_DEVICE void mma_sync_m16n8(MmaAccumulator& d, const MmaFragmentA& a,
                                      const MmaFragmentB& b,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_MMA(shape, type)                                                     \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                  \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
               : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3]) \
               : "r"(a.value[0]), "r"(a.value[1]), "r"(a.value[2]), "r"(a.value[3]),    \
                 "r"(b.value[0]), "r"(b.value[1]))
  if constexpr (kElement == MmaElement::f16) {
    BLOCKSCALE_MMA("m16n8k16", "f16");
  } else if constexpr (kElement == MmaElement::bf16) {
    BLOCKSCALE_MMA("m16n8k16", "bf16");
  } else if constexpr (kElement == MmaElement::e4m3) {
    BLOCKSCALE_MMA("m16n8k32", "e4m3");
  } else {
    BLOCKSCALE_MMA("m16n8k32", "e5m2");
  }
#undef BLOCKSCALE_MMA
#else
  emulator::mma_sync(static_cast<uint32_t>(kElement), d.value, a.value, b.value, at);
#endif
}

}  // namespace blockscale::ptx
