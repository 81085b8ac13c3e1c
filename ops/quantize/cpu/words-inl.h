// Vectors of 16-bit words, for AVX3, and how bf16 words become f32 and back. Included once per SIMD
// target by encode_words-inl.h and decode_words-inl.h.

#if defined(BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_WORDS_INL_H_
#endif

#include <hwy/highway.h>

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

/// The upper halves of bits in the order in which they were split, and the lower ones.
HWY_INLINE Words upper_words(Bits even, Bits odd) {
  const WordTag d;
  return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<16>(even)));
}
HWY_INLINE Words lower_words(Bits even, Bits odd) {
  const WordTag d;
  return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(odd)), hn::BitCast(d, even));
}

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
