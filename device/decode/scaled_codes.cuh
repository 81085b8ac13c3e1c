// Codes of four and of eight bits times the scales of their blocks, as pairs of bf16 or f16 for
// mma.sync: one product brings what codes are spread to to their values, times a scale or not. Its
// factors are below.
//
// The exponent and mantissa of four bits, put where bf16 or f16 have the lowest bits of the one and
// the highest of the other, are the code's value times kE2m1Unit, exactly, subnormal numbers
// included.
#pragma once

#include "core/format.h"
#include "device/decode/codes.cuh"
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
template <Format kForm, Format kElement = Format::e2m1>
inline constexpr uint32_t kPlainFactor =
    twice(encode<kForm>(kElement == Format::e2m1 ? 1 / kE2m1Unit<kForm> : 1.0f));

/// The values of four of a word's codes times kE2m1Unit: of 0 and 4, and of 2 and 6.
template <Format kForm>
BLOCKSCALE_DEVICE void spread_even_e2m1(uint32_t (&pairs)[2], uint32_t codes) {
  if constexpr (kForm == Format::bf16) {
    // One product moves the sign to bit 15 and the rest to bits 8 to 6.
    pairs[0] = ((codes & 0x000F000Fu) * 0x1040u) & 0x81C081C0u;
    pairs[1] = ((codes >> 8 & 0x000F000Fu) * 0x1040u) & 0x81C081C0u;
  } else {
    // The rest goes to bits 11 to 9, where one product would carry into the sign.
    pairs[0] = ((codes << 12) & 0x80008000u) | ((codes & 0x00070007u) << 9);
    pairs[1] = ((codes << 4) & 0x80008000u) | ((codes & 0x07000700u) << 1);
  }
}

/// Of all eight: pair i has codes i and i + 4.
template <Format kForm>
BLOCKSCALE_DEVICE void spread_e2m1(uint32_t (&pairs)[4], uint32_t codes) {
  uint32_t even[2];
  spread_even_e2m1<kForm>(even, codes);
  pairs[0] = even[0];
  pairs[2] = even[1];
  if constexpr (kForm == Format::bf16) {
    pairs[1] = ((codes & 0x00F000F0u) * 0x0104u) & 0x81C081C0u;
    pairs[3] = ((codes >> 8 & 0x00F000F0u) * 0x0104u) & 0x81C081C0u;
  } else {
    pairs[1] = ((codes << 8) & 0x80008000u) | ((codes & 0x00700070u) << 5);
    pairs[3] = (codes & 0x80008000u) | ((codes >> 3) & 0x0E000E00u);
  }
}

/// The pairs that a factor is for. Of eight bits pair i has codes 2 i and 2 i + 1, at their values.
template <Format kForm, Format kElement>
BLOCKSCALE_DEVICE void spread(uint32_t (&pairs)[4], const Codes<kElement, 8>& codes) {
  if constexpr (kElement == Format::e2m1) {
    spread_e2m1<kForm>(pairs, codes.word[0]);
  } else {
    widen_codes<kForm>(pairs, codes);
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

/// A scale in ue8m0, without a branch: its exponent field, and half of 2^-126, or NaN.
BLOCKSCALE_DEVICE float ue8m0_value(uint32_t scale) {
  return bit_cast<float>(scale << 23 | uint32_t{scale - 1 >= 254} << 22);
}

/// Scales in ue8m0 that have a factor: those with which every code is exact in a form.
struct Ue8m0Factors {
  uint32_t least, most;
  uint32_t field;  // added to a scale: the factor's exponent field
  float left;      // of every number behind its factor: value = left * number
};
BLOCKSCALE_HD constexpr Ue8m0Factors ue8m0_factors(Format form, Format element) {
  // The field is that of 2^(scale - 127) over kE2m1Unit, of eight bits over `left`.
  if (element == Format::e2m1) {
    return form == Format::bf16 ? Ue8m0Factors{0, 128, 126, 1} : Ue8m0Factors{104, 128, 0u - 98, 1};
  }
  if (form == Format::bf16) return {17, 239, 0, 1};
  // f16 has few more exponents than codes have. So blocks have a factor whose largest number, as
  // quantizers choose their scale, is 2^-16 to 56; of e5m2 2^-11 to 0.2.
  return element == Format::e4m3 ? Ue8m0Factors{103, 124, 0u - 102, 0x1p-10f}
                                 : Ue8m0Factors{101, 109, 0u - 94, 0x1p-18f};
}
template <Format kForm, Format kElement = Format::e2m1>
inline constexpr Ue8m0Factors kUe8m0Factors = ue8m0_factors(kForm, kElement);

template <Format kForm, Format kElement = Format::e2m1>
BLOCKSCALE_DEVICE bool has_ue8m0_factor(uint32_t scale) {
  constexpr Ue8m0Factors kHas = kUe8m0Factors<kForm, kElement>;
  return scale - kHas.least <= kHas.most - kHas.least;
}

/// The factor of a scale that has one; of another it is any number.
template <Format kForm, Format kElement = Format::e2m1>
BLOCKSCALE_DEVICE uint32_t ue8m0_factor(uint32_t scale) {
  return twice((scale + kUe8m0Factors<kForm, kElement>.field)
               << format_traits(kForm).mantissa_bits);
}

}  // namespace blockscale::decoding
