// The scale of a block from its largest magnitude, and what its elements are multiplied with.
// The rules are those of docs/numerics.md; every f32 operation is one step of them.
#pragma once

#include "device/encode/chunk.cuh"
#include "device/encode/scale_matrix.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"

namespace blockscale::encoding {

inline constexpr float kLargestFinite = 0x1.fffffep127f;

/// What `encode_chunk` needs to know of a block.
struct BlockScale {
  uint32_t stored = 0;   // the scale as it is stored: a byte, or the bits of an f32
  float factor = 0;      // mx: 2^-e, nvfp4: S / s, fp8: s
  float reciprocal = 0;  // fp8: 1 / s
  uint32_t keep = ~0u;   // mx, nvfp4: 0 where all codes are 0
  /// An infinity among the elements, or numbers for which the short way of encoding is not exact.
  bool exceptional = false;
};

/// a / kDivisor, correctly rounded where the quotient is a normal number
/// (ops/quantize/test/math_emulated_test.cpp has every significand): a product with the reciprocal,
/// corrected by its remainder.
template <int kDivisor>
BLOCKSCALE_DEVICE float divide_by(float a) {
  constexpr float kReciprocal = 1.0f / kDivisor;
  const float quotient = ptx::mul_rn(a, kReciprocal);
  const float remainder = ptx::fma_rn(quotient, -static_cast<float>(kDivisor), a);
  return ptx::fma_rn(remainder, kReciprocal, quotient);
}

/// x / s, correctly rounded where the remainder of the quotient is exact: r = 1 / s, correctly
/// rounded, gives a quotient that one step corrects (numerics.md, "Exact division").
///
/// The remainder is taken with the opposite sign, so that a quotient of -0 stays -0.
struct Quotient {
  float scale;
  float reciprocal;

