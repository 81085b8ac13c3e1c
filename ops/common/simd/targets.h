// The instruction sets that SIMD code is compiled for, chosen at run time. Include this before any
// Highway header, in place of <hwy/highway.h>'s own choice, so that every operation has the same.
//
// x86: SSE4, AVX2 and AVX3 (AVX-512 F, BW, CD, DQ, VL); Arm: NEON. Anything else runs the scalar
// code. Under HWY_SCALAR there are no vectors: code guards its loops with HWY_TARGET != HWY_SCALAR.
#pragma once

#ifdef HWY_DISABLED_TARGETS
#error "include ops/common/simd/targets.h before any Highway header"
#endif
#define HWY_DISABLED_TARGETS \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_NEON))
