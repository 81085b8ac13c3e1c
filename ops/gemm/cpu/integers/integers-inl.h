// FP4 times FP4: blocks are summed as integers, exactly.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL (VNNI). Twice a code is an
// integer of at most 12, so a block of 16 or 32 products is an integer below 2^13. vpdpbusd takes
// bytes without sign on one side: B's are 12 too large, and sums start at what that adds up to, -12
// times the sum of the block of A. Blocks are scaled and added in f32, kIntegerSlab of k at a time.

#if defined(BLOCKSCALE_OPS_GEMM_INTEGERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_INTEGERS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_INTEGERS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_INTEGERS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/common/simd/target_strings.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/panels/microkernel-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"
#include "ops/gemm/cpu/panels/word_panel-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR BLOCKSCALE_TARGET_STR_VNNI
#endif

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// k of a panel of bytes, 32 KiB of them, and of a chain of f32 sums of blocks.
inline constexpr std::int64_t kIntegerSlab = 1024;
/// Scratch of multiply_integers: a panel of bytes and its factors, as f32 numbers.
inline constexpr std::int64_t kIntegerScratch =
    kIntegerSlab * kPanelColumns / 4 + kIntegerSlab / kMinBlock * kPanelColumns;

#if HWY_TARGET == HWY_AVX3_DL

/// Rows of A of a register tile: two accumulators and two sums each.
inline constexpr int kIntegerRows = 6;
/// ue4m3 scales are multiples of it, below 2^18 times as large; times a block's sum of 12 bits they
/// fit 32 bits.
inline constexpr float kScaleUnit = 0x1p-9f;
/// k of 64 bytes of codes; A's bytes of them are 64 of even k, then 64 of odd k.
inline constexpr std::int64_t kCodesOfVector = 128;

/// Twice the values of e2m1, plus `kOffset`.
template <int kOffset>
HWY_INLINE __m512i doubled(__m512i nibbles) {
  alignas(16) static constexpr std::int8_t kDoubled[16] = {
      kOffset,     kOffset + 1,  kOffset + 2, kOffset + 3, kOffset + 4, kOffset + 6,
      kOffset + 8, kOffset + 12, kOffset,     kOffset - 1, kOffset - 2, kOffset - 3,
      kOffset - 4, kOffset - 6,  kOffset - 8, kOffset - 12};
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kDoubled));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

/// The same of the even and of the odd codes of 64 bytes.
template <int kOffset>
HWY_INLINE void double_codes(__m512i codes, __m512i& even, __m512i& odd) {
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  even = doubled<kOffset>(_mm512_and_si512(codes, nibble));
  odd = doubled<kOffset>(_mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
}

/// Row `row` of A as bytes, with -12 times the sum of each block, and its factors over 4, as both
/// sides are doubled.
void pack_integer_row(const OperandMatrix& a, std::int64_t row, IntegerRows& out) {
  const std::int64_t block_words = recipe_traits(a.recipe).block_k / 8;
  const std::int64_t bytes = row_bytes(a.recipe, a.k);
  const std::int64_t i = row - out.first_row;
  const std::uint8_t* const codes = a.values + row * a.value_row_stride;
  for (std::int64_t at = 0; at < bytes; at += 64) {
    const std::int64_t left = bytes - at;
    const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i even;
    __m512i odd;
    double_codes<0>(_mm512_maskz_loadu_epi8(mask, codes + at), even, odd);
    std::int8_t* const to = out.bytes.get() + i * out.row_bytes + 2 * at;
    _mm512_store_si512(to, even);
    _mm512_store_si512(to + 64, odd);
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512i of_even = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, even);
    const __m512i of_words = _mm512_dpbusd_epi32(of_even, ones, odd);
    __m512i sums = _mm512_add_epi32(of_words, _mm512_shuffle_epi32(of_words, _MM_PERM_CDAB));
    if (block_words == 4) {
      sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    }
    // What each block's first word holds.
    const __mmask16 first_words = block_words == 2 ? 0x5555 : 0x1111;
    const __m512i of_blocks =
        _mm512_maskz_compress_epi32(first_words, _mm512_mullo_epi32(sums, _mm512_set1_epi32(-12)));
    const std::int64_t count = std::min<std::int64_t>(16, left / 4) / block_words;
    _mm512_mask_storeu_epi32(out.offsets.get() + i * out.blocks + at / 4 / block_words,
                             static_cast<__mmask16>((1u << count) - 1), of_blocks);
  }
  const float unit = a.recipe == Recipe::nvfp4 ? 0.25f * kScaleUnit : 0.25f;
  float factors[kFactorPitchOfSpan];
  ValueRange& range = out.ranges[static_cast<std::size_t>(i)];
  range = {};
  for (std::int64_t k = 0; k < a.k; k += kSpan) {
    const std::int64_t count = std::min(kSpan, a.k - k);
    const SpanFactors span(a, row, 1, k, count, factors);
    float* const to = out.factors.get() + i * out.blocks + k / (8 * block_words);
    for (std::int64_t j = 0; j < count / (8 * block_words); ++j) to[j] = factors[j] * unit;
    range.include(span.range());
  }
}

