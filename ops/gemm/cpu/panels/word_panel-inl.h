// Panels of B from 32-bit words of codes: words are transposed, not values.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX-512. 16 rows of B x 16 words are
// transposed as they are; then a vector holds the same word of 16 rows, that is 8 or 4 consecutive
// k of each, and each k is decoded where it lies. Panels are those of panel-inl.h, bit for bit.

#if defined(BLOCKSCALE_OPS_GEMM_WORD_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_WORD_PANEL_INL_H_
#undef BLOCKSCALE_OPS_GEMM_WORD_PANEL_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_WORD_PANEL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/panels/chunk-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

/// The values of a vector of words, each of kCodes codes, one k after the other.
template <Format F>
class Words {
 public:
  static constexpr int kCodes = 32 / format_traits(F).bits;

  HWY_INLINE explicit Words(hn::Vec<FloatTag> words) : words_(hn::BitCast(UnsignedTag(), words)) {}

  template <int kIndex>
  HWY_INLINE hn::Vec<FloatTag> values() const {
    constexpr int kBits = format_traits(F).bits;
    const auto at_bottom = hn::ShiftRight<kBits * kIndex>(words_);
    return codes::decode_small<F>(FloatTag(), hn::And(at_bottom, hn::Set(UnsignedTag(), 0xFFu)));
  }

 private:
  using UnsignedTag = hn::RebindToUnsigned<FloatTag>;
  hn::Vec<UnsignedTag> words_;
};

template <>
class Words<Format::e2m1> : public Chunk<Format::e2m1> {
 public:
  static constexpr int kCodes = 8;

  HWY_INLINE explicit Words(hn::Vec<FloatTag> words) : Chunk(words) {}

  template <int kIndex>
  HWY_INLINE hn::Vec<FloatTag> values() const {
    return vector<kIndex>();
  }
};

#if HWY_TARGET == HWY_AVX3_DL
/// The high and the low byte of all values are looked up at once; then two bytes a lane are picked.
template <Format F>
  requires(F == Format::e4m3 || F == Format::e5m2)
class Words<F> {
 public:
  static constexpr int kCodes = 4;

  HWY_INLINE explicit Words(hn::Vec<FloatTag> words)
      : high_(Chunk<F>::high(_mm512_castps_si512(words.raw))),
        low_(Chunk<F>::low(_mm512_castps_si512(words.raw))) {}

  template <int kIndex>
  HWY_INLINE hn::Vec<FloatTag> values() const {
    // Byte 4 i + 2 of the result is low byte 4 i + kIndex, byte 4 i + 3 is the high one's.
    alignas(64) static constexpr auto kPick = [] {
      struct {
        std::uint8_t at[64] = {};
      } pick;
      for (int i = 0; i < 16; ++i) {
        pick.at[4 * i + 2] = static_cast<std::uint8_t>(4 * i + kIndex);
        pick.at[4 * i + 3] = static_cast<std::uint8_t>(64 + 4 * i + kIndex);
      }
      return pick;
    }();
    constexpr __mmask64 kUpperHalves = 0xCCCCCCCCCCCCCCCCu;
    return hn::Vec<FloatTag>{_mm512_castsi512_ps(
        _mm512_maskz_permutex2var_epi8(kUpperHalves, low_, _mm512_load_si512(kPick.at), high_))};
  }

 private:
  __m512i high_;
  __m512i low_;
};
#endif

/// Words [0, 16) of 16 rows, `bytes` bytes of them (the rest is 0), transposed.
HWY_INLINE void transpose_words(const std::uint8_t* row, std::int64_t stride, std::int64_t rows,
                                std::int64_t bytes, hn::Vec<FloatTag> out[16]) {
  const __mmask64 mask = bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
  hn::Vec<FloatTag> in[16];
  HWY_UNROLL(16)
  for (int r = 0; r < 16; ++r) {
    const std::uint8_t* const from = row + std::min<std::int64_t>(r, rows - 1) * stride;
    in[r] = hn::Vec<FloatTag>{_mm512_castsi512_ps(_mm512_maskz_loadu_epi8(mask, from))};
  }
  transpose_16(in, out);
}

/// Decodes 16 columns, `columns` of which are there (the others repeat the last one), into a panel.
template <Format F>
void pack_words(const OperandMatrix& x, const SpanFactors& factors, std::int64_t span,
                std::int64_t first, std::int64_t columns, std::int64_t begin, std::int64_t depth,
                float* panel) {
  using W = Words<F>;
  constexpr std::int64_t kCodesOfVector = 16 * W::kCodes;
  const FloatTag df;
  const std::int64_t block = recipe_traits(x.recipe).block_k;
  const auto factor_rows = factors.rows_of_16(first, columns);
  const std::uint8_t* const row = x.values + first * x.value_row_stride;
  std::int64_t current = -1;
  auto factor = hn::Zero(df);
  for (std::int64_t i = 0; i < depth; i += kCodesOfVector) {
    const std::int64_t left = std::min(depth - i, kCodesOfVector);
    hn::Vec<FloatTag> words[16];
    transpose_words(row + row_bytes(x.recipe, begin + i), x.value_row_stride, columns,
                    row_bytes(x.recipe, left), words);
    for (std::int64_t w = 0; w * W::kCodes < left; ++w) {
      const std::int64_t k = i + w * W::kCodes;
      const std::int64_t wanted = block == 0 ? 0 : (begin - span + k) / block;
      if (wanted != current) {
        factor = hn::GatherIndex(df, factors.values() + wanted, factor_rows);
        current = wanted;
      }
      const W decoded(words[w]);
      float* const out = panel + k * kPanelColumns;
      [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
        (hn::Store(hn::Mul(decoded.template values<kIndex>(), factor), df,
                   out + kIndex * kPanelColumns),
         ...);
      }(std::make_integer_sequence<int, W::kCodes>());
    }
  }
}

/// Whether pack_panel_of_words serves B of `recipe`.
inline bool has_word_panels(Recipe recipe) {
  const Format element = recipe_traits(recipe).element;
  return !is_plain(recipe) &&
         (element == Format::e2m1 || element == Format::e4m3 || element == Format::e5m2);
}

/// pack_panel of panel-inl.h without a look at the values: their range follows from the factors'.
inline void pack_panel_of_words(const OperandMatrix& x, const SpanFactors& factors,
                                std::int64_t span, std::int64_t first, std::int64_t columns,
                                std::int64_t begin, std::int64_t depth, float* panel) {
  for (std::int64_t c = 0; c < columns; ++c) prefetch_slab(x, first + c, begin + kSlab);
  for (int v = 0; v < kPanelVectors; ++v) {
    // A vector of columns that are not there repeats the last one; nobody reads its sums.
    const std::int64_t column = std::min<std::int64_t>(v * kLanes, columns - 1);
    const std::int64_t count = std::min<std::int64_t>(kLanes, columns - column);
    const auto pack = [&]<Format F>() {
      pack_words<F>(x, factors, span, first + column, count, begin, depth, panel + v * kLanes);
    };
    switch (recipe_traits(x.recipe).element) {
      case Format::e2m1: pack.template operator()<Format::e2m1>(); break;
      case Format::e5m2: pack.template operator()<Format::e5m2>(); break;
      default: pack.template operator()<Format::e4m3>(); break;
    }
  }
}

#else

inline bool has_word_panels(Recipe) {
  return false;
}
inline void pack_panel_of_words(const OperandMatrix&, const SpanFactors&, std::int64_t,
                                std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
