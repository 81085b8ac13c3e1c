// What f16x2 and bf16x2 instructions compute: pure functions, no emulator state.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/format.h"

namespace blockscale::emulator::meaning {

inline constexpr uint32_t kNan16 = 0x7FFFu;  // the NaN that f16 and bf16 arithmetic produces

/// a + b in double, rounded to odd: inexact results have an odd last bit, so that a second rounding
/// to a format of at most 51 bits rounds as the exact sum would. Finite a + b does not overflow.
inline double add_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double b_part = sum - a;
  const double error = (a - (sum - b_part)) + (b - b_part);  // exact: Knuth's TwoSum
  const uint64_t bits = bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1u) != 0) return sum;
  // The exact sum lies between `sum` (even) and its neighbour on the side of the error (odd).
  const bool away_from_zero = (error > 0) == (sum > 0);
  return bit_cast<double>(away_from_zero ? bits + 1 : bits - 1);
}

/// Code of F (f16 or bf16) nearest to `x`, ties to even; infinity beyond the largest; NaN kNan16.
template <Format F>
uint32_t round_from_double(double x) {
  if (x != x) return kNan16;
  constexpr FormatTraits t = format_traits(F);
  const uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
  const double magnitude = std::fabs(x);
  const double ulp_of_subnormals = std::ldexp(1.0, 1 - t.bias - t.mantissa_bits);
  if (magnitude < ulp_of_subnormals * (1 << t.mantissa_bits)) {
    return sign | static_cast<uint32_t>(std::nearbyint(magnitude / ulp_of_subnormals));
  }
  const uint64_t bits = bit_cast<uint64_t>(magnitude);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  if (exponent > t.max_exponent) return sign | (t.max_code + 1);
  const int drop = 52 - t.mantissa_bits;
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const uint64_t half_minus_one = (uint64_t{1} << (drop - 1)) - 1;
  const uint64_t rounded = (significand + half_minus_one + ((significand >> drop) & 1)) >> drop;
  // The leading bit of `rounded` adds one to the exponent field, a carry two.
  const uint32_t base = static_cast<uint32_t>(exponent + t.bias - 1) << t.mantissa_bits;
  return sign | (base + static_cast<uint32_t>(rounded));  // max_code + 1 is infinity
}

template <Format F>
uint32_t fma_one(uint32_t a, uint32_t b, uint32_t c) {
  const double product = double{decode<F>(a)} * double{decode<F>(b)};  // exact
  return round_from_double<F>(add_to_odd(product, double{decode<F>(c)}));
}

/// `f` on the lower and the upper halves.
template <class Function, class... Words>
uint32_t each_half(const Function& f, Words... words) {
  return f((words & 0xFFFFu)...) | f((words >> 16)...) << 16;
}

template <Format F>
uint32_t fma_rn_x2(uint32_t a, uint32_t b, uint32_t c) {
  return each_half(fma_one<F>, a, b, c);
}
template <Format F>
uint32_t add_rn_x2(uint32_t a, uint32_t b) {
  return each_half(
      [](uint32_t x, uint32_t y) {
        return round_from_double<F>(add_to_odd(double{decode<F>(x)}, double{decode<F>(y)}));
      },
      a, b);
}
template <Format F>
uint32_t sub_rn_x2(uint32_t a, uint32_t b) {
  return each_half(
      [](uint32_t x, uint32_t y) {
        return round_from_double<F>(add_to_odd(double{decode<F>(x)}, -double{decode<F>(y)}));
      },
      a, b);
}
template <Format F>
uint32_t mul_rn_x2(uint32_t a, uint32_t b) {
  return each_half(
      [](uint32_t x, uint32_t y) {
        return round_from_double<F>(double{decode<F>(x)} * double{decode<F>(y)});
      },
      a, b);
}

template <Format F>
bool is_nan_code(uint32_t code) {
  return (code & 0x7FFFu) > format_traits(F).max_code + 1;
}

/// The larger (or smaller) of two codes, neither a NaN: signed magnitudes, +0 above -0.
inline uint32_t larger_code(uint32_t a, uint32_t b) {
  const auto order = [](uint32_t code) {
    const int magnitude = static_cast<int>(code & 0x7FFFu);
    return (code & 0x8000u) != 0 ? -magnitude - 1 : magnitude;
  };
  return order(a) >= order(b) ? a : b;
}

template <Format F, bool kLarger, bool kPropagateNan>
uint32_t select_one(uint32_t a, uint32_t b) {
  const bool nan_a = is_nan_code<F>(a), nan_b = is_nan_code<F>(b);
  if (kPropagateNan ? nan_a || nan_b : nan_a && nan_b) return kNan16;
  if (nan_a) return b;
  if (nan_b) return a;
  const uint32_t larger = larger_code(a, b);
  return kLarger ? larger : a ^ b ^ larger;
}

template <Format F>
uint32_t max_x2(uint32_t a, uint32_t b) {
  return each_half(select_one<F, true, false>, a, b);
}
template <Format F>
uint32_t min_x2(uint32_t a, uint32_t b) {
  return each_half(select_one<F, false, false>, a, b);
}
template <Format F>
uint32_t max_nan_x2(uint32_t a, uint32_t b) {
  return each_half(select_one<F, true, true>, a, b);
}
template <Format F>
uint32_t min_nan_x2(uint32_t a, uint32_t b) {
  return each_half(select_one<F, false, true>, a, b);
}
template <Format F>
uint32_t abs_x2(uint32_t a) {
  return each_half([](uint32_t x) { return is_nan_code<F>(x) ? kNan16 : x & 0x7FFFu; }, a);
}
template <Format F>
uint32_t neg_x2(uint32_t a) {
  return each_half([](uint32_t x) { return is_nan_code<F>(x) ? kNan16 : x ^ 0x8000u; }, a);
}

}  // namespace blockscale::emulator::meaning