/// Decodes 16 columns into a panel of bytes: (word of k, even or odd, column, 4 bytes), of
/// kPanelColumns columns. What is decoded next, 16 rows from `next` on, is prefetched.
inline void pack_integer_columns(const OperandMatrix& x, std::int64_t first, std::int64_t columns,
                                 std::int64_t begin, std::int64_t depth, const std::uint8_t* next,
                                 std::uint8_t* panel) {
  const std::uint8_t* const row = x.values + first * x.value_row_stride;
  for (std::int64_t i = 0; i < depth; i += kCodesOfVector) {
    const std::int64_t left = std::min(depth - i, kCodesOfVector);
    hn::Vec<FloatTag> words[16];
    transpose_words(row + row_bytes(x.recipe, begin + i), x.value_row_stride, columns,
                    row_bytes(x.recipe, left), words);
    std::uint8_t* out = panel + i * kPanelColumns;
    const std::uint8_t* ahead = next + i / 2;
    for (std::int64_t w = 0; w < left / 8; ++w, out += 8 * kPanelColumns) {
      prefetch_to_level_2(ahead);
      ahead += x.value_row_stride;
      __m512i even;
      __m512i odd;
      double_codes<12>(_mm512_castps_si512(words[w].raw), even, odd);
      _mm512_store_si512(out, even);
      _mm512_store_si512(out + 4 * kPanelColumns, odd);
    }
  }
}

/// Factors of 16 columns of B as the kernel takes them: of MX, what is added to the bits of one of
/// A, which multiplies with a power of two; of NVFP4, multiples of kScaleUnit.
HWY_INLINE __m512i integer_factors(__m512 factors, bool is_mx) {
  if (!is_mx) return _mm512_cvtps_epi32(_mm512_mul_ps(factors, _mm512_set1_ps(1 / kScaleUnit)));
  return _mm512_sub_epi32(_mm512_castps_si512(factors), _mm512_set1_epi32(127 << 23));
}

/// What a call of the kernel multiplies: rows of A, and a panel of B over a slab.
struct IntegerProduct {
  const std::int8_t* a = nullptr;  // rows row_bytes apart
  std::int64_t row_bytes = 0;
  const std::int32_t* offsets = nullptr;  // rows `blocks` apart, as are the factors
  const float* factors = nullptr;
  std::int64_t blocks = 0;
  const std::uint8_t* panel = nullptr;
  const std::int32_t* panel_factors = nullptr;  // (block, column)
  std::int64_t slab_blocks = 0;
};

template <int kRows, int kBlockWords>
void multiply_bytes(const IntegerProduct& p, float* HWY_RESTRICT sums) {
  __m512 sum[kRows][2];
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const std::uint8_t* panel = p.panel;
  for (std::int64_t block = 0; block < p.slab_blocks; ++block) {
    __m512i products[kRows][2];
    HWY_UNROLL(6)
    for (int r = 0; r < kRows; ++r) {
      products[r][0] = products[r][1] = _mm512_set1_epi32(p.offsets[r * p.blocks + block]);
    }
    const std::int64_t word = block * kBlockWords;
    const std::int8_t* const a = p.a + word / 16 * kCodesOfVector + word % 16 * 4;
    HWY_UNROLL(8)
    for (int i = 0; i < 2 * kBlockWords; ++i, panel += 4 * kPanelColumns) {
      const __m512i b0 = _mm512_load_si512(panel);
      const __m512i b1 = _mm512_load_si512(panel + 64);
      const std::int8_t* const a_word = a + i % 2 * 64 + i / 2 * 4;
      HWY_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        std::int32_t four;
        std::memcpy(&four, a_word + r * p.row_bytes, sizeof(four));
        const __m512i x = _mm512_set1_epi32(four);
        products[r][0] = _mm512_dpbusd_epi32(products[r][0], b0, x);
        products[r][1] = _mm512_dpbusd_epi32(products[r][1], b1, x);
      }
    }
    constexpr bool kIsMx = kBlockWords == 4;
    HWY_UNROLL(2)
    for (int v = 0; v < 2; ++v) {
      const __m512i of_b = _mm512_load_si512(p.panel_factors + block * kPanelColumns + v * 16);
      HWY_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        std::int32_t bits;
        std::memcpy(&bits, p.factors + r * p.blocks + block, sizeof(bits));
        const __m512i of_a = _mm512_set1_epi32(bits);
        const __m512i factor = kIsMx ? _mm512_add_epi32(of_a, of_b) : of_a;
        const __m512i scaled = kIsMx ? products[r][v] : _mm512_mullo_epi32(products[r][v], of_b);
        sum[r][v] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(scaled), _mm512_castsi512_ps(factor), sum[r][v]);
      }
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    float* const to = sums + r * kTileColumns;
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), sum[r][0]));
    _mm512_store_ps(to + 16, _mm512_add_ps(_mm512_load_ps(to + 16), sum[r][1]));
  }
}

