// Arithmetic on two f32 in one register pair, which Blackwell (sm_100f, sm_120f) has and Hopper
// lacks. PTX ISA "add, sub, mul, fma" of .f32x2. Each half as the scalar instruction of
// arithmetic.h.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/vector.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

using F32x2 = device::Vector<float, 2>;

#if BLOCKSCALE_GPU
#define BLOCKSCALE_F32X2(op)                                                             \
  uint64_t d;                                                                            \
  asm(op ".f32x2 %0, %1, %2;"                                                            \
      : "=l"(d)                                                                          \
      : "l"(blockscale::bit_cast<uint64_t>(a)), "l"(blockscale::bit_cast<uint64_t>(b))); \
  return blockscale::bit_cast<F32x2>(d);
#endif

BLOCKSCALE_DEVICE F32x2
add_rn_f32x2(F32x2 a, F32x2 b, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_F32X2("add.rn")
#else
  emulator::require(emulator::Feature::packed_f32, "add_rn_f32x2", at);
  return {{add_rn(a.at[0], b.at[0]), add_rn(a.at[1], b.at[1])}};
#endif
}

BLOCKSCALE_DEVICE F32x2
mul_rn_f32x2(F32x2 a, F32x2 b, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_F32X2("mul.rn")
#else
  emulator::require(emulator::Feature::packed_f32, "mul_rn_f32x2", at);
  return {{mul_rn(a.at[0], b.at[0]), mul_rn(a.at[1], b.at[1])}};
#endif
}

/// a * b + c, rounded once.
BLOCKSCALE_DEVICE F32x2 fma_rn_f32x2(
    F32x2 a, F32x2 b, F32x2 c, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint64_t d;
  asm("fma.rn.f32x2 %0, %1, %2, %3;"
      : "=l"(d)
      : "l"(blockscale::bit_cast<uint64_t>(a)), "l"(blockscale::bit_cast<uint64_t>(b)),
        "l"(blockscale::bit_cast<uint64_t>(c)));
  return blockscale::bit_cast<F32x2>(d);
#else
  emulator::require(emulator::Feature::packed_f32, "fma_rn_f32x2", at);
  return {{fma_rn(a.at[0], b.at[0], c.at[0]), fma_rn(a.at[1], b.at[1], c.at[1])}};
#endif
}

#if BLOCKSCALE_GPU
#undef BLOCKSCALE_F32X2
#endif

}  // namespace blockscale::ptx
