// How tensor cores add up the products of one instruction: a family of rules, of which
// device/golden/product_sums.cu finds those that a GPU follows (docs/numerics.md, "Error bound").
// Pure functions.
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

/// The exponent that a product is aligned by.
enum class ProductExponent : std::uint8_t {
  fields,   // the sum of its factors' exponents; a subnormal one has the least normal one
  factors,  // the same, but a subnormal factor has that of its highest bit
  product,  // that of the product's highest bit
};

/// What becomes of the value that products are added to.
enum class OldValue : std::uint8_t {
  aligned,          // it is a term of the first group like others
  added_to_groups,  // each group is summed by itself, and added to it in f32
  added_behind,     // groups are summed from 0, and added to it in f32
};

/// Products are added in groups, each with what the groups before it gave: all terms of a group are
/// aligned to the largest, cut to a number of bits, and added exactly.
struct ProductSumRule {
  int fraction_bits = 13;  // that are kept below the largest exponent of a group
  std::size_t group = 32;  // products, consecutive in k
  OldValue old = OldValue::aligned;
  ProductExponent exponent = ProductExponent::fields;
  CutBits cut = CutBits::toward_zero;
  int result_bits = 13;            // of fraction, that a sum keeps; 23: f32's
  bool result_toward_zero = true;  // what these cannot hold of it; else to nearest
  bool counts_zeros = false;       // a product of 0 takes part in the alignment, by its factors
  bool by_pairs = false;  // groups of half of k take k = 0, 1, 4, 5, .. and the others, not halves
};

/// significand * 2^exponent; `leading` is the exponent that alignment goes by.
struct SumTerm {
  std::int64_t significand = 0;
  int exponent = 0;
  int leading = 0;
};

/// Exponent of the highest bit of a term that is not 0.
constexpr int highest_bit(const SumTerm& x) {
  const std::int64_t magnitude = x.significand < 0 ? -x.significand : x.significand;
  return x.exponent + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(magnitude))) - 1;
}

/// Significand and exponent of a finite code; subnormal ones lead with the least normal exponent.
constexpr SumTerm factor_term(Format format, std::uint32_t code) {
  const FormatTraits t = format_traits(format);
  const int mantissa = static_cast<int>(code & ((1u << t.mantissa_bits) - 1));
  const int field = static_cast<int>(code >> t.mantissa_bits & ((1u << t.exponent_bits) - 1));
  const int significand = field == 0 ? mantissa : mantissa | 1 << t.mantissa_bits;
  const int leading = std::max(field, 1) - t.bias;
  const bool is_negative = (code >> (t.bits - 1) & 1) != 0;
  return {is_negative ? -significand : significand, leading - t.mantissa_bits, leading};
}

constexpr SumTerm product_term(const SumTerm& a, const SumTerm& b, ProductExponent exponent) {
  SumTerm x = {a.significand * b.significand, a.exponent + b.exponent, a.leading + b.leading};
  if (x.significand == 0 || exponent == ProductExponent::fields) return x;
  x.leading =
      exponent == ProductExponent::product ? highest_bit(x) : highest_bit(a) + highest_bit(b);
  return x;
}

/// A finite f32.
inline SumTerm old_term(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);
  return {static_cast<std::int64_t>(std::ldexp(fraction, 24)), exponent - 24, exponent - 1};
}

/// A term in units of 2^unit.
constexpr std::int64_t cut_term(const SumTerm& x, int unit, CutBits cut) {
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
inline float sum_result(std::int64_t sum, int unit, int bits, bool toward_zero) {
  if (sum == 0) return 0;
  const SumTerm exact = {sum, unit, 0};
  const int last = highest_bit(exact) - bits;
  if (last <= unit) return static_cast<float>(std::ldexp(static_cast<double>(sum), unit));
  const std::int64_t kept =
      cut_term(exact, last, toward_zero ? CutBits::toward_zero : CutBits::to_nearest);
  return static_cast<float>(std::ldexp(static_cast<double>(kept), last));
}

/// Where product i of the order in which groups take them stands in k.
constexpr std::size_t place_of_product(const ProductSumRule& rule, std::size_t i,
                                       std::size_t products) {
  if (!rule.by_pairs) return i;
  const std::size_t half = products / 2, second = i < half ? 0 : 1;
  return (i - second * half) / 2 * 4 + 2 * second + i % 2;
}

/// The old value and all products, by a rule. Everything is finite.
inline float product_sum(const ProductSumRule& rule, float old, std::span<const SumTerm> products) {
  const float before_all = old;
  if (rule.old == OldValue::added_behind) old = 0;
  for (std::size_t first = 0; first < products.size(); first += rule.group) {
    const std::size_t end = std::min(first + rule.group, products.size());
    const auto term = [&](std::size_t i) -> const SumTerm& {
      return products[place_of_product(rule, i, products.size())];
    };
    const SumTerm before = old_term(old);
    const bool has_old = rule.old != OldValue::added_to_groups && before.significand != 0;
    bool is_zero = !has_old;
    int leading = has_old ? before.leading : 0;
    for (std::size_t i = first; i < end; ++i) {
      if (term(i).significand == 0 && !rule.counts_zeros) continue;
      leading = is_zero ? term(i).leading : std::max(leading, term(i).leading);
      is_zero = false;
    }
    if (is_zero) continue;
    const int unit = leading - rule.fraction_bits;
    std::int64_t sum = has_old ? cut_term(before, unit, rule.cut) : 0;
    for (std::size_t i = first; i < end; ++i) sum += cut_term(term(i), unit, rule.cut);
    const float result = sum_result(sum, unit, rule.result_bits, rule.result_toward_zero);
    old = rule.old == OldValue::added_to_groups ? old + result : result;
  }
  return rule.old == OldValue::added_behind ? before_all + old : old;
}

}  // namespace blockscale::emulator::meaning
