// Conversions of sm_90. PTX ISA "cvt". Where two values are packed, `hi` goes to the upper half.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/meaning/convert.h"
#endif

namespace blockscale::ptx {

#if BLOCKSCALE_GPU
#define BLOCKSCALE_CVT(op, To, to, from, value)        \
  To d;                                                \
  asm("cvt." op " %0, %1;" : "=" to(d) : from(value)); \
  return d;
#define BLOCKSCALE_CVT_PAIR(op, To, to)                         \
  To d;                                                         \
  asm("cvt." op " %0, %1, %2;" : "=" to(d) : "f"(hi), "f"(lo)); \
  return d;
#endif

/// To nearest even; beyond the largest finite value, and infinity, to it; NaN to 0x7F.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e4m3x2_f32(float hi, float lo) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT_PAIR("rn.satfinite.e4m3x2.f32", uint16_t, "h")
#else
  return emulator::meaning::pack_8<Format::e4m3>(hi, lo);
#endif
}

/// To nearest even; beyond the largest finite value, and infinity, to it; NaN to 0x7F.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e5m2x2_f32(float hi, float lo) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT_PAIR("rn.satfinite.e5m2x2.f32", uint16_t, "h")
#else
  return emulator::meaning::pack_8<Format::e5m2>(hi, lo);
#endif
}

/// Two f16 to two e4m3, saturating as from f32.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e4m3x2_f16x2(uint32_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.satfinite.e4m3x2.f16x2", uint16_t, "h", "r", a)
#else
  return emulator::meaning::narrow_f16x2<Format::e4m3>(a);
#endif
}

/// Two f16 to two e5m2, saturating as from f32.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e5m2x2_f16x2(uint32_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.satfinite.e5m2x2.f16x2", uint16_t, "h", "r", a)
#else
  return emulator::meaning::narrow_f16x2<Format::e5m2>(a);
#endif
}

/// Two e4m3 to two f16, exact; NaN to 0x7FFF.
BLOCKSCALE_DEVICE uint32_t cvt_rn_f16x2_e4m3x2(uint16_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.f16x2.e4m3x2", uint32_t, "r", "h", a)
#else
  return emulator::meaning::widen_f16x2<Format::e4m3>(a);
#endif
}

/// Two e5m2 to two f16, exact; NaN to 0x7FFF.
BLOCKSCALE_DEVICE uint32_t cvt_rn_f16x2_e5m2x2(uint16_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.f16x2.e5m2x2", uint32_t, "r", "h", a)
#else
  return emulator::meaning::widen_f16x2<Format::e5m2>(a);
#endif
}

/// To nearest even, beyond the largest finite value to infinity; NaN to 0x7FFF.
BLOCKSCALE_DEVICE uint32_t cvt_rn_f16x2_f32(float hi, float lo) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT_PAIR("rn.f16x2.f32", uint32_t, "r")
#else
  return emulator::meaning::pack_16<Format::f16>(hi, lo);
#endif
}

/// To nearest even, beyond the largest finite value to infinity; NaN to 0x7FFF.
BLOCKSCALE_DEVICE uint32_t cvt_rn_bf16x2_f32(float hi, float lo) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT_PAIR("rn.bf16x2.f32", uint32_t, "r")
#else
  return emulator::meaning::pack_16<Format::bf16>(hi, lo);
#endif
}

/// As cvt_rn_f16x2_f32, of one value.
BLOCKSCALE_DEVICE uint16_t cvt_rn_f16_f32(float a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.f16.f32", uint16_t, "h", "f", a)
#else
  return emulator::meaning::to_16<Format::f16>(a);
#endif
}

/// As cvt_rn_bf16x2_f32, of one value.
BLOCKSCALE_DEVICE uint16_t cvt_rn_bf16_f32(float a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.bf16.f32", uint16_t, "h", "f", a)
#else
  return emulator::meaning::to_16<Format::bf16>(a);
#endif
}

/// Exact, subnormals included; NaN to 0x7FFFFFFF.
BLOCKSCALE_DEVICE float cvt_f32_f16(uint16_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("f32.f16", float, "f", "h", a)
#else
  return emulator::meaning::f32_of_f16(a);
#endif
}

/// Exact: the bits of `a` above 16 zeros, NaNs included.
BLOCKSCALE_DEVICE float cvt_f32_bf16(uint16_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("f32.bf16", float, "f", "h", a)
#else
  return emulator::meaning::f32_of_bf16(a);
#endif
}

/// To the nearest integer, ties to even; clamped to the range of int32_t; NaN to 0.
BLOCKSCALE_DEVICE int32_t cvt_rni_s32_f32(float a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rni.s32.f32", int32_t, "r", "f", a)
#else
  return emulator::meaning::nearest_s32(a);
#endif
}

/// Towards zero; clamped to the range of uint32_t; NaN to 0.
BLOCKSCALE_DEVICE uint32_t cvt_rzi_u32_f32(float a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rzi.u32.f32", uint32_t, "r", "f", a)
#else
  return emulator::meaning::truncate_u32(a);
#endif
}

/// To nearest even.
BLOCKSCALE_DEVICE float cvt_rn_f32_s32(int32_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.f32.s32", float, "f", "r", a)
#else
  return static_cast<float>(a);
#endif
}

/// To nearest even.
BLOCKSCALE_DEVICE float cvt_rn_f32_u32(uint32_t a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rn.f32.u32", float, "f", "r", a)
#else
  return static_cast<float>(a);
#endif
}

/// To the nearest integral value in f32, ties to even.
BLOCKSCALE_DEVICE float cvt_rni_f32_f32(float a) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_CVT("rni.f32.f32", float, "f", "f", a)
#else
  return emulator::meaning::nearest_integral(a);
#endif
}

#if BLOCKSCALE_GPU
#undef BLOCKSCALE_CVT
#undef BLOCKSCALE_CVT_PAIR
#endif

}  // namespace blockscale::ptx
