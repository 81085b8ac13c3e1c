// Codes of GELU of 16-bit elements from approximate values, which cost half of the exact ones and
// no table. Codes have few bits, so nearly all of them are sure:
//
// - scaled with a power of two, no 16-bit number's GELU is near a tie of e2m1, e2m3, e3m2 or e4m3,
//   if the block has numbers that are large enough (cuda_math_emulated_test.cpp has every number);
// - else 8-bit codes come from bounds of the scaled value. Where these have two codes, which is one
//   element of some ten thousand, eight elements are done again the exact way;
// - nvfp4's come with their distance from a tie, which tells the same. That allows for larger
//   errors, if the block has numbers that are not all next to 0 (kLeastShortAmax).
//
// What is approximate is the tail that core/math-inl.h takes from max(x, 0): it comes from the
// hardware's exponential and reciprocal. cuda_math_gpu_test.cpp has its error for every number.
#pragma once

#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/arithmetic.h"
#include "ops/quantize/kernel_sm90_codes.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The most that an approximate tail differs from the exact one, as a part of that.
inline constexpr float kTailError = 0x1.6p-21f;

/// GELU of x is positive - magnitude * tail, but for the error of the tail.
struct ApproximateGelu {
  float positive;  // max(x, 0); -0 for negative x; NaN for NaN
  float magnitude;
  float tail;

  BLOCKSCALE_DEVICE float value() const { return ptx::fma_rn(-magnitude, tail, positive); }
};

template <InputTransform kTransform>
BLOCKSCALE_DEVICE ApproximateGelu approximate_gelu(float x) {
  using Math = device::KernelMath;
  constexpr bool kTanh = kTransform == InputTransform::gelu_tanh;
  ApproximateGelu g;
  g.positive = Math::zero_if_negative(x);
  g.magnitude = ptx::min(ptx::abs(x), kTanh ? math::kTanhTailEnd : math::kErfTailEnd);
  if constexpr (kTanh) {
    const float power = ptx::ex2_approx_ftz(math::tanh_exponent<Math>(g.magnitude));
    g.tail = ptx::rcp_approx_ftz(ptx::add_rn(1.0f, power));
  } else {
    g.tail = ptx::ex2_approx_ftz(math::erf_exponent<Math>(g.magnitude));
  }
  return g;
}

/// The least |x| tail(|x|) for which short_tail is as near as kShortTailError says, and the least
/// largest magnitude of a block that codes can be found for from what it gives.
template <InputTransform kTransform>
inline constexpr float kLeastShort = kTransform == InputTransform::gelu_tanh ? 0x1p-90f : 0x1p-12f;
template <InputTransform kTransform>
inline constexpr float kLeastShortAmax = 4 * kLeastShort<kTransform>;

/// The most that short_tail differs from the exact tail, as a part of that. Where |x| tail(|x|) is
/// below kLeastShort, it is that part of kLeastShort that the product differs by.
template <InputTransform kTransform>
inline constexpr float kShortTailError =
    kTransform == InputTransform::gelu_tanh ? kTailError : 0x1.2p-18f;

/// The tail of |x| for codes that tell how near to a tie they are: of erf from a shorter polynomial
/// (tools/fit_polynomials.py), which costs as much as tanh. Beyond 13 erf has its tail there.
template <InputTransform kTransform>
BLOCKSCALE_DEVICE float short_tail(float x) {
  using Math = device::KernelMath;
  if constexpr (kTransform == InputTransform::gelu_tanh) {
    const float power = ptx::ex2_approx_ftz(math::tanh_exponent<Math>(ptx::abs(x)));
    return ptx::rcp_approx_ftz(ptx::add_rn(1.0f, power));
  } else {
    return ptx::ex2_approx_ftz(
        math::polynomial<Math>(ptx::min(ptx::abs(x), 13.0f), -1.0f, -0x1.26afcep0f, -0x1.d5f944p-2f,
                               -0x1.b4526ap-5f, 0x1.0767cep-7f, -0x1.931b1cp-11f, 0x1.1dd6c8p-15f));
  }
}

/// The magnitude of GELU of x, whose sign is that of x: max(x, 0) - x tail. NaN or infinity for
/// those. A finite x that is below kLeastShortX gives an arbitrary number.
template <InputTransform kTransform>
BLOCKSCALE_DEVICE float gelu_magnitude(float x) {
  const float tail = short_tail<kTransform>(x);
  return ptx::fma_rn(-x, tail, device::KernelMath::zero_if_negative(x));
}
inline constexpr float kLeastShortX = -0x1p60f;

