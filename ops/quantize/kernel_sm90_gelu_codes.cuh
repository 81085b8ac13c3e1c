// Codes of GELU of 16-bit elements from approximate values, which cost half of the exact ones and
// no table. Codes have few bits, so nearly all of them are sure:
//
// - scaled with a power of two, no 16-bit number's GELU is near a tie of e2m1, e2m3, e3m2 or e4m3,
//   if the block has numbers that are large enough (cuda_math_emulated_test.cpp has every number);
// - else 8-bit codes come from bounds of the scaled value. Where these have two codes, which is one
//   element of some ten thousand, eight elements are done again the exact way.
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

/// Two numbers that another one lies between.
struct Bounds {
  /// Errors of the tail, which are no larger parts of the value, of 1 / s, and of six roundings.
  static constexpr float kError = 0x1.2p-20f;
  static_assert(kTailError + 7 * 0x1p-24f <= kError);

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

/// e2m1 codes of scaled magnitudes y that are known but for Bounds::kError, as E2m1Lines gives
/// those of exact ones: the least of the same two lines and 7, with 20 bits behind the point. What
/// y may be off by (4.5 of the last place) and what a line is rounded by (0.5) are at most kWindow.
class LikelyE2m1 {
 public:
  /// In bits 20 to 22 the code, less 4. What lies below is less than kDoubtful if it may be wrong.
  BLOCKSCALE_DEVICE static uint32_t code(float y) {
    const float steep = ptx::add_rn(y, kPower - 2.0f);
    const float flat = ptx::fma_rn(y, 0.5f, kPower);
    const auto least = [](int32_t a, int32_t b) { return a < b ? a : b; };
    const int32_t line = least(bit_cast<int32_t>(steep), bit_cast<int32_t>(flat));
    // Of NaN, in a block that is done again, the sum wraps.
    const auto rounded = static_cast<int32_t>(static_cast<uint32_t>(line) + kHalf);
    return static_cast<uint32_t>(least(rounded, kLargest));
  }
  static constexpr int32_t kWindow = 5;
  static constexpr uint32_t kDoubtful = 2 * kWindow + 1;

 private:
  static constexpr float kPower = 8.0f;                  // above it the last place is 2^-20
  static constexpr int32_t kHalf = (1 << 19) + kWindow;  // a tie becomes kWindow
  static constexpr int32_t kLargest = 0x41000000 + (3 << 20) + (1 << 19);  // kPower, 7 less 4
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

/// The same of nvfp4, from approximate values of GELU of one block.
template <int kCount>
BLOCKSCALE_DEVICE LikelyCodes<Format::e2m1, kCount> encode_likely_products(
    const Chunk<Format::f32, kCount>& values, const BlockScale& scale) {
  LikelyCodes<Format::e2m1, kCount> likely;
  BLOCKSCALE_UNROLL
  for (int eight = 0; eight < kCount / 8; ++eight) {
    uint32_t nearest = ~0u;  // to a tie, in the upper 20 bits
    const auto two = [&](int i) {
      uint32_t code[2];
      BLOCKSCALE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float magnitude = ptx::abs(value_at(values, 8 * eight + i + 2 * j));
        code[j] = LikelyE2m1::code(ptx::mul_rn(magnitude, scale.factor));
        const uint32_t distance = code[j] << 12;
        nearest = distance < nearest ? distance : nearest;
      }
      return ptx::prmt(code[0], code[1], 0x0062);
    };
    const uint32_t even = ptx::prmt(two(0), two(4), 0x5410);
    const uint32_t odd = ptx::prmt(two(1), two(5), 0x5410);
    const uint32_t less_4 = (even >> 4 & 0x07070707u) | (odd & 0x70707070u);
    const uint32_t magnitudes = (less_4 ^ 0x44444444u) & scale.keep;
    likely.codes.word[eight] = magnitudes | (sign_nibbles(values, 8 * eight) & scale.keep);
    if (nearest < LikelyE2m1::kDoubtful << 12) likely.doubtful |= 1u << eight;
  }
  if (scale.keep == 0) likely.doubtful = 0;
  return likely;
}

}  // namespace blockscale::quantize_sm90
