// Vectors of 16-bit words, for AVX3, and how bf16 words become f32 and back. Included once per SIMD
// target by encode_words-inl.h and decode_words-inl.h.

#if defined(BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3

using WordTag = hn::ScalableTag<std::uint16_t>;
using FloatTag = hn::Repartition<float, WordTag>;
using BitsTag = hn::Repartition<std::uint32_t, WordTag>;
using ByteTag = hn::Repartition<std::uint8_t, WordTag>;
using Words = hn::Vec<WordTag>;
using Floats = hn::Vec<FloatTag>;
using Bits = hn::Vec<BitsTag>;

inline constexpr std::int64_t kWords = 32;  // in a vector

/// The values of bf16 words: those at even indices, and those at odd ones.
struct SplitWords {
  Floats even;
  Floats odd;

  explicit HWY_INLINE SplitWords(Words words) {
    const Bits pairs = hn::BitCast(BitsTag(), words);
    even = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(pairs));
    odd = hn::BitCast(FloatTag(), hn::And(pairs, hn::Set(BitsTag(), 0xFFFF0000u)));
  }
};

/// 32-bit lanes of two vectors as one vector of their upper halves, or of their lower ones: of what
/// was split, as it was before.
struct Interleaved {
  HWY_INLINE Words upper(Words even, Words odd) const { return take<1>(even, odd); }
  HWY_INLINE Words lower(Words even, Words odd) const { return take<0>(even, odd); }

 private:
  template <int kHalf>
  static HWY_INLINE Words take(Words even, Words odd) {
    alignas(64) static constexpr auto kOrder = [] {
      std::array<std::uint16_t, kWords> order{};
      for (std::size_t i = 0; i < kWords; ++i) {
        order[i] = static_cast<std::uint16_t>(i / 2 * 2 + kHalf + i % 2 * kWords);
      }
      return order;
    }();
    return Words{_mm512_permutex2var_epi16(even.raw, _mm512_load_si512(kOrder.data()), odd.raw)};
  }
};
/// The same of the first 16 values and the second.
struct InOrder {
  HWY_INLINE Words upper(Words first, Words second) const {
    return hn::ConcatOdd(WordTag(), second, first);
  }
  HWY_INLINE Words lower(Words first, Words second) const {
    return hn::ConcatEven(WordTag(), second, first);
  }
};

/// Factors of words that were split: of one block, or of two of 16.
HWY_INLINE Floats split_factors(const float* factors, bool has_two) {
  const Floats first = hn::Set(FloatTag(), factors[0]);
  return has_two ? hn::ConcatUpperLower(FloatTag(), hn::Set(FloatTag(), factors[1]), first) : first;
}

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