/// Whether codes of GELU of a block with this largest magnitude (bits) are sure where they are
/// scaled with a power of two: none of its 16-bit numbers is near enough to a tie.
template <Format kElement>
BLOCKSCALE_DEVICE bool has_sure_codes(uint32_t amax) {
  if constexpr (format_traits(kElement).bits < 8) {
    return amax == 0 || amax >= bit_cast<uint32_t>(0x1p-8f);
  } else {
    // The ties of e5m2 go down to numbers whose GELU is half of them.
    return kElement == Format::e4m3 && amax >= bit_cast<uint32_t>(0.25f);
  }
}

/// With what comes to the error of a tail, which is no larger a part of the value: the error of
/// 1 / s, and six roundings.
BLOCKSCALE_HD constexpr float error_of_scaled(float tail_error) {
  return tail_error + 7 * 0x1p-24f;
}

/// Two numbers that another one lies between.
struct Bounds {
  static constexpr float kError = error_of_scaled(kTailError);

  float low;
  float high;

  /// `number`, exactly or with that error: then no infinity.
  BLOCKSCALE_DEVICE Bounds(float number, bool exact) {
    low = exact ? number : ptx::fma_rn(number, -kError, number);
    high = exact ? number : ptx::fma_rn(number, kError, number);
  }
};

/// What values of a block with the largest magnitude `amax` (bits) are multiplied with before they
/// become 8-bit codes: an exact value scaled exactly lies between the products with an approximate
/// one. Where codes are sure, the two are the same.
template <Format kElement, ScaleRule kRule>
BLOCKSCALE_DEVICE Bounds factor_bounds(const BlockScale& scale, uint32_t amax) {
  constexpr bool kQuotient = kRule == ScaleRule::fp8;
  const float factor = kQuotient ? scale.reciprocal : scale.factor;
  const bool power_of_two = !kQuotient || (bit_cast<uint32_t>(factor) & 0x007FFFFFu) == 0;
  return Bounds(factor, power_of_two && has_sure_codes<kElement>(amax));
}

/// e2m1 codes of magnitudes of GELU that are known but for their tail's error, scaled: as E2m1Lines
/// gives those of exact ones, the least of the same two lines and 7, with 20 bits behind the point.
/// At ties a line is off by at most four times the error of the scaled magnitude y: it is 2 y to 2,
/// 2 + y to 4, and 4 + y / 2 to the last tie, 5. Where y is known but for a part of kLeastShort, it
/// is at most 4.5 times, since y is at most 9 / 4 for that. kWindow is that and half a last place,
/// which a line is rounded by.
template <InputTransform kTransform>
class LikelyE2m1 {
 public:
  BLOCKSCALE_DEVICE explicit LikelyE2m1(float factor)
      : factor_(factor), half_(ptx::mul_rn(factor, 0.5f)) {}

  /// In bits 20 to 22 the code, less 4. What lies below is less than kDoubtful if it may be wrong.
  BLOCKSCALE_DEVICE uint32_t code(float magnitude) const {
    const float steep = ptx::fma_rn(magnitude, factor_, kPower - 2.0f);
    const float flat = ptx::fma_rn(magnitude, half_, kPower);
    const auto least = [](int32_t a, int32_t b) { return a < b ? a : b; };
    const int32_t line = least(bit_cast<int32_t>(steep), bit_cast<int32_t>(flat));
    // Of NaN, in a block that is done again, the sum wraps.
    const auto rounded = static_cast<int32_t>(static_cast<uint32_t>(line) + kHalf);
    return static_cast<uint32_t>(least(rounded, kLargest));
  }
  static constexpr float kError = error_of_scaled(kShortTailError<kTransform>);
  static constexpr auto kWindow = static_cast<int32_t>(4.5f * kError * 0x1p20f + 1.5f);
  static constexpr uint32_t kDoubtful = 2 * kWindow + 1;

 private:
  static constexpr float kPower = 8.0f;                  // above it the last place is 2^-20
  static constexpr int32_t kHalf = (1 << 19) + kWindow;  // a tie becomes kWindow
  static constexpr int32_t kLargest = 0x41000000 + (3 << 20) + (1 << 19);  // kPower, 7 less 4