  BLOCKSCALE_DEVICE float operator()(float x) const {
    const float quotient = ptx::mul_rn(x, reciprocal);
    const float excess = ptx::fma_rn(quotient, scale, -x);
    return ptx::fma_rn(excess, -reciprocal, quotient);
  }
};

/// `amax`: bits of the largest magnitude in f32, above kInfinityBits where there is a NaN.
template <Format kElement>
BLOCKSCALE_DEVICE BlockScale mx_scale(uint32_t amax, uint32_t exponent_rounding) {
  constexpr int32_t kMaxExponent = format_traits(kElement).max_exponent;
  const uint32_t finite = bit_cast<uint32_t>(finite_magnitude(amax));
  const int32_t wanted = static_cast<int32_t>((finite + exponent_rounding) >> 23) - kMaxExponent;
  const uint32_t byte = wanted > 0 ? static_cast<uint32_t>(wanted) : 0u;
  const bool is_nan = amax > kInfinityBits;
  BlockScale scale;
  scale.stored = is_nan ? 0xFFu : byte;
  scale.factor = bit_cast<float>((254u - byte) << 23);  // byte <= 253: a normal number
  scale.keep = is_nan || amax == 0 ? 0u : ~0u;
  scale.exceptional = amax == kInfinityBits;
  return scale;
}

/// The value of an e4m3 code without a sign.
BLOCKSCALE_DEVICE float e4m3_value(uint32_t code) {
  const uint32_t pair = ptx::cvt_rn_f16x2_e4m3x2(static_cast<uint16_t>(code));
  return ptx::cvt_f32_f16(static_cast<uint16_t>(pair));
}

/// Beyond these quotients of S, or their remainders, may not be normal numbers.
BLOCKSCALE_DEVICE bool is_ordinary_tensor_scale(float tensor_scale) {
  return tensor_scale >= 0x1p-60f && tensor_scale <= 0x1p100f;
}

/// The scale with this e4m3 code, its factor found without the branches of a division.
BLOCKSCALE_DEVICE BlockScale nvfp4_scale_of_code(uint32_t code, float tensor_scale) {
  const float s = e4m3_value(code);
  BlockScale scale;
  scale.stored = code;
  scale.keep = code == 0 ? 0u : ~0u;
  scale.factor = Quotient{s, device::reciprocal_of_normal(s)}(tensor_scale);
  scale.exceptional = !is_ordinary_tensor_scale(tensor_scale);
  return scale;
}

/// From here on a block's scale, before it is rounded, may be exceptional: a given S may be so
/// large that scales saturate, and scaled elements leave e2m1's range by far; so they do where the
/// largest magnitude is infinite or NaN.
inline constexpr float kLargestWanted = 512;

/// kExact: for every input; else a block for which the short way may be wrong, or that holds NaN,
/// is exceptional.
template <bool kExact>
BLOCKSCALE_DEVICE BlockScale nvfp4_scale(uint32_t amax, float tensor_scale) {
  const float finite = kExact ? finite_magnitude(amax) : bit_cast<float>(amax);
  const float sixth = kExact ? ptx::div_rn(finite, 6.0f) : divide_by<6>(finite);
  const float wanted = ptx::mul_rn(sixth, tensor_scale);
  const uint32_t code = ptx::cvt_rn_satfinite_e4m3x2_f32(0.0f, wanted) & 0x7Fu;
  if constexpr (kExact) {
    const bool is_nan = amax > kInfinityBits;
    BlockScale scale;
    scale.stored = is_nan ? 0x7Fu : code;
    scale.keep = is_nan || code == 0 ? 0u : ~0u;
    scale.factor = ptx::min(ptx::div_rn(tensor_scale, e4m3_value(code)), kLargestFinite);
    return scale;
  } else {
    BlockScale scale = nvfp4_scale_of_code(code, tensor_scale);
    // Below that the quotient by 6, or its remainder, may not be a normal number; 0 is well.
    const bool small = amax - 1 < bit_cast<uint32_t>(0x1p-100f) - 1;
    scale.exceptional |= small || !(wanted <= kLargestWanted);
    return scale;
  }
}

/// From this scale on a quotient's remainder is exact (numerics.md: 2^-90, 2^-80 for e5m2).
inline constexpr float kSmallestExactScale = 0x1p-64f;
/// Up to it 1 / s is a normal number.
inline constexpr float kLargestExactScale = 0x1p120f;

/// The scale s is known; elements are at most `amax` (bits, Inf included).
template <Format kElement>
BLOCKSCALE_DEVICE BlockScale known_fp8_scale(float s, uint32_t amax) {
  constexpr float kEnough = static_cast<float>(4 << format_traits(kElement).max_exponent);
  BlockScale scale;
  scale.factor = s;
  scale.reciprocal = device::reciprocal_of_normal(s);
  scale.exceptional = amax >= kInfinityBits || !(s >= kSmallestExactScale) ||
                      !(s <= kLargestExactScale) ||
                      !(bit_cast<float>(amax) <= ptx::mul_rn(s, kEnough));
  return scale;
}

/// The scale of FP8 for a largest magnitude (bits; no NaN).
template <Format kElement>
BLOCKSCALE_DEVICE float fp8_scale(uint32_t amax, const ScaleOptions& options) {
  constexpr int kLargestElement = static_cast<int>(format_traits(kElement).max);
  const float finite = finite_magnitude(amax);
  const float wanted = ptx::max(finite, options.amax_floor);
  // Quotients that are not normal numbers are raised to 2^-126.
  float s = ptx::max(divide_by<kLargestElement>(wanted), 0x1p-126f);
  if (wanted == 0) s = 1.0f;
  if (options.fp8_scale == Fp8Scale::f32) return s;
  return bit_cast<float>((bit_cast<uint32_t>(s) + 0x007FFFFFu) & kInfinityBits);
}

template <Format kElement>
BLOCKSCALE_DEVICE BlockScale fp8_block_scale(uint32_t amax, const ScaleOptions& options) {
  const float s = fp8_scale<kElement>(amax, options);
  BlockScale scale;
  scale.factor = s;  // at least 2^-126, at most 2^127 / 448 up to a power of two
  scale.reciprocal = device::reciprocal_of_normal(s);
  const uint32_t bits = bit_cast<uint32_t>(s);
  scale.stored = options.fp8_scale == Fp8Scale::ue8m0 ? bits >> 23 : bits;
  scale.exceptional = amax >= kInfinityBits || s < kSmallestExactScale;
  return scale;
}

/// The scale of a block from the bits of its amax. kExact as in nvfp4_scale.
template <ScaleRule kRule, Format kElement, bool kExact>
BLOCKSCALE_DEVICE BlockScale block_scale(uint32_t amax, float tensor_scale,
                                         const ScaleOptions& options) {
  if constexpr (kRule == ScaleRule::nvfp4) {
    return nvfp4_scale<kExact>(amax, tensor_scale);
  } else if constexpr (kRule == ScaleRule::mx) {
    return mx_scale<kElement>(amax, options.exponent_rounding);
  } else {
    return fp8_block_scale<kElement>(amax, options);
  }
}

}  // namespace blockscale::encoding
