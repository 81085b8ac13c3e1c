// The instruction sets that SIMD code is compiled for, chosen at run time. Include this before any
// Highway header, in place of <hwy/highway.h>'s own choice, so that every operation has the same.
//
// x86: SSE4, AVX2 and AVX3 (AVX-512 F, BW, CD, DQ, VL); Arm: NEON. Anything else runs the scalar
// code. Under HWY_SCALAR there are no vectors: code guards its loops with HWY_TARGET != HWY_SCALAR.
//
// A file that gains by it defines BLOCKSCALE_WANT_AVX3_DL first: AVX3 with VBMI, VBMI2, VNNI and
// BITALG (Ice Lake, Zen 4). Where it is not compiled, such a CPU runs AVX3. Highway 1.0.3's
// TruncateTo from 32 to 8 bits is wrong there.
#pragma once

#ifdef HWY_DISABLED_TARGETS
#error "include ops/common/simd/targets.h before any Highway header"
#endif
#ifdef BLOCKSCALE_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL  // for Highway before 1.3, which always has it
#define BLOCKSCALE_AVX3_DL HWY_AVX3_DL
#else
#define BLOCKSCALE_AVX3_DL 0
#endif
#define HWY_DISABLED_TARGETS \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | BLOCKSCALE_AVX3_DL | HWY_NEON))
