// Codes of four bits times the scales of their blocks, as pairs of bf16 or f16 for mma.sync.
//
// A code's exponent and mantissa, put where bf16 or f16 have the lowest bits of the one and the
// highest of the other, are its value times kE2m1Unit, exactly, subnormal numbers included. So one
// product brings it to its value, times a scale or not: the factors below.
#pragma once

#include "core/format.h"
#include "device/kernel.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"

namespace blockscale::decoding {

/// Both halves of a word alike.
BLOCKSCALE_HD constexpr uint32_t twice(uint32_t half) {
  return half << 16 | half;
}

template <Format kForm>
BLOCKSCALE_DEVICE uint32_t multiply_pair(uint32_t a, uint32_t b) {
  if constexpr (kForm == Format::bf16) {
    return ptx::mul_rn_bf16x2(a, b);
  } else {
    return ptx::mul_rn_f16x2(a, b);
  }
}

template <Format kForm>
inline constexpr float kE2m1Unit = kForm == Format::bf16 ? 0x1p-126f : 0x1p-14f;

/// The factor that gives values as they are.
template <Format kForm>
inline constexpr uint32_t kPlainFactor = twice(encode<kForm>(1 / kE2m1Unit<kForm>));

/// The values of eight codes times kE2m1Unit: pair i has codes i and i + 4.
template <Format kForm>
BLOCKSCALE_DEVICE void spread_e2m1(uint32_t (&pairs)[4], uint32_t codes) {
  if constexpr (kForm == Format::bf16) {
    // One product moves the sign to bit 15 and the rest to bits 8 to 6.
    const uint32_t upper = codes >> 8;
    pairs[0] = ((codes & 0x000F000Fu) * 0x1040u) & 0x81C081C0u;
    pairs[1] = ((codes & 0x00F000F0u) * 0x0104u) & 0x81C081C0u;
    pairs[2] = ((upper & 0x000F000Fu) * 0x1040u) & 0x81C081C0u;
    pairs[3] = ((upper & 0x00F000F0u) * 0x0104u) & 0x81C081C0u;
  } else {
    // The rest goes to bits 11 to 9, where one product would carry into the sign.
    pairs[0] = ((codes << 12) & 0x80008000u) | ((codes & 0x00070007u) << 9);
    pairs[1] = ((codes << 8) & 0x80008000u) | ((codes & 0x00700070u) << 5);
    pairs[2] = ((codes << 4) & 0x80008000u) | ((codes & 0x07000700u) << 1);
    pairs[3] = (codes & 0x80008000u) | ((codes >> 3) & 0x0E000E00u);
  }
}

/// What is left of NVFP4's numbers behind the factor of their scale: value = 2^7 * number, since
/// neither bf16 nor f16 has 448 / kE2m1Unit.
inline constexpr float kUe4m3Left = 0x1p7f;

/// Factors of two scales in ue4m3, bytes of `scales`: every code times every scale, over
/// kUe4m3Left, is exact in either form. NaN gives NaN.
template <Format kForm>
BLOCKSCALE_DEVICE void ue4m3_factors(uint32_t (&factors)[2], uint32_t scales) {
  uint32_t pair = ptx::cvt_rn_f16x2_e4m3x2(static_cast<uint16_t>(scales & 0x7F7Fu));
  if constexpr (kForm == Format::bf16) {
    pair = ptx::cvt_rn_bf16x2_f32(ptx::cvt_f32_f16(static_cast<uint16_t>(pair >> 16)),
                                  ptx::cvt_f32_f16(static_cast<uint16_t>(pair)));
  }
  constexpr uint32_t kGrowth = twice(encode<kForm>(1 / (kE2m1Unit<kForm> * kUe4m3Left)));
  pair = multiply_pair<kForm>(pair, kGrowth);
  factors[0] = ptx::prmt(pair, 0, 0x1010);
  factors[1] = ptx::prmt(pair, 0, 0x3232);
}

/// Whether ue8m0_factor has this scale: 2^-127 to 2, and in f16, of which every code has to be a
/// number, 2^-23 to 2.
template <Format kForm>
BLOCKSCALE_DEVICE bool has_ue8m0_factor(uint32_t scale) {
  constexpr uint32_t kLeast = kForm == Format::bf16 ? 0 : 104, kMost = 128;
  return scale - kLeast <= kMost - kLeast;
}

/// The factor of a scale in ue8m0: every code times it is exact.
template <Format kForm>
BLOCKSCALE_DEVICE uint32_t ue8m0_factor(uint32_t scale) {
  // The exponent's field of 2^(scale - 127) / kE2m1Unit.
  if constexpr (kForm == Format::bf16) {
    return twice((scale + 126) << 7);
  } else {
    return twice((scale - 98) << 10);
  }
}

}  // namespace blockscale::decoding
