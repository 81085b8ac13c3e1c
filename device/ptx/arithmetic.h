// f32 arithmetic with its rounding pinned. PTX ISA "Floating Point Instructions".
//
// Subnormals are kept (no .ftz). Every NaN result is 0x7FFFFFFF, but that abs and neg of a NaN are
// some NaN. Plain operators (--fmad=false, -ffp-contract=off) give the same numbers, but on the
// host NaNs of other bits: use these where a NaN's bits are stored.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/meaning/float32.h"
#endif

namespace blockscale::ptx {

#if BLOCKSCALE_GPU
#define BLOCKSCALE_UNARY(op, name)           \
  float d;                                   \
  asm(op ".f32 %0, %1;" : "=f"(d) : "f"(a)); \
  return d
#define BLOCKSCALE_BINARY(op, name)                      \
  float d;                                               \
  asm(op ".f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); \
  return d
#else
#define BLOCKSCALE_UNARY(op, name) return emulator::meaning::name(a)
#define BLOCKSCALE_BINARY(op, name) return emulator::meaning::name(a, b)
#endif

/// a * b + c, rounded once.
BLOCKSCALE_DEVICE float fma_rn(float a, float b, float c) {
#if BLOCKSCALE_GPU
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
#else
  return emulator::meaning::fma(a, b, c);
#endif
}

BLOCKSCALE_DEVICE float add_rn(float a, float b) {
  BLOCKSCALE_BINARY("add.rn", add);
}
BLOCKSCALE_DEVICE float sub_rn(float a, float b) {
  BLOCKSCALE_BINARY("sub.rn", sub);
}
BLOCKSCALE_DEVICE float mul_rn(float a, float b) {
  BLOCKSCALE_BINARY("mul.rn", mul);
}

/// IEEE division, subnormals included.
BLOCKSCALE_DEVICE float div_rn(float a, float b) {
  BLOCKSCALE_BINARY("div.rn", div);
}
BLOCKSCALE_DEVICE float rcp_rn(float a) {
  BLOCKSCALE_UNARY("rcp.rn", rcp);
}
BLOCKSCALE_DEVICE float sqrt_rn(float a) {
  BLOCKSCALE_UNARY("sqrt.rn", sqrt);
}

/// 1 / a to one unit of the last place; subnormal operands count as zero, subnormal results are
/// flushed to it. The emulator gives the nearest number: that a kernel's result does not depend on
/// the difference is for a test on a GPU to show.
BLOCKSCALE_DEVICE float rcp_approx_ftz(float a) {
#if BLOCKSCALE_GPU
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
#else
  return emulator::meaning::rcp_ftz(a);
#endif
}

/// 2^a, likewise, to two units of the last place.
BLOCKSCALE_DEVICE float ex2_approx_ftz(float a) {
#if BLOCKSCALE_GPU
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
#else
  return emulator::meaning::ex2_ftz(a);
#endif
}

/// The larger; of a number and a NaN the number; +0 above -0.
BLOCKSCALE_DEVICE float max(float a, float b) {
  BLOCKSCALE_BINARY("max", max);
}
BLOCKSCALE_DEVICE float min(float a, float b) {
  BLOCKSCALE_BINARY("min", min);
}

/// NaN where either is a NaN.
BLOCKSCALE_DEVICE float max_nan(float a, float b) {
  BLOCKSCALE_BINARY("max.NaN", max_nan);
}
BLOCKSCALE_DEVICE float min_nan(float a, float b) {
  BLOCKSCALE_BINARY("min.NaN", min_nan);
}

BLOCKSCALE_DEVICE float abs(float a) {
  BLOCKSCALE_UNARY("abs", abs);
}
BLOCKSCALE_DEVICE float neg(float a) {
  BLOCKSCALE_UNARY("neg", neg);
}

/// The same number, which the compiler keeps in a register instead of computing it again from what
/// it was made of, which may then be overwritten. No instruction at all.
BLOCKSCALE_DEVICE float in_register(float a) {
#if BLOCKSCALE_GPU
  asm volatile("" : "+f"(a));
#endif
  return a;
}
BLOCKSCALE_DEVICE uint32_t in_register(uint32_t a) {
#if BLOCKSCALE_GPU
  asm volatile("" : "+r"(a));
#endif
  return a;
}
template <class T>
BLOCKSCALE_DEVICE const T* in_register(const T* a) {
#if BLOCKSCALE_GPU
  asm volatile("" : "+l"(a));
#endif
  return a;
}

#undef BLOCKSCALE_UNARY
#undef BLOCKSCALE_BINARY

}  // namespace blockscale::ptx
