// How tensor cores add up the products of one wgmma.mma_async of 8-bit elements: a family of rules,
// one of which device/golden/wgmma_sums.cu finds to be a GPU's. Pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/format.h"

namespace blockscale::emulator::meaning {

/// What becomes of the bits of a term that are below the last one kept.
enum class CutBits : std::uint8_t { toward_zero, down, to_nearest };

/// Products are added in groups, each with what the groups before it gave: all terms of a group are
/// aligned to the largest, cut to a number of bits, and added exactly.
struct WgmmaSumRule {
  int fraction_bits = 13;   // that are kept below the largest exponent of a group
  std::size_t group = 32;   // products, consecutive in k
  bool aligns_old = true;   // the old value is a term like others; else added in f32 behind them
  bool normalises = false;  // a product's exponent is its own; else the sum of its factors'
  CutBits cut = CutBits::toward_zero;
  int result_bits = 13;            // of fraction, that a sum keeps; 23: f32's
  bool result_toward_zero = true;  // what these cannot hold of it; else to nearest
  bool counts_zeros = false;       // a product of 0 takes part in the alignment, by its factors
};

/// significand * 2^exponent; `leading` is the exponent that alignment goes by.
struct WgmmaTerm {
  std::int64_t significand = 0;
  int exponent = 0;
  int leading = 0;
};

/// Significand and exponent of a code of an 8-bit format; subnormal ones have the least normal
/// one's.
template <Format kFormat>
constexpr WgmmaTerm wgmma_factor(std::uint32_t code) {
  constexpr FormatTraits t = format_traits(kFormat);
  const int mantissa = static_cast<int>(code & ((1u << t.mantissa_bits) - 1));
  const int field = static_cast<int>(code >> t.mantissa_bits & ((1u << t.exponent_bits) - 1));
  const int significand = field == 0 ? mantissa : mantissa | 1 << t.mantissa_bits;
  const int leading = std::max(field, 1) - t.bias;
  return {code >> 7 != 0 ? -significand : significand, leading - t.mantissa_bits, leading};
}

/// Exponent of the highest bit of a term that is not 0.
constexpr int wgmma_highest(const WgmmaTerm& x) {
  const std::int64_t magnitude = x.significand < 0 ? -x.significand : x.significand;
  return x.exponent + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(magnitude))) - 1;
}

constexpr WgmmaTerm wgmma_product(const WgmmaTerm& a, const WgmmaTerm& b, bool normalises) {
  WgmmaTerm x = {a.significand * b.significand, a.exponent + b.exponent, a.leading + b.leading};
  if (normalises && x.significand != 0) x.leading = wgmma_highest(x);
  return x;
}

/// A finite f32.
inline WgmmaTerm wgmma_term(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);
  return {static_cast<std::int64_t>(std::ldexp(fraction, 24)), exponent - 24, exponent - 1};
}

/// A term in units of 2^unit.
constexpr std::int64_t wgmma_cut(const WgmmaTerm& x, int unit, CutBits cut) {
  const int shift = unit - x.exponent;
  if (shift <= 0) return x.significand * (std::int64_t{1} << -shift);
  if (shift > 62) return cut == CutBits::down && x.significand < 0 ? -1 : 0;
  const std::int64_t down = x.significand >> shift;
  const std::int64_t rest = x.significand - (down << shift), half = std::int64_t{1} << (shift - 1);
  switch (cut) {
    case CutBits::down: return down;
    case CutBits::toward_zero: return down + (x.significand < 0 && rest != 0 ? 1 : 0);
    case CutBits::to_nearest: break;
  }
  return down + (rest > half || (rest == half && (down & 1) != 0) ? 1 : 0);
}

/// sum * 2^unit, to so many bits of fraction.
inline float wgmma_result(std::int64_t sum, int unit, int bits, bool toward_zero) {
  if (sum == 0) return 0;
  const WgmmaTerm exact = {sum, unit, 0};
  const int last = wgmma_highest(exact) - bits;
  if (last <= unit) return static_cast<float>(std::ldexp(static_cast<double>(sum), unit));
  const std::int64_t kept =
      wgmma_cut(exact, last, toward_zero ? CutBits::toward_zero : CutBits::to_nearest);
  return static_cast<float>(std::ldexp(static_cast<double>(kept), last));
}

/// The old value and all products, by a rule. Everything is finite.
inline float wgmma_sum(const WgmmaSumRule& rule, float old, std::span<const WgmmaTerm> products) {
  for (std::size_t first = 0; first < products.size(); first += rule.group) {
    const auto group = products.subspan(first, std::min(rule.group, products.size() - first));
    const WgmmaTerm before = wgmma_term(old);
    const bool has_old = rule.aligns_old && before.significand != 0;
    bool is_zero = !has_old;
    int leading = has_old ? before.leading : 0;
    for (const WgmmaTerm& x : group) {
      if (x.significand == 0 && !rule.counts_zeros) continue;
      leading = is_zero ? x.leading : std::max(leading, x.leading);
      is_zero = false;
    }
    if (is_zero) continue;
    const int unit = leading - rule.fraction_bits;
    std::int64_t sum = has_old ? wgmma_cut(before, unit, rule.cut) : 0;
    for (const WgmmaTerm& x : group) sum += wgmma_cut(x, unit, rule.cut);
    const float result = wgmma_result(sum, unit, rule.result_bits, rule.result_toward_zero);
    old = rule.aligns_old ? result : old + result;
  }
  return old;
}

}  // namespace blockscale::emulator::meaning
