// Sums of products of which the bits that a GPU leaves tell how it adds: cases, and the search for
// the rules of meaning/product_sums.h that explain all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "device/emulator/meaning/product_sums.h"

namespace blockscale::golden {

using emulator::meaning::CutBits;
using emulator::meaning::OldValue;
using emulator::meaning::ProductExponent;
using emulator::meaning::ProductSumRule;
using emulator::meaning::SumTerm;

/// One value of D: `old`, and the products of `count` instructions one after the other.
struct SumCase {
  static constexpr std::uint32_t kMostInstructions = 4;
  static constexpr std::uint32_t kMostProducts = 32;  // of an instruction: 32 bytes of a row
  using Codes = std::array<std::uint16_t, kMostProducts * kMostInstructions>;

  Format format = Format::e4m3;  // or f16 or bf16
  float old = 0;
  std::uint32_t count = 1;
  Codes a{}, b{};

  /// Of an instruction.
  std::uint32_t products() const {
    return 256 / static_cast<std::uint32_t>(format_traits(format).bits);
  }

  /// Makes product `k` sign * 2^exponent, from -12 to 16.
  void set_power(std::uint32_t k, int exponent, bool negative = false) {
    const FormatTraits t = format_traits(format);
    const auto power = [&](int x) {
      return static_cast<std::uint16_t>((x + t.bias) << t.mantissa_bits);
    };
    const int half = exponent / 2;
    a[k] = static_cast<std::uint16_t>(power(half) | (negative ? 1 << (t.bits - 1) : 0));
    b[k] = power(exponent - half);
  }
};

inline float sum_of(const ProductSumRule& rule, const SumCase& c) {
  using namespace emulator::meaning;
  float value = c.old;
  for (std::uint32_t i = 0; i < c.count; ++i) {
    std::array<SumTerm, SumCase::kMostProducts> terms;
    for (std::uint32_t k = 0; k < c.products(); ++k) {
      const std::uint32_t at = c.products() * i + k;
      terms[k] = product_term(factor_term(c.format, c.a[at]), factor_term(c.format, c.b[at]),
                              rule.exponent);
    }
    value = product_sum(rule, value, {terms.data(), c.products()});
  }
  return value;
}

/// Cases of all kinds: few and many products, some of 0, near and far exponents, a third of them
/// with many subnormal codes, old values of every magnitude beside them, one instruction and four.
inline std::vector<SumCase> random_sum_cases(std::size_t count, Format format = Format::e4m3) {
  std::mt19937 random(1);
  const auto draw = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(random()) % limit;
  };
  const FormatTraits t = format_traits(format);
  const auto sign = 1u << (t.bits - 1), mantissas = 1u << t.mantissa_bits;
  // Exponent fields: e4m3 and f16 have subnormal codes among the 16 lowest; bf16's are far below.
  const std::uint32_t lowest = format == Format::bf16 ? 120 : 0;
  std::vector<SumCase> cases(count);
  for (SumCase& c : cases) {
    c.format = format;
    c.count = draw(4) == 0 ? SumCase::kMostInstructions : 1;
    const std::uint32_t exponents = 1 + draw(15), present = 1 + draw(8);
    const bool is_small = draw(3) == 0;  // beside one factor of 2^8
    const auto code = [&](bool is_first) {
      std::uint32_t field = 15 - draw(exponents);
      if (is_small) field = is_first && draw(16) == 0 ? 15 : draw(2);
      const std::uint32_t bits = (field + lowest) * mantissas + draw(mantissas);
      const bool is_nan = format == Format::e4m3 && bits == t.nan_code;
      return static_cast<std::uint16_t>((is_nan ? bits - 1 : bits) | (draw(2) != 0 ? sign : 0));
    };
    for (std::size_t k = 0; k < c.products() * c.count; ++k) {
      if (draw(8) >= present) {
        if (draw(2) == 0) c.b[k] = code(false);  // times 0
        continue;
      }
      c.a[k] = code(true);
      c.b[k] = code(draw(2) == 0);
    }
    if (draw(3) != 0) {
      const int least = is_small ? -28 : -20;
      const float magnitude = std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f,
                                         static_cast<int>(draw(44)) + least);
      c.old = draw(2) == 0 ? magnitude : -magnitude;
    }
  }
  return cases;
}

/// Every rule of the family.
inline std::vector<ProductSumRule> all_sum_rules() {
  std::vector<ProductSumRule> rules;
  for (int bits = 8; bits <= 28; ++bits) {
    for (const std::size_t group : {32u, 16u, 8u, 4u}) {
      for (const CutBits cut : {CutBits::toward_zero, CutBits::down, CutBits::to_nearest}) {
        for (const auto exponent :
             {ProductExponent::fields, ProductExponent::factors, ProductExponent::product}) {
          const int all_flags = group == SumCase::kMostProducts / 2 ? 32 : 16;  // by_pairs, too
          for (int i = 0; i < 3 * all_flags / 2; ++i) {
            const int flags = i / 3;
            rules.push_back({bits, group, static_cast<OldValue>(i % 3), exponent, cut,
                             (flags & 1) != 0 ? 23 : std::min(bits, 23), (flags & 2) != 0,
                             (flags & 4) != 0, (flags & 8) != 0});
          }
        }
      }
    }
  }
  return rules;
}

struct RuleScore {
  ProductSumRule rule;
  std::size_t wrong = 0;  // of all cases
};

/// The rules that explain most results, the best first; of those that explain most of the first
/// `first` cases.
inline std::vector<RuleScore> best_sum_rules(const std::vector<SumCase>& cases,
                                             const std::vector<float>& results, std::size_t count,
                                             std::size_t first = 96) {
  const auto wrong_in = [&](const ProductSumRule& rule, std::size_t begin, std::size_t end) {
    std::size_t wrong = 0;
    for (std::size_t i = begin; i < end; ++i) wrong += sum_of(rule, cases[i]) != results[i] ? 1 : 0;
    return wrong;
  };
  std::vector<RuleScore> scores;
  const std::size_t sample = std::min(cases.size(), first);
  for (const ProductSumRule& rule : all_sum_rules()) {
    scores.push_back({rule, wrong_in(rule, 0, sample)});
  }
  const auto better = [](const RuleScore& x, const RuleScore& y) { return x.wrong < y.wrong; };
  std::stable_sort(scores.begin(), scores.end(), better);
  scores.resize(std::min(scores.size(), 32 * count));
  for (RuleScore& s : scores) s.wrong += wrong_in(s.rule, sample, cases.size());
  std::stable_sort(scores.begin(), scores.end(), better);
  scores.resize(std::min(scores.size(), count));
  return scores;
}

inline std::string text_of(const ProductSumRule& rule) {
  constexpr const char* kCuts[] = {"cut toward zero", "cut down", "to nearest"};
  constexpr const char* kOld[] = {"aligned", "added to groups in f32", "added behind in f32"};
  constexpr const char* kExponents[] = {"of fields", "of factors", "of products"};
  return std::to_string(rule.fraction_bits) + " fraction bits, groups of " +
         std::to_string(rule.group) + (rule.by_pairs ? " by pairs" : "") + ", old value " +
         kOld[static_cast<std::size_t>(rule.old)] + ", exponents " +
         kExponents[static_cast<std::size_t>(rule.exponent)] + ", " +
         kCuts[static_cast<std::size_t>(rule.cut)] + ", result to " +
         std::to_string(rule.result_bits) + " bits " +
         (rule.result_toward_zero ? "toward zero" : "to nearest") +
         (rule.counts_zeros ? ", products of 0 aligned too" : "");
}

}  // namespace blockscale::golden
