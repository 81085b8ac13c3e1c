// Sums of e4m3 products of which the bits that a GPU leaves tell how it adds: cases, and the search
// for the rules of meaning/wgmma_sums.h that explain all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "device/emulator/meaning/wgmma_sums.h"

namespace blockscale::golden {

using emulator::meaning::CutBits;
using emulator::meaning::WgmmaSumRule;
using emulator::meaning::WgmmaTerm;

/// One value of D: `old`, and the products of `count` instructions one after the other.
struct SumCase {
  static constexpr std::uint32_t kProducts = 32;
  static constexpr std::uint32_t kMostInstructions = 4;
  using Codes = std::array<std::uint8_t, kProducts * kMostInstructions>;

  float old = 0;
  std::uint32_t count = 1;
  Codes a{}, b{};  // e4m3

  /// Makes product `k` sign * 2^exponent, from -12 to 16.
  void set_power(std::uint32_t k, int exponent, bool negative = false) {
    const int half = exponent / 2;
    a[k] = static_cast<std::uint8_t>((half + 7) << 3 | (negative ? 0x80 : 0));
    b[k] = static_cast<std::uint8_t>((exponent - half + 7) << 3);
  }
};

inline float sum_of(const WgmmaSumRule& rule, const SumCase& c) {
  float value = c.old;
  for (std::uint32_t i = 0; i < c.count; ++i) {
    std::array<WgmmaTerm, SumCase::kProducts> terms;
    for (std::uint32_t k = 0; k < terms.size(); ++k) {
      const std::uint32_t at = SumCase::kProducts * i + k;
      using emulator::meaning::wgmma_factor;
      terms[k] =
          emulator::meaning::wgmma_product(wgmma_factor<Format::e4m3>(c.a[at]),
                                           wgmma_factor<Format::e4m3>(c.b[at]), rule.normalises);
    }
    value = emulator::meaning::wgmma_sum(rule, value, terms);
  }
  return value;
}

/// Cases of all kinds: few and many products, some of 0, near and far exponents, subnormal codes,
/// old values of every magnitude beside them, one instruction and four.
inline std::vector<SumCase> random_sum_cases(std::size_t count) {
  std::mt19937 random(1);
  const auto draw = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(random()) % limit;
  };
  std::vector<SumCase> cases(count);
  for (SumCase& c : cases) {
    c.count = draw(4) == 0 ? SumCase::kMostInstructions : 1;
    const std::uint32_t exponents = 1 + draw(15), present = 1 + draw(8);
    const auto code = [&] {
      const std::uint32_t exponent = 15 - draw(exponents);
      const std::uint32_t bits = draw(2) << 7 | exponent << 3 | draw(8);
      return static_cast<std::uint8_t>((bits & 0x7F) == 0x7F ? bits - 1 : bits);  // no NaN
    };
    for (std::size_t k = 0; k < SumCase::kProducts * c.count; ++k) {
      if (draw(8) >= present) {
        if (draw(2) == 0) c.b[k] = code();  // times 0
        continue;
      }
      c.a[k] = code();
      c.b[k] = code();
    }
    if (draw(3) != 0) {
      const float magnitude = std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f,
                                         static_cast<int>(draw(44)) - 20);
      c.old = draw(2) == 0 ? magnitude : -magnitude;
    }
  }
  return cases;
}

/// Every rule of the family.
inline std::vector<WgmmaSumRule> all_sum_rules() {
  std::vector<WgmmaSumRule> rules;
  for (int bits = 8; bits <= 28; ++bits) {
    for (const std::size_t group : {32u, 16u, 8u, 4u}) {
      for (const CutBits cut : {CutBits::toward_zero, CutBits::down, CutBits::to_nearest}) {
        for (int flags = 0; flags < 32; ++flags) {
          rules.push_back({bits, group, (flags & 1) != 0, (flags & 2) != 0, cut,
                           (flags & 16) != 0 ? 23 : std::min(bits, 23), (flags & 4) != 0,
                           (flags & 8) != 0});
        }
      }
    }
  }
  return rules;
}

struct RuleScore {
  WgmmaSumRule rule;
  std::size_t wrong = 0;  // of all cases
};

/// The rules that explain most results, the best first.
inline std::vector<RuleScore> best_sum_rules(const std::vector<SumCase>& cases,
                                             const std::vector<float>& results, std::size_t count) {
  const auto wrong_in = [&](const WgmmaSumRule& rule, std::size_t first, std::size_t end) {
    std::size_t wrong = 0;
    for (std::size_t i = first; i < end; ++i) wrong += sum_of(rule, cases[i]) != results[i] ? 1 : 0;
    return wrong;
  };
  std::vector<RuleScore> scores;
  const std::size_t sample = std::min<std::size_t>(cases.size(), 96);
  for (const WgmmaSumRule& rule : all_sum_rules())
    scores.push_back({rule, wrong_in(rule, 0, sample)});
  const auto better = [](const RuleScore& x, const RuleScore& y) { return x.wrong < y.wrong; };
  std::sort(scores.begin(), scores.end(), better);
  scores.resize(std::min(scores.size(), 32 * count));
  for (RuleScore& s : scores) s.wrong += wrong_in(s.rule, sample, cases.size());
  std::sort(scores.begin(), scores.end(), better);
  scores.resize(std::min(scores.size(), count));
  return scores;
}

inline std::string text_of(const WgmmaSumRule& rule) {
  constexpr const char* kCuts[] = {"cut toward zero", "cut down", "to nearest"};
  return std::to_string(rule.fraction_bits) + " fraction bits, groups of " +
         std::to_string(rule.group) + ", old value " +
         (rule.aligns_old ? "aligned" : "added in f32") + ", exponents " +
         (rule.normalises ? "normalised" : "summed") + ", " +
         kCuts[static_cast<std::size_t>(rule.cut)] + ", result to " +
         std::to_string(rule.result_bits) + " bits " +
         (rule.result_toward_zero ? "toward zero" : "to nearest") +
         (rule.counts_zeros ? ", products of 0 aligned too" : "");
}

}  // namespace blockscale::golden
