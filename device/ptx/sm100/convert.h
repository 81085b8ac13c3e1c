// Conversions that Blackwell (sm_100f, sm_120f) has and Hopper lacks: FP4, FP6 and ue8m0. PTX ISA
// "cvt". ptxas refuses them for sm_90a. Where two values are packed, `hi` goes to the upper half.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#include "device/emulator/meaning/convert.h"
#endif

namespace blockscale::ptx {

/// To nearest even, saturating; NaN to +6. Two codes in a byte, `lo` in the low nibble.
BLOCKSCALE_DEVICE uint8_t cvt_rn_satfinite_e2m1x2_f32(
    float hi, float lo, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("{\n .reg .b8 t;\n cvt.rn.satfinite.e2m1x2.f32 t, %1, %2;\n cvt.u32.u8 %0, t;\n}"
      : "=r"(d)
      : "f"(hi), "f"(lo));
  return static_cast<uint8_t>(d);
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_satfinite_e2m1x2_f32", at);
  return emulator::meaning::pack_4<Format::e2m1>(hi, lo);
#endif
}

/// To nearest even, saturating; NaN to +7.5. One code in the low 6 bits of each byte.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e2m3x2_f32(
    float hi, float lo, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint16_t d;
  asm("cvt.rn.satfinite.e2m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_satfinite_e2m3x2_f32", at);
  return emulator::meaning::pack_8<Format::e2m3>(hi, lo);
#endif
}

/// To nearest even, saturating; NaN to +28. One code in the low 6 bits of each byte.
BLOCKSCALE_DEVICE uint16_t cvt_rn_satfinite_e3m2x2_f32(
    float hi, float lo, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint16_t d;
  asm("cvt.rn.satfinite.e3m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_satfinite_e3m2x2_f32", at);
  return emulator::meaning::pack_8<Format::e3m2>(hi, lo);
#endif
}

/// |value| rounded down to a power of two, saturating; NaN to 0xFF.
BLOCKSCALE_DEVICE uint16_t cvt_rz_satfinite_ue8m0x2_f32(
    float hi, float lo, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint16_t d;
  asm("cvt.rz.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rz_satfinite_ue8m0x2_f32", at);
  return emulator::meaning::pack_ue8m0(hi, lo, ScaleRounding::toward_zero);
#endif
}

/// |value| rounded up to a power of two, saturating; NaN to 0xFF.
BLOCKSCALE_DEVICE uint16_t cvt_rp_satfinite_ue8m0x2_f32(
    float hi, float lo, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint16_t d;
  asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rp_satfinite_ue8m0x2_f32", at);
  return emulator::meaning::pack_ue8m0(hi, lo, ScaleRounding::up);
#endif
}

/// Two e2m1 in a byte to two f16, exact.
BLOCKSCALE_DEVICE uint32_t
cvt_rn_f16x2_e2m1x2(uint8_t a, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("{\n .reg .b8 t;\n cvt.u8.u32 t, %1;\n cvt.rn.f16x2.e2m1x2 %0, t;\n}"
      : "=r"(d)
      : "r"(static_cast<uint32_t>(a)));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_f16x2_e2m1x2", at);
  return emulator::meaning::widen_f16x2<Format::e2m1>(
      static_cast<uint16_t>((a & 0xFu) | ((a & 0xF0u) << 4)));
#endif
}

/// Two e2m3 to two f16, exact.
BLOCKSCALE_DEVICE uint32_t
cvt_rn_f16x2_e2m3x2(uint16_t a, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("cvt.rn.f16x2.e2m3x2 %0, %1;" : "=r"(d) : "h"(a));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_f16x2_e2m3x2", at);
  return emulator::meaning::widen_f16x2<Format::e2m3>(a);
#endif
}

/// Two e3m2 to two f16, exact.
BLOCKSCALE_DEVICE uint32_t
cvt_rn_f16x2_e3m2x2(uint16_t a, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("cvt.rn.f16x2.e3m2x2 %0, %1;" : "=r"(d) : "h"(a));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_f16x2_e3m2x2", at);
  return emulator::meaning::widen_f16x2<Format::e3m2>(a);
#endif
}

/// Two ue8m0 to two bf16, exact; NaN to 0x7FFF.
BLOCKSCALE_DEVICE uint32_t
cvt_rn_bf16x2_ue8m0x2(uint16_t a, [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("cvt.rn.bf16x2.ue8m0x2 %0, %1;" : "=r"(d) : "h"(a));
  return d;
#else
  emulator::require(emulator::Feature::narrow_conversions, "cvt_rn_bf16x2_ue8m0x2", at);
  return emulator::meaning::bf16x2_of_ue8m0x2(a);
#endif
}

}  // namespace blockscale::ptx
