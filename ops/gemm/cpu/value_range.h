// Which slabs the f32 microkernel may sum: a bound from the magnitudes of the two panels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/config.h"
#include "core/format.h"
#include "ops/gemm/cpu/plan.h"

namespace blockscale::gemm_detail {

/// Largest and smallest nonzero magnitude of a set of f32 values, as their bits. NaN and Inf count
/// as larger than every number.
struct ValueRange {
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  std::uint32_t largest = 0;
  std::uint32_t smallest_minus_one = kNone;  // 0 wraps to kNone and so never is the smallest

  void include(float value) {
    const std::uint32_t magnitude = bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
    include(ValueRange{magnitude, magnitude - 1});
  }
  void include(const ValueRange& other) {
    largest = std::max(largest, other.largest);
    smallest_minus_one = std::min(smallest_minus_one, other.smallest_minus_one);
  }
};

/// Whether a slab of products of values in `a` and values in `b` may be summed in f32.
///
/// Above: |product| < 2^(ea + eb + 2), so kSlab = 2^8 of them stay below 2^126, far from overflow.
/// Below: every nonzero product is at least 2^-80. A partial sum that rounds in the subnormal range
/// loses at most 2^-150 (2^-126 if the thread flushes subnormals to zero), in a slab 2^-118: less
/// than 2^-38 of any single product, hence of sum |a||b|.
constexpr bool f32_is_safe(const ValueRange& a, const ValueRange& b) {
  constexpr std::uint32_t kBias = 127;
  constexpr std::uint32_t kMaxExponents = 2 * kBias + 126 - 2 - 8;
  constexpr std::uint32_t kMinExponents = 2 * kBias - 80;
  static_assert(kSlab <= 1 << 8);
  if (a.largest == 0 || b.largest == 0) return true;
  const std::uint32_t a_min = (a.smallest_minus_one + 1) >> 23;
  const std::uint32_t b_min = (b.smallest_minus_one + 1) >> 23;
  return (a.largest >> 23) + (b.largest >> 23) <= kMaxExponents && a_min != 0 && b_min != 0 &&
         a_min + b_min >= kMinExponents;
}

/// A range that holds every product of a factor and a code of `element`; one that is unsafe with
/// everything where such a product may leave the normal numbers.
constexpr ValueRange range_of_values(const ValueRange& factors, Format element) {
  if (factors.largest == 0) return factors;
  const FormatTraits t = format_traits(element);
  const int largest = static_cast<int>(factors.largest >> 23) + t.max_exponent + 1;
  const int smallest =
      static_cast<int>((factors.smallest_minus_one + 1) >> 23) + 1 - t.bias - t.mantissa_bits;
  // A subnormal factor, or a product that might be one.
  if (factors.smallest_minus_one + 1 < 1u << 23 || smallest < 1 || largest > 254) {
    return {ValueRange::kNone >> 1, 0};
  }
  return {static_cast<std::uint32_t>(largest) << 23 | 0x7FFFFFu,
          (static_cast<std::uint32_t>(smallest) << 23) - 1};
}

/// Whether sums of FP4 blocks, integers below 2^13 (four times the sum), may be scaled and added in
/// f32: times a factor of B, then times a quarter of one of A. kSpan bounds how many are added.
constexpr bool integers_are_safe(const ValueRange& a, const ValueRange& b) {
  constexpr int kBias = 127;
  constexpr int kMaxExponent = 126 - 13 - 12;
  constexpr int kMinExponent = -106;
  if (a.largest == 0 || b.largest == 0) return true;
  const auto exponent = [](std::uint32_t magnitude) {
    return static_cast<int>(magnitude >> 23) - kBias;
  };
  const int a_min = exponent(a.smallest_minus_one + 1);
  const int b_min = exponent(b.smallest_minus_one + 1);
  const int a_max = exponent(a.largest) + 1;
  const int b_max = exponent(b.largest) + 1;
  return a_min >= kMinExponent && b_min >= kMinExponent && a_min - 2 + b_min >= kMinExponent &&
         a_max <= kMaxExponent && b_max <= kMaxExponent && a_max + b_max <= kMaxExponent;
}

/// Whether the products of a span of k may be summed by dpbf16ps, which takes subnormal numbers for
/// zeros, and the sums scaled in f32: times a factor of B, then one of A.
///
/// Above: kSpan = 2^12 products stay below 2^126, before and after each factor. Below: no value is
/// subnormal, and every nonzero product, before and after, is at least 2^-88. What is flushed is
/// below 2^-126 a step, in a span 2^-114: less than 2^-26 of any single product.
constexpr bool pairs_are_safe(const ValueRange& a, const ValueRange& b, const ValueRange& a_factors,
                              const ValueRange& b_factors) {
  constexpr int kBias = 127;
  constexpr int kMaxExponent = 126 - 12;
  constexpr int kMinExponent = -88;
  int smallest = 0;
  int largest = 0;
  bool is_safe = true;
  for (const ValueRange* range : {&a, &b, &b_factors, &a_factors}) {
    if (range->largest == 0) continue;
    const int low = static_cast<int>((range->smallest_minus_one + 1) >> 23) - kBias;
    const int high = static_cast<int>(range->largest >> 23) + 1 - kBias;
    smallest += low;
    largest += high;
    is_safe = is_safe && low > -kBias && high <= kBias;
    is_safe = is_safe && (range == &a || (smallest >= kMinExponent && largest <= kMaxExponent));
  }
  return is_safe;
}

/// Whether the products of a span of k may be summed in f32 by lanes: codes times A first, block
/// for block, then times a factor.
///
/// Above: kSpan = 2^12 products, and their partial sums before the factor, stay below 2^126. Below:
/// every nonzero product, before the factor and after, is at least 2^-106. What rounds in the
/// subnormal range loses at most 2^-150 a step, in a span at most 2^-137: less than 2^-31 of any
/// single product.
constexpr bool span_is_safe(const ValueRange& a, const ValueRange& factors, Format element) {
  constexpr int kMaxExponent = 126 - 12;
  constexpr int kMinExponent = -106;
  constexpr int kBias = 127;
  const FormatTraits t = format_traits(element);
  if (a.largest == 0 || factors.largest == 0) return true;
  const auto exponent = [](std::uint32_t magnitude) {
    return static_cast<int>(magnitude >> 23) - kBias;
  };
  // Below the power of two after the largest code, at least the smallest subnormal one.
  const int code_max = t.max_exponent + 1;
  const int code_min = 1 - t.bias - t.mantissa_bits;
  const int a_max = exponent(a.largest) + 1;
  const int a_min = exponent(a.smallest_minus_one + 1);
  const int factor_max = exponent(factors.largest) + 1;
  const int factor_min = exponent(factors.smallest_minus_one + 1);
  return a_min > -kBias && factor_min > -kBias && a_max + code_max <= kMaxExponent &&
         a_max + code_max + factor_max <= kMaxExponent && a_min + code_min >= kMinExponent &&
         a_min + code_min + factor_min >= kMinExponent;
}

}  // namespace blockscale::gemm_detail
