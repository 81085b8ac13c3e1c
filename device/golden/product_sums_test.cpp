// The rules of meaning/product_sums.h on sums that were worked out by hand, and the search for the
// rule that a GPU follows on sums of a rule that is known.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device/golden/product_sum_cases.h"

namespace blockscale::golden {
namespace {

using emulator::meaning::factor_term;
using emulator::meaning::old_term;

TEST(ProductSums, FactorsAreTheirCodes) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const SumTerm x = factor_term(Format::e4m3, code);
    EXPECT_EQ(std::ldexp(static_cast<float>(x.significand), x.exponent),
              decode<Format::e4m3>(code));
    EXPECT_EQ(x.leading, std::max(static_cast<int>(code >> 3 & 15), 1) - 7);
  }
  for (const float value : {1.0f, -1.5f, 0x1.fffffep+20f, 3e-7f}) {
    const SumTerm x = old_term(value);
    EXPECT_EQ(std::ldexp(static_cast<double>(x.significand), x.exponent), double{value});
    EXPECT_EQ(x.leading, std::ilogb(value));
  }
}

/// 2^16 and one term of 2^(16 - distance).
SumCase large_and(int distance, bool negative = false) {
  SumCase c;
  c.set_power(0, 16);
  c.set_power(20, 16 - distance, negative);
  return c;
}

TEST(ProductSums, BitsBelowTheLastAreCut) {
  const ProductSumRule rule = {.fraction_bits = 13};
  EXPECT_EQ(sum_of(rule, large_and(13)), 65536 + 8);
  EXPECT_EQ(sum_of(rule, large_and(14)), 65536);
  EXPECT_EQ(sum_of(rule, large_and(14, true)), 65536);
  ProductSumRule down = rule, nearest = rule;
  down.cut = CutBits::down;
  nearest.cut = CutBits::to_nearest;
  EXPECT_EQ(sum_of(down, large_and(14, true)), 65536 - 8);
  EXPECT_EQ(sum_of(down, large_and(28, true)), 65536 - 8);
  EXPECT_EQ(sum_of(nearest, large_and(14)), 65536);  // ties to even
  SumCase more = large_and(13);
  more.a[20] |= 4;  // 1.5
  EXPECT_EQ(sum_of(rule, more), 65536 + 8);
  EXPECT_EQ(sum_of(nearest, more), 65536 + 16);
}

TEST(ProductSums, GroupsAlignForThemselves) {
  SumCase c;
  c.set_power(0, 16);
  c.set_power(20, 2);
  c.set_power(21, 2);
  ProductSumRule rule = {.fraction_bits = 13};
  EXPECT_EQ(sum_of(rule, c), 65536);
  rule.group = 16;
  EXPECT_EQ(sum_of(rule, c), 65536);  // what the first group gave is a term of the second
  rule.old = OldValue::added_to_groups;
  EXPECT_EQ(sum_of(rule, c), 65536 + 8);
}

TEST(ProductSums, OldValues) {
  SumCase c;
  c.set_power(0, 2);
  c.old = 65536;
  ProductSumRule rule = {.fraction_bits = 13};
  EXPECT_EQ(sum_of(rule, c), 65536);
  rule.old = OldValue::added_to_groups;
  EXPECT_EQ(sum_of(rule, c), 65540);
  c = {};
  c.set_power(0, 2);
  c.old = 1 + 0x1p-12f;
  EXPECT_EQ(sum_of({.fraction_bits = 13}, c), 5);
  EXPECT_EQ(sum_of({.fraction_bits = 14, .result_bits = 23}, c), 5 + 0x1p-12f);
}

TEST(ProductSums, ExponentsOfProducts) {
  SumCase c;
  c.a[0] = c.b[0] = 0x3F;  // 1.875, whose square is 3.515625
  c.set_power(1, -11);
  ProductSumRule rule = {.fraction_bits = 11, .result_bits = 23};
  EXPECT_EQ(sum_of(rule, c), 3.515625f + 0x1p-11f);
  rule.exponent = ProductExponent::product;
  EXPECT_EQ(sum_of(rule, c), 3.515625f);
}