/// multiply_bytes for 1..kIntegerRows rows.
using MultiplyBytes = void (*)(const IntegerProduct&, float*);
template <int kBlockWords, int... kIndex>
constexpr std::array<MultiplyBytes, sizeof...(kIndex)> multiply_bytes_table(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_bytes<kIndex + 1, kBlockWords>...};
}
template <int kBlockWords>
inline constexpr auto kMultiplyBytes =
    multiply_bytes_table<kBlockWords>(std::make_integer_sequence<int, kIntegerRows>());

/// Adds the products of a slab to the tile: all rows of the task times one panel.
inline void multiply_integer_panel(const IntegerRows& rows, const Task& task, std::int64_t block,
                                   std::int64_t first_block, IntegerProduct product, float* sums) {
  const RowGroups groups(task.row_end - task.row_begin, kIntegerRows);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t row = task.row_begin + groups.begin(g);
    product.a = rows.bytes.get() + row * rows.row_bytes + first_block * block;
    product.row_bytes = rows.row_bytes;
    product.offsets = rows.offsets.get() + row * rows.blocks + first_block;
    product.factors = rows.factors.get() + row * rows.blocks + first_block;
    product.blocks = rows.blocks;
    const auto index = static_cast<std::size_t>(groups.end(g) - groups.begin(g) - 1);
    (block == 16 ? kMultiplyBytes<2> : kMultiplyBytes<4>)[index](
        product, sums + groups.begin(g) * kTileColumns);
  }
}

/// Adds the products of k in [begin, begin + count), a span, to the tile. False, and nothing done,
/// if f32 might not hold the sums.
bool multiply_integers(const PackedBand& band, const OperandMatrix& b, const Task& task,
                       const SpanFactors& factors, std::int64_t begin, std::int64_t count,
                       float* scratch, float* sums) {
  const IntegerRows& rows = band.integers;
  if (!integers_are_safe(rows.range, factors.range())) return false;
  std::fill_n(sums, (task.row_end - task.row_begin) * kTileColumns, 0.0f);
  const std::int64_t block = recipe_traits(b.recipe).block_k;
  const std::int64_t last_16_rows = std::max<std::int64_t>(0, b.rows - kLanes);
  auto* const panel_factors =
      reinterpret_cast<std::int32_t*>(scratch + kIntegerSlab * kPanelColumns / 4);
  std::uint8_t* const panel = reinterpret_cast<std::uint8_t*>(scratch);
  for (std::int64_t first = begin; first < begin + count; first += kIntegerSlab) {
    const std::int64_t depth = std::min(kIntegerSlab, begin + count - first);
    IntegerProduct product;
    product.panel = panel;
    product.panel_factors = panel_factors;
    product.slab_blocks = depth / block;
    for (std::int64_t c = 0; c < task.columns; c += kPanelColumns) {
      for (int v = 0; v < kPanelVectors; ++v) {
        // Columns that are not there repeat the last one; nobody reads their sums.
        const std::int64_t column = std::min(c + v * kLanes, task.columns - 1);
        const std::int64_t columns = std::min<std::int64_t>(kLanes, task.columns - column);
        const std::int64_t row = task.column_begin + column;
        // What follows: 16 rows further, else the next slab, else the next task's rows.
        const bool last_rows = column + kLanes >= task.columns;
        const bool last_slab = first + kIntegerSlab >= begin + count;
        const std::int64_t wanted = !last_rows   ? row + kLanes
                                    : !last_slab ? task.column_begin
                                                 : task.column_begin + task.columns;
        const std::int64_t at = !last_rows ? first : !last_slab ? first + kIntegerSlab : begin;
        const std::int64_t next_row = std::clamp<std::int64_t>(wanted, 0, last_16_rows);
        const std::uint8_t* const next =
            b.values + next_row * b.value_row_stride + row_bytes(b.recipe, at);
        pack_integer_columns(b, row, columns, first, depth, next, panel + v * 64);
        const auto factor_rows = factors.rows_of_16(row, columns);
        for (std::int64_t i = 0; i < product.slab_blocks; ++i) {
          const float* const base = factors.values() + (first - begin) / block + i;
          const __m512 gathered = hn::GatherIndex(FloatTag(), base, factor_rows).raw;
          _mm512_store_si512(panel_factors + i * kPanelColumns + v * kLanes,
                             integer_factors(gathered, block == 32));
        }
      }
      multiply_integer_panel(rows, task, block, first / block, product, sums + c);
    }
  }
  return true;
}

/// Whether products of these recipes are sums of integers here.
bool has_integers(Recipe a, Recipe b) {
  return a == b && recipe_traits(a).element == Format::e2m1;
}

/// Rows [begin, end) of the band.
void pack_integer_rows(const OperandMatrix& a, std::int64_t begin, std::int64_t end,
                       IntegerRows& out) {
  for (std::int64_t r = begin; r < end; ++r) pack_integer_row(a, out.first_row + r, out);
}

#else

bool multiply_integers(const PackedBand&, const OperandMatrix&, const Task&, const SpanFactors&,
                       std::int64_t, std::int64_t, float*, float*) {
  return false;
}
bool has_integers(Recipe, Recipe) {
  return false;
}
void pack_integer_rows(const OperandMatrix&, std::int64_t, std::int64_t, IntegerRows&) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