  float factor_;
  float half_;
};

/// Codes of a chunk, and bit i of `doubtful` where some of elements 8 i to 8 i + 7 may be wrong.
template <Format kElement, int kCount>
struct LikelyCodes {
  Codes<kElement, kCount> codes;
  uint32_t doubtful = 0;
};

/// Codes of GELU of x from approximate values, of which gelu_at(i) gives that of element i, with a
/// scale that is not exceptional, of a block with the largest magnitude `amax` (bits). Codes of 4
/// and 6 bits are those of blocks that have sure ones.
template <Format kElement, ScaleRule kRule, Format kFormat, int kCount, class GeluAt>
BLOCKSCALE_DEVICE LikelyCodes<kElement, kCount> encode_gelu(const Chunk<kFormat, kCount>& x,
                                                            const GeluAt& gelu_at,
                                                            const BlockScale& scale,
                                                            uint32_t amax) {
  LikelyCodes<kElement, kCount> likely;
  if constexpr (format_traits(kElement).bits == 8) {
    const Bounds factors = factor_bounds<kElement, kRule>(scale, amax);
    BLOCKSCALE_UNROLL
    for (int eight = 0; eight < kCount / 8; ++eight) {
      uint32_t differences = 0;
      BLOCKSCALE_UNROLL
      for (int four = 0; four < 2; ++four) {
        float values[4];
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 4; ++i) values[i] = gelu_at(8 * eight + 4 * four + i);
        const auto codes_with = [&](float factor) {
          return fp8_bytes<kElement>([&](int i) { return ptx::mul_rn(values[i], factor); }, 0);
        };
        const uint32_t codes = codes_with(factors.low);
        differences |= codes ^ codes_with(factors.high);
        likely.codes.word[2 * eight + four] = codes;
      }
      if (differences != 0) likely.doubtful |= 1u << eight;
    }
  } else if constexpr (format_traits(kElement).bits == 6) {
    const float factor = ptx::mul_rn(scale.factor, kFp6Factor<kElement>);
    likely.codes =
        encode_bytes<kElement, kCount>([&](int i) { return ptx::mul_rn(gelu_at(i), factor); });
  } else {
    const E2m1Lines code(scale.factor);
    likely.codes = encode_e2m1(x, [&](int i) { return code(ptx::abs(gelu_at(i))); });
  }
  if constexpr (kRule == ScaleRule::mx) {
    BLOCKSCALE_UNROLL
    for (uint32_t& word : likely.codes.word) word &= scale.keep;
  }
  return likely;
}

/// The same of nvfp4, from gelu_magnitude of elements of one block, and signs of eight at a time
/// (sign_nibbles).
template <InputTransform kTransform, int kCount>
BLOCKSCALE_DEVICE LikelyCodes<Format::e2m1, kCount> encode_likely_products(
    const Chunk<Format::f32, kCount>& magnitudes, const uint32_t (&signs)[kCount / 8],
    const BlockScale& scale) {
  using Likely = LikelyE2m1<kTransform>;
  const Likely likely_code(scale.factor);
  LikelyCodes<Format::e2m1, kCount> likely;
  BLOCKSCALE_UNROLL
  for (int eight = 0; eight < kCount / 8; ++eight) {
    uint32_t nearest = ~0u;  // to a tie, in the upper 20 bits
    const auto two = [&](int i) {
      uint32_t code[2];
      BLOCKSCALE_UNROLL
      for (int j = 0; j < 2; ++j) {
        code[j] = likely_code.code(value_at(magnitudes, 8 * eight + i + 2 * j));
        const uint32_t distance = code[j] << 12;
        nearest = distance < nearest ? distance : nearest;
      }
      return ptx::prmt(code[0], code[1], 0x0062);
    };
    const uint32_t even = ptx::prmt(two(0), two(4), 0x5410);
    const uint32_t odd = ptx::prmt(two(1), two(5), 0x5410);
    const uint32_t less_4 = (even >> 4 & 0x07070707u) | (odd & 0x70707070u);
    likely.codes.word[eight] = ((less_4 ^ 0x44444444u) | signs[eight]) & scale.keep;
    if (nearest < Likely::kDoubtful << 12) likely.doubtful |= 1u << eight;
  }
  if (scale.keep == 0) likely.doubtful = 0;
  return likely;
}

}  // namespace blockscale::quantize_sm90
