// An independent oracle of the formats, for tests: values from the definitions in OCP MX 1.0, OCP
// FP8 1.0 and IEEE 754 in double precision, roundings from exact midpoints. It shares no code and
// no table with core/format.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/format.h"

namespace blockscale::oracle {

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr std::uint32_t kInfinity = 0x7F800000;
inline constexpr std::uint32_t kSign = 0x80000000;

/// What the codes behind the finite ones mean.
enum class Specials { none, one_nan, infinity_and_nans };

/// A format as its standard defines it.
struct Definition {
  Format format;
  int exponent_bits;
  int mantissa_bits;
  bool is_signed;
  Specials specials;
  std::uint32_t nan;  // the code that CUDA gives for NaN
};

inline const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all = {
      {Format::e2m1, 2, 1, true, Specials::none, 0x7},
      {Format::e2m3, 2, 3, true, Specials::none, 0x1F},
      {Format::e3m2, 3, 2, true, Specials::none, 0x1F},
      {Format::e4m3, 4, 3, true, Specials::one_nan, 0x7F},
      {Format::e5m2, 5, 2, true, Specials::infinity_and_nans, 0x7F},
      {Format::ue4m3, 4, 3, false, Specials::one_nan, 0x7F},
      {Format::f16, 5, 10, true, Specials::infinity_and_nans, 0x7E00},
      {Format::bf16, 8, 7, true, Specials::infinity_and_nans, 0x7FC0},
  };
  return all;
}

inline const Definition& definition(Format format) {
  return *std::find_if(definitions().begin(), definitions().end(),
                       [format](const Definition& d) { return d.format == format; });
}

/// Value of a magnitude, as if every code were a finite number.
inline double magnitude_value(const Definition& d, std::uint32_t magnitude) {
  const int bias = (1 << (d.exponent_bits - 1)) - 1;
  const int field = static_cast<int>(magnitude >> d.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude) - (field << d.mantissa_bits);
  const int hidden = field == 0 ? 0 : 1 << d.mantissa_bits;
  return std::ldexp(mantissa + hidden, std::max(field, 1) - bias - d.mantissa_bits);
}

/// Number of magnitudes that are finite; the largest finite one is this - 1.
inline std::uint32_t finite_count(const Definition& d) {
  const std::uint32_t all = 1u << (d.exponent_bits + d.mantissa_bits);
  if (d.specials == Specials::none) return all;
  return d.specials == Specials::one_nan ? all - 1 : all - (1u << d.mantissa_bits);
}

inline int sign_position(const Definition& d) {
  return d.exponent_bits + d.mantissa_bits;
}

/// Value of a code; NaN for all of its NaNs.
inline double value(const Definition& d, std::uint32_t code) {
  const std::uint32_t magnitude = code & ((1u << sign_position(d)) - 1);
  const bool negative = d.is_signed && ((code >> sign_position(d)) & 1) != 0;
  double result = magnitude_value(d, magnitude);
  if (magnitude >= finite_count(d)) {
    const bool infinite = d.specials == Specials::infinity_and_nans && magnitude == finite_count(d);
    result = infinite ? std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::quiet_NaN();
  }
  return negative ? -result : result;
}

/// Bits of the smallest non-negative f32 that rounds to each magnitude or above it, the first code
/// behind the finite ones included. Every midpoint of these formats is an f32.
inline std::vector<std::uint32_t> first_inputs(const Definition& d) {
  std::vector<std::uint32_t> first = {0};
  for (std::uint32_t code = 1; code <= finite_count(d); ++code) {
    const double middle = (magnitude_value(d, code - 1) + magnitude_value(d, code)) / 2;
    const std::uint32_t bits = bits_of(static_cast<float>(middle));
    first.push_back(code % 2 == 0 ? bits : bits + 1);  // a tie goes to the even code
  }
  return first;
}

/// The rounding of one format. Construct it once, it keeps the table of boundaries.
class Rounding {
 public:
  explicit Rounding(Format format)
      : definition_(definition(format)), first_(first_inputs(definition_)) {}

  /// Bits of the first f32 of each magnitude; the last entry is where overflow begins.
  const std::vector<std::uint32_t>& first() const { return first_; }

  std::uint32_t encode(std::uint32_t f32_bits, Overflow overflow) const {
    const std::uint32_t magnitude = f32_bits & ~kSign;
    if (magnitude > kInfinity) return definition_.nan;
    const auto above = std::upper_bound(first_.begin(), first_.end(), magnitude);
    return finish(static_cast<std::uint32_t>(above - first_.begin()) - 1, f32_bits, overflow);
  }

  /// Applies overflow and sign to the nearest magnitude of f32_bits (not NaN).
  std::uint32_t finish(std::uint32_t nearest, std::uint32_t f32_bits, Overflow overflow) const {
    const bool negative = (f32_bits & kSign) != 0;
    if (negative && !definition_.is_signed) return 0;
    const bool overflows = nearest == finite_count(definition_);
    const bool saturates = overflow == Overflow::saturate || definition_.specials == Specials::none;
    // Behind the largest finite code lies infinity, or the one NaN.
    const std::uint32_t code = overflows && saturates ? nearest - 1 : nearest;
    return negative ? code | 1u << sign_position(definition_) : code;
  }

 private:
  Definition definition_;
  std::vector<std::uint32_t> first_;
};

/// Power of two at or below, or at or above, |x| as a ue8m0 code, from the real exponent of x.
inline std::uint32_t encode_ue8m0(std::uint32_t f32_bits, bool up, Overflow overflow) {
  const std::uint32_t magnitude = f32_bits & ~kSign;
  if (magnitude > kInfinity) return 0xFF;
  if (magnitude == kInfinity) return overflow == Overflow::saturate ? 0xFE : 0xFF;
  if (magnitude == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(float_of(magnitude)), &exponent);
  // |x| = mantissa * 2^exponent with mantissa in [0.5, 1).
  const int power = up && mantissa != 0.5 ? exponent : exponent - 1;
  if (power < -127) return 0;
  if (power > 127) return overflow == Overflow::saturate ? 0xFE : 0xFF;
  return static_cast<std::uint32_t>(power + 127);
}

}  // namespace blockscale::oracle
