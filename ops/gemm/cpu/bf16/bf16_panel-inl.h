// Rows of codes as pairs of bf16, exact, in the order in which they are decoded fastest.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL. Codes are read as 32-bit
// words, 16 to a vector. A vector of words of C codes becomes C / 2 vectors of pairs: lane l of
// vector j holds codes j and j + C / 2 of word l, for which halves of words are shifted, and
// nothing is moved. The other operand is brought into the same order (bf16-inl.h).
//
// Scales that are powers of two, or have 3 bits of mantissa beside FP4, are folded in: values are
// looked up as if their scale were the largest one possible, and the difference of exponents is
// added as an integer. That addition saturates: zeros are stored as the least integer, 0x8000, and
// stay so. It says -0, which is as good as 0 in a sum of products.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_PANEL_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_PANEL_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_PANEL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/panels/chunk-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"
#include "ops/gemm/cpu/panels/word_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

/// Exponent of the scale that table entries of `element` have: their largest value is below 2^128,
/// with a scale's mantissa, too.
constexpr int folded_exponent(Format element) {
  return 126 - format_traits(element).max_exponent;
}

/// 2^exponent times `value` in bf16, which must hold it.
constexpr std::uint16_t bf16_scaled(float value, int exponent) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) == 0) return 0x8000;
  const std::uint32_t field = bits + (static_cast<std::uint32_t>(exponent) << 23);
  return static_cast<std::uint16_t>(field >> 16);
}

/// Scales of 16 words, as they are folded into pairs.
struct PairScales {
  __m512i exponents = {};  // of both halves of each pair, minus the table's
  __m512i mantissas = {};  // three bits, above a code's magnitude
  __mmask32 nonzero = 0;

  /// `upper`: the upper halves of scales as f32, of both halves of each pair.
  HWY_INLINE static PairScales of(__m512i upper, Format element) {
    const __m512i field = _mm512_and_si512(upper, _mm512_set1_epi16(0x7F80));
    const auto table = static_cast<short>((127 + folded_exponent(element)) << 7);
    PairScales scales;
    scales.exponents = _mm512_sub_epi16(field, _mm512_set1_epi16(table));
    scales.mantissas = _mm512_and_si512(_mm512_srli_epi16(upper, 1), _mm512_set1_epi16(0x0038));
    scales.nonzero = _mm512_test_epi16_mask(upper, upper);
    return scales;
  }
  /// `values`, looked up, with these scales.
  HWY_INLINE __m512i apply(__m512i values) const {
    return _mm512_maskz_adds_epi16(nonzero, values, exponents);
  }
};

/// A table of bf16 values, looked up by words of 16 bits.
template <int kCount>
struct PairTable {
  alignas(64) std::uint16_t at[kCount] = {};
};

/// FP4 with scales that are powers of two. Of each decoder: the block of k whose scales it folds
/// in, or 0, and codes of a word.
struct PowerOfTwoE2m1 {
  static constexpr Format kElement = Format::e2m1;
  static constexpr int kFoldedBlock = 32;
  static constexpr int kCodes = 8;

  __m512i words;

  HWY_INLINE explicit PowerOfTwoE2m1(__m512i x) : words(x) {}

  /// The look-up reads the five low bits: a code, and one of its neighbour.
  template <int kIndex>
  HWY_INLINE __m512i pairs(const PairScales& scales) const {
    static constexpr auto kTable = [] {
      PairTable<32> table;
      for (std::uint32_t i = 0; i < 32; ++i) {
        table.at[i] = bf16_scaled(decode<kElement>(i % 16), folded_exponent(kElement));
      }
      return table;
    }();
    const __m512i codes = _mm512_srli_epi16(words, 4 * kIndex);
    return scales.apply(_mm512_permutexvar_epi16(codes, _mm512_load_si512(kTable.at)));
  }
};

/// FP4 with ue4m3 scales: magnitudes times mantissas are looked up.
struct ScaledE2m1 {
  static constexpr Format kElement = Format::e2m1;
  static constexpr int kFoldedBlock = 16;
  static constexpr int kCodes = 8;

  __m512i words;

  HWY_INLINE explicit ScaledE2m1(__m512i x) : words(x) {}

  template <int kIndex>
  HWY_INLINE __m512i pairs(const PairScales& scales) const {
    static constexpr auto kTable = [] {
      PairTable<64> table;
      for (std::uint32_t i = 0; i < 64; ++i) {
        const float mantissa = 1.0f + static_cast<float>(i / 8) / 8.0f;
        const float value = decode<kElement>(i % 8) * mantissa;
        table.at[i] = bf16_scaled(value, folded_exponent(kElement));
      }
      return table;
    }();
    constexpr int kAndOr = 0xEA;  // (a & b) | c
    const __m512i codes = _mm512_srli_epi16(words, 4 * kIndex);
    const __m512i index =
        _mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(7), scales.mantissas, kAndOr);
    const __m512i magnitude = scales.apply(_mm512_permutex2var_epi16(
        _mm512_load_si512(kTable.at), index, _mm512_load_si512(kTable.at + 32)));
    const __m512i at_top = kIndex == 3 ? words : _mm512_slli_epi16(words, 12 - 4 * kIndex);
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    return _mm512_ternarylogic_epi32(at_top, sign, magnitude, kAndOr);
  }
};

/// FP8 and FP6, whose words hold codes in bytes: both bytes of the values are looked up.
template <Format F, bool kWithScales>
struct ByteCodes {
  static constexpr Format kElement = F;
  static constexpr int kFoldedBlock = kWithScales ? 32 : 0;
  static constexpr int kCodes = 4;

  __m512i high;
  __m512i low;

  struct Tables {
    alignas(64) std::uint8_t high[128] = {};
    alignas(64) std::uint8_t low[128] = {};
  };
  static constexpr int kBits = format_traits(F).bits;