TEST(ProductSums, ResultsAreCutToo) {
  SumCase c;
  for (std::uint32_t k = 0; k < 3; ++k) c.set_power(k, 16);
  c.set_power(3, 4);
  c.set_power(4, 3);
  ProductSumRule rule = {.fraction_bits = 13, .result_bits = 23};
  EXPECT_EQ(sum_of(rule, c), 3 * 65536 + 16 + 8);
  rule.result_bits = 13;
  EXPECT_EQ(sum_of(rule, c), 3 * 65536 + 16);
  rule.result_toward_zero = false;
  EXPECT_EQ(sum_of(rule, c), 3 * 65536 + 32);  // a tie, to even
  // The longest sum that f32 holds, and one bit more.
  using emulator::meaning::sum_result;
  EXPECT_EQ(sum_result((1 << 24) - 1, -24, 23, true), 1 - 0x1p-24f);
  EXPECT_EQ(sum_result((1 << 25) - 1, -25, 23, true), 1 - 0x1p-24f);
  EXPECT_EQ(sum_result((1 << 25) - 1, -25, 23, false), 1);
  EXPECT_EQ(sum_result(1 - (1 << 25), -25, 23, true), -1 + 0x1p-24f);
}

TEST(ProductSums, ProductsOfZero) {
  SumCase c;
  c.set_power(0, 0);
  c.set_power(1, -8);
  c.set_power(2, 4);
  c.a[2] = 0;  // of exponent -6, with b's 2
  ProductSumRule rule = {.fraction_bits = 8};
  EXPECT_EQ(sum_of(rule, c), 1 + 0x1p-8f);
  c.b[2] = 15 << 3;  // 2^8
  rule.counts_zeros = true;
  EXPECT_EQ(sum_of(rule, c), 1);
}

TEST(ProductSums, ManyBitsAreExact) {
  const ProductSumRule rule = {.fraction_bits = 36, .result_bits = 23, .result_toward_zero = false};
  for (const SumCase& c : random_sum_cases(2000)) {
    if (c.count != 1 || c.old != 0) continue;
    double sum = 0;
    for (std::uint32_t k = 0; k < SumCase::kMostProducts; ++k) {
      sum += double{decode<Format::e4m3>(c.a[k])} * double{decode<Format::e4m3>(c.b[k])};
    }
    ASSERT_EQ(sum_of(rule, c), static_cast<float>(sum));
  }
}

TEST(ProductSums, TheSearchFindsTheRule) {
  const std::vector<SumCase> cases = random_sum_cases(1024);
  for (const ProductSumRule& rule :
       {ProductSumRule{},
        ProductSumRule{12, 16, OldValue::aligned, ProductExponent::product, CutBits::down, 23,
                       true},
        ProductSumRule{12, 8, OldValue::added_to_groups, ProductExponent::fields,
                       CutBits::to_nearest, 12, false, true},
        ProductSumRule{.fraction_bits = 14,
                       .group = 16,
                       .old = OldValue::added_behind,
                       .exponent = ProductExponent::factors,
                       .result_bits = 23,
                       .by_pairs = true}}) {
    std::vector<float> results;
    for (const SumCase& c : cases) results.push_back(sum_of(rule, c));
    const std::vector<RuleScore> best = best_sum_rules(cases, results, 6, 32);
    EXPECT_EQ(best[0].wrong, 0u);
    // Rules that differ only in what never happens are as good; no other is.
    for (const RuleScore& s : best) {
      if (s.wrong != 0) continue;
      EXPECT_EQ(s.rule.fraction_bits, rule.fraction_bits) << text_of(s.rule);
      EXPECT_EQ(s.rule.group, rule.group) << text_of(s.rule);
      EXPECT_EQ(s.rule.old, rule.old) << text_of(s.rule);
      EXPECT_EQ(s.rule.exponent, rule.exponent) << text_of(s.rule);
      EXPECT_EQ(s.rule.cut, rule.cut) << text_of(s.rule);
      EXPECT_EQ(s.rule.result_bits, rule.result_bits) << text_of(s.rule);
      EXPECT_EQ(s.rule.counts_zeros, rule.counts_zeros) << text_of(s.rule);
      EXPECT_EQ(s.rule.by_pairs, rule.by_pairs) << text_of(s.rule);
    }
  }
}

}  // namespace
}  // namespace blockscale::golden
