// Codes of 64 elements at a time, in lanes of 16 bits, for AVX3: half of the instructions that
// lanes of 32 bits take. Included once per SIMD target by ops/quantize/cpu/encode.cpp.
//
// What is rounded is a bf16 number whose last bit says "1 or more" (rounding to odd): that rounds
// to a code as the number itself does, for a code has at least 4 bits less. bf16 elements times
// powers of two stay as they are, and only their exponents are looked at; others are scaled in f32.

#if defined(BLOCKSCALE_OPS_QUANTIZE_ENCODE_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_ENCODE_WORDS_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_ENCODE_WORDS_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_ENCODE_WORDS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/format.h"
#include "ops/common/simd/decode-inl.h"
#include "ops/quantize/cpu/steps.h"
// This is toggled per target as this file is.
#include "ops/quantize/cpu/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// Elements that are encoded together.
inline constexpr std::int64_t kWordGroup = 2 * kWords;

/// What a format is to a word. A code lies in a word's upper bits, its sign on top.
struct WordFormat {
  std::uint16_t base;         // bf16's bits of 2^-bias: where 0 would be if none were subnormal
  std::uint16_t cap;          // the largest number's bits above those
  std::uint16_t up;           // from there to the code's place
  std::uint16_t one;          // the last bit of a code
  std::uint16_t leading;      // of a significand in the binade below the smallest normal number
  std::uint16_t fraction;     // the bits below it
  std::uint16_t fraction_up;  // from bf16's fraction to those
  std::uint16_t sign = 0x8000, magnitude = 0x7FFF, largest = 0x7F7F;  // of bf16
  std::uint16_t inexact = 1;                                          // the last bit of bf16
};

constexpr WordFormat word_format(const FormatTraits& t) {
  WordFormat f{};
  if (t.bits > 8 || t.exponent_bits == 8) return f;
  const int place = 16 - t.bits;
  const auto word = [](int bits) { return static_cast<std::uint16_t>(bits); };
  f.base = word((127 - t.bias) << 7);
  f.cap = word(static_cast<int>(t.max_code) << (7 - t.mantissa_bits));
  f.up = word(place - (7 - t.mantissa_bits));
  f.one = word(1 << place);
  f.leading = word(1 << (place + t.mantissa_bits - 1));
  f.fraction_up = word(place + t.mantissa_bits - 8);
  f.fraction = word(0x7F << f.fraction_up);
  return f;
}

/// By Format. Read at run time, so that all of them stay in registers: g++ makes known constants
/// anew in every turn of a loop.
inline constexpr auto kWordFormats = [] {
  std::array<WordFormat, kFormatCount> formats{};
  for (std::size_t i = 0; i < formats.size(); ++i) formats[i] = word_format(kFormatTraits[i]);
  return formats;
}();

/// Rounds words to codes.
class WordEncoder {
 public:
  explicit HWY_INLINE WordEncoder(const WordFormat& f)
      : cap_(hn::Set(d, f.cap)),
        up_(hn::Set(d, f.up)),
        one_(hn::Set(d, f.one)),
        below_half_(hn::Set(d, static_cast<std::uint16_t>(f.one / 2 - 1))),
        half_(hn::Set(d, static_cast<std::uint16_t>(f.one / 2))),
        leading_(hn::Set(d, f.leading)),
        fraction_(hn::Set(d, f.fraction)),
        fraction_up_(hn::Set(d, f.fraction_up)),
        sign_(hn::Set(d, f.sign)),
        largest_(hn::Set(d, f.largest)) {}

  HWY_INLINE bool are_finite(Words first, Words second) const {
    return hn::AllFalse(d, hn::Gt(hn::Max(first, second), largest_));
  }

  /// Of finite magnitudes times 2^-e, where `base` is the format's plus e in bf16's exponent. Below
  /// the code's place bits are arbitrary.
  HWY_INLINE Words operator()(Words magnitudes, Words signs, Words base) const {
    const Words above = hn::Min(hn::SaturatedSub(magnitudes, base), cap_);
    const Words normal = hn::Shl(above, up_);
    // 0 for the binade below the smallest normal number, 1 for the next one; from that number on it
    // is negative, so that all bits are shifted out.
    const Words last = hn::Add(base, hn::Set(d, std::uint16_t{0x7F}));
    const Words binades = hn::ShiftRight<7>(hn::Sub(last, magnitudes));
    const Words significand = hn::OrAnd(leading_, hn::Shl(magnitudes, fraction_up_), fraction_);
    const Words code = hn::Max(normal, hn::Shr(significand, binades));
    const Words half = hn::IfThenElse(hn::TestBit(code, one_), half_, below_half_);
    return hn::OrAnd(hn::Add(code, half), signs, sign_);
  }

 private:
  static constexpr WordTag d{};
  Words cap_, up_, one_, below_half_, half_, leading_, fraction_, fraction_up_, sign_, largest_;
};

/// Elements times their factors, as magnitudes and as what has their signs on top.
struct ScaledWords {
  Words magnitudes;
  Words signs;
};

