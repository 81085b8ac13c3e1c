// How one number is stored: the element and scale formats, their characteristics and conversions.
//
// Source of the rules: OCP Microscaling Formats (MX) v1.0, OCP 8-bit Floating Point v1.0, and the
// CUDA host conversions (cuda_fp8.h, cuda_fp6.h, cuda_fp4.h), which decide where those are silent.
// See docs/numerics.md. Every rounding is to nearest, ties to even, and happens once.
#pragma once

#include "core/config.h"

namespace blockscale {

/// Storage format of one number.
enum class Format : uint8_t {
  e2m1,   // 4 bits: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives
  e2m3,   // 6 bits, largest 7.5
  e3m2,   // 6 bits, largest 28
  e4m3,   // 8 bits, largest 448, NaN 0x7F, no infinity ("fn")
  e5m2,   // 8 bits, largest 57344, IEEE-like infinities and NaNs
  ue8m0,  // 8 bits, no sign: 2^(code - 127), NaN 0xFF
  ue4m3,  // e4m3 without its sign, for NVFP4 block scales
  f32,
  f16,
  bf16,
};
inline constexpr int kFormatCount = 10;

/// Characteristics of a format.
struct FormatTraits {
  const char* name;
  int bits;  // storage bits of one number
  int exponent_bits;
  int mantissa_bits;  // explicit ones
  int bias;           // value = 1.mantissa * 2^(exponent field - bias)
  int max_exponent;   // emax: exponent of the largest finite value
  uint32_t max_code;  // code of the largest finite value
  uint32_t nan_code;  // canonical NaN, or 0 where the format has none
  float max;          // largest finite value
  bool is_signed;
  bool has_infinity;
};

BLOCKSCALE_TABLE FormatTraits kFormatTraits[kFormatCount] = {
    {"e2m1", 4, 2, 1, 1, 2, 0x7, 0, 6.0f, true, false},
    {"e2m3", 6, 2, 3, 1, 2, 0x1F, 0, 7.5f, true, false},
    {"e3m2", 6, 3, 2, 3, 4, 0x1F, 0, 28.0f, true, false},
    {"e4m3", 8, 4, 3, 7, 8, 0x7E, 0x7F, 448.0f, true, false},
    {"e5m2", 8, 5, 2, 15, 15, 0x7B, 0x7F, 57344.0f, true, true},
    {"ue8m0", 8, 8, 0, 127, 127, 0xFE, 0xFF, 0x1p127f, false, false},
    {"ue4m3", 8, 4, 3, 7, 8, 0x7E, 0x7F, 448.0f, false, false},
    {"f32", 32, 8, 23, 127, 127, 0x7F7FFFFF, 0x7FC00000, 0x1.fffffep127f, true, true},
    {"f16", 16, 5, 10, 15, 15, 0x7BFF, 0x7E00, 65504.0f, true, true},
    {"bf16", 16, 8, 7, 127, 127, 0x7F7F, 0x7FC0, 0x1.fep127f, true, true},
};

BLOCKSCALE_HD constexpr FormatTraits format_traits(Format format) {
  return kFormatTraits[static_cast<int>(format)];
}

/// Whole bytes of one number: 1 for those of less than 8 bits.
BLOCKSCALE_HD constexpr int64_t storage_bytes(Format format) {
  return (format_traits(format).bits + 7) / 8;
}

/// A format as a type, for what visit_format calls.
template <Format F>
struct FormatTag {
  static constexpr Format value = F;
};

/// visitor(FormatTag<format>{}): crosses from the value of a format to its type.
template <class Visitor>
BLOCKSCALE_HD constexpr auto visit_format(Format format, const Visitor& visitor) {
  switch (format) {
    case Format::e2m1: return visitor(FormatTag<Format::e2m1>{});
    case Format::e2m3: return visitor(FormatTag<Format::e2m3>{});
    case Format::e3m2: return visitor(FormatTag<Format::e3m2>{});
    case Format::e4m3: return visitor(FormatTag<Format::e4m3>{});
    case Format::e5m2: return visitor(FormatTag<Format::e5m2>{});
    case Format::ue8m0: return visitor(FormatTag<Format::ue8m0>{});
    case Format::ue4m3: return visitor(FormatTag<Format::ue4m3>{});
    case Format::f16: return visitor(FormatTag<Format::f16>{});
    case Format::bf16: return visitor(FormatTag<Format::bf16>{});
    case Format::f32: break;
  }
  return visitor(FormatTag<Format::f32>{});
}

/// What a finite value beyond the largest finite one, or an infinity, becomes.
enum class Overflow : uint8_t {
  saturate,   // the largest finite value of its sign (CUDA's SATFINITE)
  propagate,  // infinity, or NaN where the format has none (CUDA's NOSAT). Formats with neither
              // (e2m1, e2m3, e3m2) saturate all the same.
};

namespace detail {

inline constexpr uint32_t kF32SignMask = 0x80000000u;
inline constexpr uint32_t kF32MagnitudeMask = 0x7FFFFFFFu;
inline constexpr uint32_t kF32Infinity = 0x7F800000u;

/// Drops the low `shift` bits of `value`, rounding to nearest even. value <= 2^24, 0 <= shift.
BLOCKSCALE_HD constexpr uint32_t shift_right_round_even(uint32_t value, int shift) {
  if (shift <= 0) return value;
  if (shift > 25) return 0;  // less than half of the last place
  const uint32_t half_minus_one = (1u << (shift - 1)) - 1;
  return (value + half_minus_one + ((value >> shift) & 1u)) >> shift;
}

/// Code of a non-negative f32 (given by its bits; not NaN) rounded into a format, as if its
/// exponent range went on upwards: the result may exceed max_code, and does for infinity.
BLOCKSCALE_HD constexpr uint32_t round_magnitude(uint32_t magnitude, const FormatTraits& t) {
  const int field = static_cast<int>(magnitude >> 23);
  const uint32_t fraction = magnitude & 0x007FFFFFu;
  const int exponent = (field == 0 ? 1 : field) - 127;
  const uint32_t significand = field == 0 ? fraction : fraction | 0x00800000u;
  const int drop = 23 - t.mantissa_bits;
  const int min_exponent = 1 - t.bias;
  if (exponent < min_exponent) {
    return shift_right_round_even(significand, drop + (min_exponent - exponent));
  }
  // The leading bit of the rounded significand adds one to the exponent field, carries included.
  const uint32_t rounded = shift_right_round_even(significand, drop);
  const uint32_t base = static_cast<uint32_t>(exponent - min_exponent) << t.mantissa_bits;
  return base + rounded;
}

}  // namespace detail

/// Nearest code of `x` in `F`, ties to even; NaN becomes the format's positive NaN, or +max where
/// it has none. For ue8m0 use `encode_ue8m0`, whose rounding is directed.
template <Format F>
BLOCKSCALE_HD constexpr uint32_t encode(float x, Overflow overflow = Overflow::saturate) {
  static_assert(F != Format::ue8m0, "ue8m0 has directed roundings: use encode_ue8m0");
  constexpr FormatTraits t = kFormatTraits[static_cast<int>(F)];
  const uint32_t bits = bit_cast<uint32_t>(x);
  if constexpr (F == Format::f32) {
    return bits;
  } else {
    constexpr bool kHasNan = t.nan_code != 0;
    const uint32_t magnitude = bits & detail::kF32MagnitudeMask;
    if (magnitude > detail::kF32Infinity) return kHasNan ? t.nan_code : t.max_code;
    if (!t.is_signed && (bits & detail::kF32SignMask) != 0) return 0;  // no negatives: zero
    uint32_t code = detail::round_magnitude(magnitude, t);  // infinity lies beyond max_code
    if (code > t.max_code) {
      constexpr bool kSaturatesAlways = !kHasNan && !t.has_infinity;
      const bool saturates = kSaturatesAlways || overflow == Overflow::saturate;
      code = saturates ? t.max_code : t.max_code + 1;  // the code of infinity, or of NaN
    }
    const uint32_t sign = t.is_signed ? (bits >> 31) << (t.bits - 1) : 0;
    return sign | code;
  }
}

/// Value of a code of `F`, exact in f32 (every code of every format is). Bits above the format's
/// width are ignored.
template <Format F>
BLOCKSCALE_HD constexpr float decode(uint32_t code) {
  constexpr FormatTraits t = kFormatTraits[static_cast<int>(F)];
  if constexpr (F == Format::f32) {
    return bit_cast<float>(code);
  } else if constexpr (F == Format::ue8m0) {
    const uint32_t byte = code & 0xFFu;
    if (byte == 0xFFu) return bit_cast<float>(0x7FC00000u);
    return bit_cast<float>(byte == 0 ? 0x00400000u : byte << 23);
  } else {
    const int magnitude_bits = t.exponent_bits + t.mantissa_bits;
    const uint32_t magnitude = code & ((1u << magnitude_bits) - 1u);
    const uint32_t sign = t.is_signed ? ((code >> (t.bits - 1)) & 1u) << 31 : 0;
    if (magnitude > t.max_code) {
      const bool infinite = t.has_infinity && magnitude == t.max_code + 1;
      const uint32_t payload = infinite ? 0 : 0x00400000u;
      return bit_cast<float>(sign | detail::kF32Infinity | payload);
    }
    const uint32_t field = magnitude >> t.mantissa_bits;
    const uint32_t mantissa = magnitude & ((1u << t.mantissa_bits) - 1u);
    if (field != 0) {
      const uint32_t exponent = field + static_cast<uint32_t>(127 - t.bias);
      return bit_cast<float>(sign | exponent << 23 | mantissa << (23 - t.mantissa_bits));
    }
    // Subnormal: mantissa * 2^(1 - bias - mantissa_bits). bf16's are subnormal in f32 too.
    if constexpr (F == Format::bf16) return bit_cast<float>(sign | mantissa << 16);
    const uint32_t ulp_exponent = static_cast<uint32_t>(127 + 1 - t.bias - t.mantissa_bits);
    const float value = static_cast<float>(mantissa) * bit_cast<float>(ulp_exponent << 23);
    return bit_cast<float>(sign | bit_cast<uint32_t>(value));
  }
}

namespace detail {

struct DecodeVisitor {
  uint32_t code;
  template <Format F>
  BLOCKSCALE_HD constexpr float operator()(FormatTag<F>) const {
    return decode<F>(code);
  }
};

struct EncodeVisitor {
  float x;
  Overflow overflow;
  template <Format F>
  BLOCKSCALE_HD constexpr uint32_t operator()(FormatTag<F>) const {
    if constexpr (F == Format::ue8m0) {
      return kFormatTraits[static_cast<int>(F)].nan_code;
    } else {
      return encode<F>(x, overflow);
    }
  }
};

}  // namespace detail

/// `decode` for a format known at run time.
BLOCKSCALE_HD constexpr float decode(Format format, uint32_t code) {
  return visit_format(format, detail::DecodeVisitor{code});
}

/// `encode` for a format known at run time. ue8m0 has no one rounding and gives its NaN.
BLOCKSCALE_HD constexpr uint32_t encode(Format format, float x,
                                        Overflow overflow = Overflow::saturate) {
  return visit_format(format, detail::EncodeVisitor{x, overflow});
}

/// Code in `To` nearest to a code of `From` (f16, bf16 or a narrower one): exact widening to f32,
/// then one rounding.
template <Format To, Format From>
BLOCKSCALE_HD constexpr uint32_t convert(uint32_t code, Overflow overflow = Overflow::saturate) {
  return encode<To>(decode<From>(code), overflow);
}

/// f16 and bf16 as arithmetic has them: to nearest even, to infinity beyond the largest finite
/// value. NaN becomes the canonical one (0x7E00, 0x7FC0), without its sign and payload.
BLOCKSCALE_HD constexpr uint16_t f32_to_f16(float x) {
  return static_cast<uint16_t>(encode<Format::f16>(x, Overflow::propagate));
}
BLOCKSCALE_HD constexpr uint16_t f32_to_bf16(float x) {
  return static_cast<uint16_t>(encode<Format::bf16>(x, Overflow::propagate));
}
BLOCKSCALE_HD constexpr float f16_to_f32(uint16_t bits) {
  return decode<Format::f16>(bits);
}
BLOCKSCALE_HD constexpr float bf16_to_f32(uint16_t bits) {
  return decode<Format::bf16>(bits);
}

/// Directed roundings of ue8m0.
enum class ScaleRounding : uint8_t { toward_zero, up };

/// Power of two at or below (`toward_zero`) or at or above (`up`) |x| as a ue8m0 code; NaN gives
/// 0xFF, zero and everything below 2^-127 give 0. Saturates at 2^127 (0xFE), or gives NaN with
/// `Overflow::propagate`.
BLOCKSCALE_HD constexpr uint32_t encode_ue8m0(float x, ScaleRounding rounding,
                                              Overflow overflow = Overflow::saturate) {
  const uint32_t magnitude = bit_cast<uint32_t>(x) & detail::kF32MagnitudeMask;
  if (magnitude > detail::kF32Infinity) return 0xFF;
  const uint32_t field = magnitude >> 23;
  const uint32_t fraction = magnitude & 0x007FFFFFu;
  uint32_t code = field;
  if (rounding == ScaleRounding::up) {
    // Field 0 holds subnormals: up to 2^-127 they round to code 0, above it to 2^-126.
    code += field == 0 ? (fraction > 0x00400000u ? 1u : 0u) : (fraction != 0 ? 1u : 0u);
  }
  if (code > 0xFE) return overflow == Overflow::saturate ? 0xFE : 0xFF;
  return code;
}

/// The largest product of an NVFP4 scale and a code: 448 times 6. A tensor scale is this over amax.
inline constexpr float kLargestNvfp4Product =
    format_traits(Format::ue4m3).max * format_traits(Format::e2m1).max;

}  // namespace blockscale