  HWY_INLINE explicit ByteCodes(__m512i codes) {
    // FP6's sign is part of the table, and what lies above a code makes no difference.
    static constexpr auto kTables = [] {
      Tables tables;
      for (std::uint32_t i = 0; i < 128; ++i) {
        const float value = decode<F>(i % (1u << std::min(kBits, 7)));
        const std::uint32_t bits = kWithScales ? bf16_scaled(value, folded_exponent(F))
                                               : bit_cast<std::uint32_t>(value) >> 16;
        tables.high[i] = static_cast<std::uint8_t>(bits >> 8);
        tables.low[i] = static_cast<std::uint8_t>(bits);
      }
      return tables;
    }();
    const auto look_up = [&](const std::uint8_t* table) HWY_ATTR {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes,
                                      _mm512_load_si512(table + 64));
    };
    low = look_up(kTables.low);
    high = look_up(kTables.high);
    if constexpr (kBits == 8) {
      constexpr int kAndOr = 0xEA;  // (a & b) | c
      const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
      high = _mm512_ternarylogic_epi32(codes, sign, high, kAndOr);
    }
  }

  template <int kIndex>
  HWY_INLINE __m512i pairs(const PairScales& scales) const {
    constexpr __mmask64 kUpperBytes = 0xAAAAAAAAAAAAAAAAu;
    const __m512i values = kIndex == 0
                               ? _mm512_mask_mov_epi8(low, kUpperBytes, _mm512_slli_epi16(high, 8))
                               : _mm512_mask_mov_epi8(_mm512_srli_epi16(low, 8), kUpperBytes, high);
    return kWithScales ? scales.apply(values) : values;
  }
};

/// Calls `body` with the decoder of B.
template <class Body>
auto with_pairs(Recipe recipe, const Body& body) {
  const RecipeTraits& t = recipe_traits(recipe);
  const bool is_mx = t.family == Family::mx;
  switch (t.element) {
    case Format::e2m1:
      return is_mx ? body.template operator()<PowerOfTwoE2m1>()
                   : body.template operator()<ScaledE2m1>();
    case Format::e2m3: return body.template operator()<ByteCodes<Format::e2m3, true>>();
    case Format::e3m2: return body.template operator()<ByteCodes<Format::e3m2, true>>();
    case Format::e5m2:
      return is_mx ? body.template operator()<ByteCodes<Format::e5m2, true>>()
                   : body.template operator()<ByteCodes<Format::e5m2, false>>();
    default:
      return is_mx ? body.template operator()<ByteCodes<Format::e4m3, true>>()
                   : body.template operator()<ByteCodes<Format::e4m3, false>>();
  }
}

/// A row's next 16 words: `bytes` of codes, 6-bit ones spread to bytes, the rest 0.
template <Format F>
HWY_INLINE __m512i load_words(const std::uint8_t* codes, std::int64_t bytes) {
  const __mmask64 mask = bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
  const __m512i packed = _mm512_maskz_loadu_epi8(mask, codes);
  if constexpr (format_traits(F).bits == 6) {
    return Chunk<F>::spread(packed).codes;
  } else {
    return packed;
  }
}

/// Where the upper half of each word's scale lies in a vector of f32 scales, for both halves.
template <class D>
inline constexpr auto kScaleOfWord = [] {
  PairTable<32> at;
  for (int i = 0; i < 32; ++i) {
    at.at[i] = static_cast<std::uint16_t>(i / 2 * D::kCodes / std::max(1, D::kFoldedBlock) * 2 + 1);
  }
  return at;
}();

/// Decodes `count` codes of a row, while as many from `ahead` on are prefetched. `factors`: the
/// scales of its blocks, with room for a vector more. False if there is a code that is no finite
/// number, where a folded scale would spoil it.
template <class D>
HWY_INLINE bool decode_pairs(const std::uint8_t* codes, std::int64_t count, const float* factors,
                             const std::uint8_t* ahead, std::uint16_t* out) {
  constexpr Format kElement = D::kElement;
  constexpr int kBits = format_traits(kElement).bits;
  constexpr std::int64_t kBytes = 2 * D::kCodes * kBits;  // of 16 words
  constexpr bool kFolds = D::kFoldedBlock != 0;
  __m512i largest = _mm512_setzero_si512();
  const std::int64_t bytes = ceil_div(count * kBits, std::int64_t{8});
  const auto decode = [&](__m512i words) HWY_ATTR {
    if constexpr (kBits == 8) largest = _mm512_max_epu8(largest, words & _mm512_set1_epi8(0x7F));
    PairScales scales;
    if constexpr (kFolds) {
      const __m512i order = _mm512_load_si512(kScaleOfWord<D>.at);
      const __m512i upper = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(factors));
      scales = PairScales::of(upper, kElement);
      factors += 16 * D::kCodes / D::kFoldedBlock;
    }
    const D decoded(words);
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
      (_mm512_store_si512(out + kIndex * 32, decoded.template pairs<kIndex>(scales)), ...);
    }(std::make_integer_sequence<int, D::kCodes / 2>());
    out += D::kCodes * 16;
  };
  std::int64_t at = 0;
  for (; at + kBytes <= bytes; at += kBytes) {
    prefetch_to_level_1(ahead + at);
    decode(load_words<kElement>(codes + at, kBytes));
  }
  if (at < bytes) decode(load_words<kElement>(codes + at, bytes - at));
  const auto limit = static_cast<char>(format_traits(kElement).max_code);
  return !kFolds || kBits != 8 || _mm512_cmpgt_epu8_mask(largest, _mm512_set1_epi8(limit)) == 0;
}

#endif  // HWY_AVX3_DL

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