/// Words of elements times their blocks' factors. kBlock: 16, 32, or 0 for larger ones.
template <Format kDtype, steps::Scaling kScaling, int kBlock>
class WordSource {
 public:
  explicit HWY_INLINE WordSource(const WordFormat& f)
      : base_(hn::Set(d, static_cast<std::uint16_t>(f.base + (kShifts ? 127u << 7 : 0u)))),
        magnitude_(hn::Set(d, f.magnitude)),
        inexact_(hn::Set(d, f.inexact)) {}

  /// Of the next 32 elements. False: not in words.
  HWY_INLINE bool set_factors(const float* factors) {
    if constexpr (kShifts) {
      // Greater ones would make subnormal elements matter; kZeroCodes is greater as an integer.
      const auto bits = bit_cast<std::uint32_t>(*factors);
      if (HWY_UNLIKELY(bits > bit_cast<std::uint32_t>(0x1p100f))) return false;
      shift_ = hn::Set(d, static_cast<std::uint16_t>(bits >> 16));
      return true;
    } else {
      const float least = kScaling == steps::Scaling::divide ? kLeastDivisor : 0.0f;
      const bool usable = factors[0] >= least && (kBlock != 16 || factors[1] >= least);
      if (HWY_UNLIKELY(!usable)) return false;
      first_ = kIsSplit ? split_factors(factors, kBlock == 16) : hn::Set(df, factors[0]);
      second_ = kIsSplit || kBlock != 16 ? first_ : hn::Set(df, factors[1]);
      if constexpr (kScaling == steps::Scaling::divide) {
        reciprocal_ = hn::Div(hn::Set(df, 1.0f), first_);
      }
      return true;
    }
  }

  HWY_INLINE Words base() const { return kShifts ? hn::Sub(base_, shift_) : base_; }

  HWY_INLINE ScaledWords operator()(const std::uint8_t* x) const {
    if constexpr (kDtype == Format::bf16) {
      const Words elements = hn::BitCast(d, hn::LoadU(ByteTag(), x));
      const Words magnitudes = hn::And(elements, magnitude_);
      if constexpr (kShifts) return {magnitudes, elements};
      const SplitWords split(magnitudes);
      return {to_odd(Interleaved(), scaled(split.even, first_), scaled(split.odd, second_)),
              elements};
    } else {
      constexpr int kBytes = format_traits(kDtype).bits / 8 * 16;
      const Floats first = decode_lanes<kDtype>(df, x);
      const Floats second = decode_lanes<kDtype>(df, x + kBytes);
      const Words signs = hn::ConcatOdd(d, hn::BitCast(d, second), hn::BitCast(d, first));
      const Words words = to_odd(InOrder(), scaled(first, first_), scaled(second, second_));
      return {hn::And(words, magnitude_), signs};
    }
  }

 private:
  static constexpr bool kShifts =
      kDtype == Format::bf16 && kScaling == steps::Scaling::power_of_two;
  /// As encode.cpp's kSmallestForReciprocal, of any format.
  static constexpr float kLeastDivisor = 0x1p-80f;
  static constexpr bool kIsSplit = kDtype == Format::bf16;
  static constexpr WordTag d{};
  static constexpr FloatTag df{};

  /// Values times their factor, or divided by it; -0 may become 0.
  HWY_INLINE Words scaled(Floats values, Floats factor) const {
    if constexpr (kScaling != steps::Scaling::divide) {
      return hn::BitCast(d, hn::Mul(values, factor));
    } else {
      const Floats quotient = hn::Mul(values, reciprocal_);
      const Floats remainder = hn::NegMulAdd(quotient, factor, values);
      return hn::BitCast(d, hn::MulAdd(remainder, reciprocal_, quotient));
    }
  }

  template <class Order>
  HWY_INLINE Words to_odd(Order order, Words first, Words second) const {
    return hn::Or(order.upper(first, second), hn::Min(order.lower(first, second), inexact_));
  }

  Words base_, magnitude_, inexact_;
  Words shift_ = hn::Zero(d);
  Floats first_ = hn::Zero(df), second_ = hn::Zero(df), reciprocal_ = hn::Zero(df);
};

