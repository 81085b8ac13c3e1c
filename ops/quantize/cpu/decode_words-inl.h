// Codes to bf16, 32 at a time, for AVX3: values are looked up as bf16 words, which hold them
// exactly, and meet their factors in f32. Included once per SIMD target by
// ops/quantize/cpu/decode.cpp.

#if defined(BLOCKSCALE_OPS_QUANTIZE_DECODE_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_DECODE_WORDS_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_DECODE_WORDS_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_DECODE_WORDS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/format.h"
#include "ops/quantize/cpu/steps.h"
// This is toggled per target as this file is.
#include "ops/quantize/cpu/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

/// bf16 words of the codes of a format, without their sign where there are 8 bits. A look-up reads
/// the index's low bits only, so that a table of 16 codes is there twice.
template <Format F>
struct alignas(64) WordTable {
  static constexpr int kBits = format_traits(F).bits;
  std::uint16_t at[kBits == 8 ? 128 : kBits == 6 ? 64 : 32] = {};

  constexpr WordTable() {
    constexpr std::uint32_t kCodes = kBits == 8 ? 128 : 1u << kBits;
    for (std::uint32_t i = 0; i < std::size(at); ++i) {
      const float value = decode<F>(i % kCodes);
      const bool is_nan = value != value;
      at[i] = is_nan ? std::uint16_t{0x7FC0}
                     : static_cast<std::uint16_t>(bit_cast<std::uint32_t>(value) >> 16);
    }
  }
  HWY_INLINE __m512i part(int i) const { return _mm512_load_si512(at + i * kWords); }
};
template <Format F>
inline constexpr WordTable<F> kWordTable{};

/// Where lane i finds its code of less than 8 bits, in a load of kWords of them: words in a vector
/// that a code's two bytes are in, these bytes within its 16 bytes, and the shift to the low bits.
template <int kBits>
struct alignas(64) WordLanes {
  std::uint16_t words[kWords] = {};
  std::uint8_t bytes[2 * kWords] = {};
  std::uint16_t shifts[kWords] = {};

  constexpr WordLanes() {
    for (int lane = 0; lane < kWords; ++lane) {
      // Eight codes, kBits bytes, to each 16.
      words[lane] = static_cast<std::uint16_t>(lane / 8 * kBits / 2 + lane % 8);
      const int bit = lane % 8 * kBits;
      bytes[2 * lane] = static_cast<std::uint8_t>(bit / 8);
      bytes[2 * lane + 1] = static_cast<std::uint8_t>(bit / 8 + 1);
      shifts[lane] = static_cast<std::uint16_t>(bit % 8);
    }
  }
};
template <int kBits>
inline constexpr WordLanes<kBits> kWordLanes{};

/// bf16 words of the kWords codes that begin at `codes`; reads no others.
template <Format F>
HWY_INLINE Words decode_words(const std::uint8_t* codes) {
  constexpr int kBits = format_traits(F).bits;
  const auto& table = kWordTable<F>;
  if constexpr (kBits == 8) {
    const __m512i words =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i low = _mm512_permutex2var_epi16(table.part(0), words, table.part(1));
    const __m512i high = _mm512_permutex2var_epi16(table.part(2), words, table.part(3));
    const __mmask32 is_high = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
    return hn::OrAnd(Words{_mm512_mask_blend_epi16(is_high, low, high)},
                     Words{_mm512_slli_epi16(words, 8)}, hn::Set(WordTag(), std::uint16_t{0x8000}));
  } else {
    const auto& lanes = kWordLanes<kBits>;
    // Not with one masked load, which took longer on Zen 5 than all that follows.
    __m256i packed =
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    if constexpr (kBits == 6) {
      packed = _mm256_inserti128_si256(packed, _mm_loadu_si64(codes + 16), 1);
    }
    const __m512i spread =
        _mm512_permutexvar_epi16(_mm512_load_si512(lanes.words), _mm512_castsi256_si512(packed));
    const __m512i bytes = _mm512_shuffle_epi8(spread, _mm512_load_si512(lanes.bytes));
    const __m512i index = _mm512_srlv_epi16(bytes, _mm512_load_si512(lanes.shifts));
    if constexpr (kBits == 6) {
      return Words{_mm512_permutex2var_epi16(table.part(0), index, table.part(1))};
    } else {
      return Words{_mm512_permutexvar_epi16(index, table.part(0))};
    }
  }
}

/// f32 rounded to bf16, in the upper halves: to nearest even, infinity beyond its range.
HWY_INLINE Words round_to_upper(Floats values) {
  const BitsTag d;
  const Bits bits = hn::BitCast(d, values);
  const auto is_odd = hn::TestBit(bits, hn::Set(d, 0x10000u));
  const Bits half = hn::IfThenElse(is_odd, hn::Set(d, 0x8000u), hn::Set(d, 0x7FFFu));
  return hn::BitCast(WordTag(), hn::Add(bits, half));
}

/// Decodes vectors of codes from element `i` on, as steps::decode_blocks does to bf16, as many as
/// it can; returns where it stopped: before a factor that is NaN, or before a part of a block that
/// is no vector. kBlock: 16, 32, or 0 for larger ones.
template <Format F, int kBlock>
std::int64_t decode_words_run(const std::uint8_t* codes, std::int64_t i, std::int64_t count,
                              std::int64_t block, const float* factors, std::uint8_t* out) {
  constexpr int kBits = format_traits(F).bits;
  while (i < count) {
    const std::int64_t index = i / (kBlock == 0 ? block : kBlock);
    const std::int64_t end = kBlock == 0 ? std::min(count, (index + 1) * block) : count;
    const float* const its = factors + index;
    if (its[0] != its[0] || (kBlock == 16 && i + kWords <= end && its[1] != its[1])) return i;
    const Floats factor = split_factors(its, kBlock == 16);
    const std::int64_t stop = kBlock == 0 ? end : std::min(end, i + kWords);
    for (; i + kWords <= stop; i += kWords) {
      const SplitWords values(decode_words<F>(codes + i * kBits / 8));
      const Words even = round_to_upper(hn::Mul(values.even, factor));
      const Words odd = round_to_upper(hn::Mul(values.odd, factor));
      const Words words = Interleaved().upper(even, odd);
      // A NaN of either sign: what a multiplication makes of infinity and 0, or of the table's.
      const auto is_nan = hn::Eq(words, hn::Set(WordTag(), std::uint16_t{0xFFC0}));
      const Words canonical =
          hn::IfThenElse(is_nan, hn::Set(WordTag(), std::uint16_t{0x7FC0}), words);
      hn::StoreU(hn::BitCast(ByteTag(), canonical), ByteTag(), out + i * 2);
    }
    if (i != stop) return i;
  }
  return i;
}

template <Format F>
std::int64_t decode_words_run(const std::uint8_t* codes, std::int64_t i, std::int64_t count,
                              std::int64_t block, const float* factors, std::uint8_t* out) {
  if (block == 32) return decode_words_run<F, 32>(codes, i, count, block, factors, out);
  if (block == 16) return decode_words_run<F, 16>(codes, i, count, block, factors, out);
  return block < kWords ? i : decode_words_run<F, 0>(codes, i, count, block, factors, out);
}

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
