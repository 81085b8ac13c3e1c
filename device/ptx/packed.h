// Arithmetic on two f16 or two bf16 in one register. PTX ISA "Half Precision Floating Point
// Instructions". Subnormals are kept; every NaN result is 0x7FFF, of abs and neg too.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/meaning/packed.h"
#endif

namespace blockscale::ptx {

#if BLOCKSCALE_GPU
#define BLOCKSCALE_PACKED_1(name, op, format)                  \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a) { \
    uint32_t d;                                                \
    asm(op "." #format "x2 %0, %1;" : "=r"(d) : "r"(a));       \
    return d;                                                  \
  }
#define BLOCKSCALE_PACKED_2(name, op, format)                              \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a, uint32_t b) { \
    uint32_t d;                                                            \
    asm(op "." #format "x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));       \
    return d;                                                              \
  }
#define BLOCKSCALE_PACKED_3(name, op, format)                                          \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a, uint32_t b, uint32_t c) { \
    uint32_t d;                                                                        \
    asm(op "." #format "x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));       \
    return d;                                                                          \
  }
#else
#define BLOCKSCALE_PACKED_1(name, op, format)                  \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a) { \
    return emulator::meaning::name##_x2<Format::format>(a);    \
  }
#define BLOCKSCALE_PACKED_2(name, op, format)                              \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a, uint32_t b) { \
    return emulator::meaning::name##_x2<Format::format>(a, b);             \
  }
#define BLOCKSCALE_PACKED_3(name, op, format)                                          \
  BLOCKSCALE_DEVICE uint32_t name##_##format##x2(uint32_t a, uint32_t b, uint32_t c) { \
    return emulator::meaning::name##_x2<Format::format>(a, b, c);                      \
  }
#endif

// fma_rn_f16x2(a, b, c), fma_rn_bf16x2(a, b, c), add_rn_f16x2(a, b), ...: each half by itself.
BLOCKSCALE_PACKED_3(fma_rn, "fma.rn", f16)
BLOCKSCALE_PACKED_3(fma_rn, "fma.rn", bf16)
BLOCKSCALE_PACKED_2(add_rn, "add.rn", f16)
BLOCKSCALE_PACKED_2(add_rn, "add.rn", bf16)
BLOCKSCALE_PACKED_2(sub_rn, "sub.rn", f16)
BLOCKSCALE_PACKED_2(sub_rn, "sub.rn", bf16)
BLOCKSCALE_PACKED_2(mul_rn, "mul.rn", f16)
BLOCKSCALE_PACKED_2(mul_rn, "mul.rn", bf16)

// Of a number and a NaN the number; +0 above -0.
BLOCKSCALE_PACKED_2(max, "max", f16)
BLOCKSCALE_PACKED_2(max, "max", bf16)
BLOCKSCALE_PACKED_2(min, "min", f16)
BLOCKSCALE_PACKED_2(min, "min", bf16)

// NaN where either is a NaN.
BLOCKSCALE_PACKED_2(max_nan, "max.NaN", f16)
BLOCKSCALE_PACKED_2(max_nan, "max.NaN", bf16)
BLOCKSCALE_PACKED_2(min_nan, "min.NaN", f16)
BLOCKSCALE_PACKED_2(min_nan, "min.NaN", bf16)

BLOCKSCALE_PACKED_1(abs, "abs", f16)
BLOCKSCALE_PACKED_1(abs, "abs", bf16)
BLOCKSCALE_PACKED_1(neg, "neg", f16)
BLOCKSCALE_PACKED_1(neg, "neg", bf16)

#undef BLOCKSCALE_PACKED_1
#undef BLOCKSCALE_PACKED_2
#undef BLOCKSCALE_PACKED_3

}  // namespace blockscale::ptx