/// Stores a group of codes, packed.
template <int kBits>
HWY_INLINE void store_word_group(Words first, Words second, std::uint8_t* out) {
  constexpr WordTag d;
  constexpr ByteTag d8;
  if constexpr (kBits == 8) {
    hn::StoreU(hn::ConcatOdd(d8, hn::BitCast(d8, second), hn::BitCast(d8, first)), d8, out);
  } else {
    // Codes of neighbours beside each other, in the upper bits of 32.
    constexpr BitsTag d32;
    const auto paired = [&](Words words) HWY_ATTR {
      const auto pairs = hn::BitCast(d32, words);
      return hn::IfVecThenElse(hn::Set(d32, ~0u << (32 - kBits)), pairs,
                               hn::ShiftLeft<16 - kBits>(pairs));
    };
    if constexpr (kBits == 4) {
      constexpr hn::Rebind<std::uint8_t, WordTag> narrow;
      const Words bytes =
          hn::ConcatOdd(d, hn::BitCast(d, paired(second)), hn::BitCast(d, paired(first)));
      hn::StoreU(hn::TruncateTo(narrow, hn::ShiftRight<8>(bytes)), narrow, out);
    } else {
      // The same of four: 24 in the upper bits of 64.
      constexpr hn::Repartition<std::uint64_t, WordTag> d64;
      const auto fours = [&](Words words) HWY_ATTR {
        const auto pairs = hn::BitCast(d64, paired(words));
        const auto four = hn::IfVecThenElse(hn::Set(d64, ~std::uint64_t{0} << 52), pairs,
                                            hn::ShiftLeft<20>(pairs));
        return hn::BitCast(d8, four);
      };
      alignas(16) static constexpr std::uint8_t kFirst[16] = {
          5, 6, 7, 13, 14, 15, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
      alignas(16) static constexpr std::uint8_t kSecond[16] = {
          0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 5, 6, 7, 13, 14, 15, 0x80, 0x80, 0x80, 0x80};
      alignas(64) static constexpr std::uint16_t kOrder[32] = {
          0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26, 3, 4, 5, 11, 12, 13, 19, 20, 21, 27, 28, 29};
      const auto both = hn::Or(hn::TableLookupBytesOr0(fours(first), hn::LoadDup128(d8, kFirst)),
                               hn::TableLookupBytesOr0(fours(second), hn::LoadDup128(d8, kSecond)));
      const __m512i packed = _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both.raw);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(packed));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32), _mm512_extracti32x4_epi32(packed, 2));
    }
  }
}

/// Elements of one row, their factors and codes: as steps::encode_blocks has them.
struct EncodeRun {
  Format element;
  const std::uint8_t* x;
  std::int64_t count;
  std::int64_t block;
  const float* factors;
  std::uint8_t* codes;
  std::int64_t ahead;
};

/// Encodes groups from element `i` on, as many as it can; returns where it stopped: before a group
/// that has an infinity, a NaN or an uncommon factor, or before a part of a block that is no group.
template <Format kDtype, steps::Scaling kScaling, int kBits, int kBlock>
HWY_NOINLINE std::int64_t encode_words(const EncodeRun& run, std::int64_t i) {
  constexpr int kSize = format_traits(kDtype).bits / 8;
  const WordFormat& format = kWordFormats[static_cast<std::size_t>(run.element)];
  const WordEncoder encoder(format);
  WordSource<kDtype, kScaling, kBlock> first(format), second(format);
  const auto encode_group = [&](const auto& of_first, const auto& of_second) HWY_ATTR {
    const std::uint8_t* const x = run.x + i * kSize;
    for (int line = 0; line < kWordGroup * kSize; line += 64) {
      __builtin_prefetch(x + run.ahead + line, 0, 2);  // to level 2
    }
    const ScaledWords a = of_first(x);
    const ScaledWords b = of_second(x + kWords * kSize);
    if (HWY_UNLIKELY(!encoder.are_finite(a.magnitudes, b.magnitudes))) return false;
    store_word_group<kBits>(encoder(a.magnitudes, a.signs, of_first.base()),
                            encoder(b.magnitudes, b.signs, of_second.base()),
                            run.codes + i * kBits / 8);
    return true;
  };
  if constexpr (kBlock != 0) {
    for (; i + kWordGroup <= run.count; i += kWordGroup) {
      const float* const factors = run.factors + i / kBlock;
      if (!first.set_factors(factors) || !second.set_factors(factors + kWords / kBlock)) break;
      if (!encode_group(first, second)) break;
    }
  } else {
    while (i < run.count) {
      const std::int64_t block = i / run.block;
      const std::int64_t end = std::min(run.count, (block + 1) * run.block);
      if (!first.set_factors(run.factors + block)) break;
      for (; i + kWordGroup <= end; i += kWordGroup) {
        if (!encode_group(first, first)) return i;
      }
      if (i != end) break;
    }
  }
  return i;
}

/// The same for any run. Whole rows are one block, so that blocks of these sizes are few others.
template <Format kDtype>
std::int64_t encode_words(const EncodeRun& run, steps::Scaling scaling, std::int64_t i) {
  using steps::Scaling;
  const int bits = format_traits(run.element).bits;
  if (scaling == Scaling::multiply && run.block == 16) {
    return encode_words<kDtype, Scaling::multiply, 4, 16>(run, i);
  }
  if (scaling == Scaling::power_of_two && run.block == 32) {
    if (bits == 4) return encode_words<kDtype, Scaling::power_of_two, 4, 32>(run, i);
    if (bits == 6) return encode_words<kDtype, Scaling::power_of_two, 6, 32>(run, i);
    return encode_words<kDtype, Scaling::power_of_two, 8, 32>(run, i);
  }
  if (run.block < kWordGroup || bits != 8) return i;
  if (scaling == Scaling::power_of_two) {
    return encode_words<kDtype, Scaling::power_of_two, 8, 0>(run, i);
  }
  return encode_words<kDtype, Scaling::divide, 8, 0>(run, i);
}

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
