// Products of bf16 pairs: every operand whose elements bf16 holds exactly.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL, on CPUs with AVX-512 BF16.
// dpbf16ps is two fused multiply-adds in f32, odd element first, each rounded to nearest even;
// subnormal numbers count as zeros. A slab of kPairSlab of k is one chain of them for each element
// of D. Slabs are added in f32, scales that are not folded into the panel applied to them; spans of
// kSpan go to the f64 tile.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/bf16_panel-inl.h"
#include "ops/gemm/cpu/microkernel-inl.h"
#include "ops/gemm/cpu/panel-inl.h"
#include "ops/gemm/cpu/span_factors-inl.h"

#pragma push_macro("HWY_TARGET_STR")
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR                                                                   \
  HWY_TARGET_STR_AVX3                                                                    \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg,avx512vpopcn" \
  "tdq,avx512bf16"
#endif

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Scratch of multiply_span_of_pairs beside the sums: a panel, and factors of its columns.
inline constexpr std::int64_t kPairScratch =
    kSlab * kPanelColumns + (kSlab / kMinBlock + 1) * kPanelColumns;

#if HWY_TARGET == HWY_AVX3_DL

/// Rows of A up to which columns are decoded in registers.
inline constexpr int kFusedRows = 16;

/// What a call of the kernel multiplies: rows of A kPairSlab apart, and a panel of B.
struct PairProduct {
  const std::uint16_t* a = nullptr;
  const std::uint16_t* panel = nullptr;
  std::int64_t pairs = 0;
  const float* row_factors = nullptr;     // null: both scales are folded
  const float* column_factors = nullptr;  // kPanelColumns
};

/// Adds `sum`, of row `r` and vector `v` of the columns, to `sums`, rows kTileColumns apart.
HWY_INLINE void add_sum(const PairProduct& p, int r, int v, __m512 sum, float* sums) {
  float* const to = sums + r * kTileColumns + v * kLanes;
  const __m512 old = _mm512_load_ps(to);
  if (p.row_factors == nullptr) {
    _mm512_store_ps(to, _mm512_add_ps(old, sum));
  } else {
    const __m512 scaled = _mm512_mul_ps(sum, _mm512_load_ps(p.column_factors + v * kLanes));
    _mm512_store_ps(to, _mm512_fmadd_ps(scaled, _mm512_set1_ps(p.row_factors[r]), old));
  }
}

/// Adds the products of kRows rows and a panel to `sums`, rows kTileColumns apart.
template <int kRows>
void multiply_pairs(const PairProduct& p, float* HWY_RESTRICT sums) {
  __m512 sum[kRows][2];
  HWY_UNROLL(14)
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const auto* a = reinterpret_cast<const std::int32_t*>(p.a);
  const std::uint16_t* panel = p.panel;
  for (std::int64_t i = 0; i < p.pairs; ++i, ++a, panel += 2 * kPanelColumns) {
    const auto b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(panel));
    const auto b1 = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + 32));
    HWY_UNROLL(14)
    for (int r = 0; r < kRows; ++r) {
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[r * (kPairSlab / 2)]));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
    }
  }
  HWY_UNROLL(14)
  for (int r = 0; r < kRows; ++r) {
    add_sum(p, r, 0, sum[r][0], sums);
    add_sum(p, r, 1, sum[r][1], sums);
  }
}

using MultiplyPairs = void (*)(const PairProduct&, float*);
template <int... kIndex>
constexpr std::array<MultiplyPairs, sizeof...(kIndex)> multiply_pairs_table(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_pairs<kIndex + 1>...};
}
/// multiply_pairs for 1..kMaxPanelRows rows.
inline constexpr auto kMultiplyPairs =
    multiply_pairs_table(std::make_integer_sequence<int, kMaxPanelRows>());

/// The same without a panel: kRows rows, `rows` of which are there, times 16 columns that are
/// decoded in registers. Where rows are few, this hides the decoding behind the products.
template <class D, int kRows>
bool multiply_words(const PairProduct& p, int rows, const float* words, std::int64_t count,
                    const float* factors, std::int64_t words_of_block, float* HWY_RESTRICT sums) {
  __m512 sum[kRows];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  const auto* const a = reinterpret_cast<const std::int32_t*>(p.a);
  const auto multiply = [&](std::int64_t w, const D& decoded, const PairScales& scales) HWY_ATTR {
    const std::int32_t* const a_word = a + w * (D::kCodes / 2);
    const auto add = [&]<int kIndex>() HWY_ATTR {
      const auto b = reinterpret_cast<__m512bh>(decoded.template pairs<kIndex>(scales));
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t pair = a_word[r * (kPairSlab / 2) + kIndex];
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sum[r] = _mm512_dpbf16_ps(sum[r], x, b);
      }
    };
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
      (add.template operator()<kIndex>(), ...);
    }(std::make_integer_sequence<int, D::kCodes / 2>());
  };
  const bool done = decode_words<D>(words, count, factors, words_of_block, multiply);
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) add_sum(p, r, 0, sum[r], sums);
  }
  return done;
}

/// Brings 32 f32 values that bf16 holds into the order of pairs of words of kCodes codes.
template <int kCodes>
HWY_INLINE void store_pairs(const float* values, std::uint16_t* out) {
  static constexpr auto kOrder = [] {
    PairTable<32> order;
    for (std::uint32_t i = 0; i < 32; ++i) {
      const std::uint32_t word = i / kCodes * kCodes;
      const std::uint32_t element = word + i % kCodes / 2 + i % 2 * (kCodes / 2);
      order.at[i] = static_cast<std::uint16_t>(2 * element + 1);  // upper half
    }
    return order;
  }();
  const __m512i pairs = _mm512_permutex2var_epi16(
      _mm512_load_si512(values), _mm512_load_si512(kOrder.at), _mm512_load_si512(values + 16));
  _mm512_store_si512(out, pairs);
}

/// Rows [begin, end) of a chunk of A, at most kMaxDecodedRows, as pairs for B of `recipe`.
void pack_pair_rows(const OperandMatrix& a, Recipe recipe, std::int64_t begin, std::int64_t end,
                    PairRows& out) {
  const RecipeTraits& t = recipe_traits(a.recipe);
  const bool late = has_late_scales(t);
  static_assert(kPairSlab == kSlab);
  alignas(64) float values[kMaxDecodedRows * kSlab];
  RangeOfVectors range;
  for (std::int64_t k = 0; k < a.k; k += kPairSlab) {
    const std::int64_t depth = std::min(kPairSlab, a.k - k);
    if (!late) decode_rows(a, out.first_row + begin, end - begin, k, depth, values);
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = values + (r - begin) * kSlab;
      if (late) {
        codes::decode_run(t.element, a.values + (out.first_row + r) * a.value_row_stride, k, depth,
                          row);
      }
      std::fill(row + depth, row + kSlab, 0.0f);
      std::uint16_t* const to = out.values.get() + (k / kPairSlab * out.pitch + r) * kPairSlab;
      for (std::int64_t i = 0; i < kPairSlab; i += 32) {
        range.include(hn::Load(FloatTag(), row + i));
        range.include(hn::Load(FloatTag(), row + i + 16));
        with_pairs(recipe, [&]<class D>() HWY_ATTR { store_pairs<D::kCodes>(row + i, to + i); });
      }
    }
  }
  ValueRange factor_range{0x3F800000u, 0x3F800000u - 1};
  if (late) {
    factor_range = {};
    alignas(64) float factors[kFactorPitchOfSpan];
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t k = 0; k < a.k; k += kSpan) {
        const SpanFactors span(a, out.first_row + r, 1, k, std::min(kSpan, a.k - k), factors);
        factor_range.include(span.range());
        for (std::int64_t i = k; i < std::min(a.k, k + kSpan); i += kLateBlock) {
          out.factors[static_cast<std::size_t>(i / kLateBlock * out.pitch + r)] =
              factors[t.block_k == 0 ? 0 : (i - k) / kLateBlock];
        }
      }
    }
  }
  if (!late && out.factors != nullptr) {
    for (std::int64_t block = 0; block * kLateBlock < a.k; ++block) {
      std::fill_n(out.factors.get() + block * out.pitch + begin, end - begin, 1.0f);
    }
  }
  for (std::int64_t r = begin; r < end; ++r) {
    out.ranges[static_cast<std::size_t>(r)] = range.range();
    out.factor_ranges[static_cast<std::size_t>(r)] = factor_range;
  }
}


/// The factors of 16 columns in blocks of k of a slab: (block, column).
inline void factors_of_columns(const SpanFactors& factors, std::int64_t row, std::int64_t columns,
                               std::int64_t first_block, std::int64_t blocks, float* out) {
  for (std::int64_t i = 0; i < blocks; i += 16) {
    hn::Vec<FloatTag> in[16];
    for (int c = 0; c < 16; ++c) {
      const float* const from = factors.row(row + std::min<std::int64_t>(c, columns - 1));
      in[c] = hn::LoadU(FloatTag(), from + first_block + i);
    }
    transpose_16(in, in);
    for (int j = 0; j < 16 && i + j < blocks; ++j) hn::Store(in[j], FloatTag(), out + (i + j) * 16);
  }
}

/// One step of k of a task, and its scratch.
struct PairStep {
  std::int64_t span = 0;   // k where the span begins
  std::int64_t first = 0;  // k of the step
  std::int64_t depth = 0;
  float* words = nullptr;           // of 16 columns
  float* block_factors = nullptr;   // of 16 columns, where B's scales are folded
  float* column_factors = nullptr;  // of a panel, where they are not
  std::uint16_t* panel = nullptr;
};

/// Asks for what follows kPairSlab of k later in the same columns, or else for the beginning of those
/// of the next task. Rows lie far apart, so hardware does not foresee this, and often in the same
/// few sets of a level-1 cache, which could not hold it. Forced inline: as prefetch_slab.
HWY_INLINE void prefetch_step(const OperandMatrix& b, std::int64_t row, std::int64_t columns,
                          const PairStep& step) {
  constexpr std::int64_t kCacheLine = 64;  // bytes
  const RecipeTraits& t = recipe_traits(b.recipe);
  if (t.block_rows == 1 && b.layout == ScaleLayout::row_major) {
    const std::int64_t size = format_traits(t.scale).bits / 8;
    const auto* const scales = static_cast<const std::uint8_t*>(b.scales);
    const std::int64_t first = row + kTileColumns;
    for (std::int64_t r = first; r < std::min(b.rows, first + columns); ++r) {
      const std::int64_t at = r * b.scale_leading_stride + step.first / std::max(1, t.block_k);
      prefetch_to_level_2(scales + at * size);
    }
  }
  std::int64_t k = step.first + kPairSlab;
  if (k >= b.k) {
    k -= b.k;
    row += kTileColumns;
  }
  const std::int64_t begin = row_bytes(b.recipe, k);
  const std::int64_t end = row_bytes(b.recipe, std::min(b.k, k + step.depth));
  for (std::int64_t r = row; r < std::min(b.rows, row + columns); ++r) {
    const std::uint8_t* const values = b.values + r * b.value_row_stride;
    for (std::int64_t i = begin; i < end; i += kCacheLine) prefetch_to_level_2(values + i);
  }
}

/// Transposes 16 columns from `row` of B on, and their factors.
template <class D>
void prepare_columns(const OperandMatrix& b, const SpanFactors& factors, std::int64_t row,
                     std::int64_t columns, const PairStep& step) {
  prefetch_step(b, row, columns, step);
  transpose_columns<D>(b, row, columns, step.first, step.depth, step.words);
  if constexpr (D::kFolds) {
    const std::int64_t block = recipe_traits(b.recipe).block_k;
    factors_of_columns(factors, row, columns, (step.first - step.span) / block,
                       ceil_div(step.depth, block), step.block_factors);
  }
}

/// Adds the products of a step to `sums`, all rows of the task times all of its columns.
template <class D>
bool multiply_step(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                   const SpanFactors& factors, const PairStep& step, float* sums) {
  const PairRows& rows = chunk.pairs;
  const RecipeTraits& t = recipe_traits(b.recipe);
  const std::int64_t task_rows = task.row_end - task.row_begin;
  const std::int64_t words = ceil_div(step.depth, std::int64_t{D::kCodes});
  const std::int64_t words_of_block = t.block_k / D::kCodes;
  const bool fused = task_rows <= kFusedRows;
  const std::int64_t width = fused ? kLanes : kPanelColumns;
  const auto product_of = [&](std::int64_t r) {
    PairProduct product;
    product.a = rows.values.get() + (step.first / kPairSlab * rows.pitch + r) * kPairSlab +
                step.first % kPairSlab;
    product.panel = step.panel;
    product.pairs = words * (D::kCodes / 2);
    if (rows.factors != nullptr) {
      product.row_factors = rows.row_factors(step.first / kLateBlock, r);
      product.column_factors = step.column_factors;
    }
    return product;
  };
  for (std::int64_t c = 0; c < task.columns; c += width) {
    if (has_late_scales(t)) {
      const std::int64_t block = t.block_k == 0 ? 0 : (step.first - step.span) / kLateBlock;
      for (std::int64_t i = 0; i < std::min(width, task.columns - c); ++i) {
        step.column_factors[i] = factors.row(task.column_begin + c + i)[block];
      }
    }
    for (std::int64_t v = 0; v < width; v += kLanes) {
      // Columns that are not there repeat the last one; nobody reads their sums.
      const std::int64_t column = std::min(c + v, task.columns - 1);
      const std::int64_t columns = std::min<std::int64_t>(kLanes, task.columns - column);
      prepare_columns<D>(b, factors, task.column_begin + column, columns, step);
      if (fused) continue;
      std::uint16_t* const panel = step.panel + v * 2;
      const auto store = [&](std::int64_t w, const D& x, const PairScales& scales) HWY_ATTR {
        std::uint16_t* const to = panel + w * D::kCodes * kPanelColumns;
        [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
          (_mm512_store_si512(to + kIndex * 2 * kPanelColumns, x.template pairs<kIndex>(scales)),
           ...);
        }(std::make_integer_sequence<int, D::kCodes / 2>());
      };
      if (!decode_words<D>(step.words, words, step.block_factors, words_of_block, store)) {
        return false;
      }
    }
    if (fused) {
      const auto multiply = task_rows <= kFusedRows / 2 ? multiply_words<D, kFusedRows / 2>
                                                        : multiply_words<D, kFusedRows>;
      if (!multiply(product_of(task.row_begin), static_cast<int>(task_rows), step.words, words,
                    step.block_factors, words_of_block, sums + c)) {
        return false;
      }
      continue;
    }
    const RowGroups groups(task_rows, kMaxPanelRows);
    for (std::int64_t g = 0; g < groups.count; ++g) {
      kMultiplyPairs[static_cast<std::size_t>(groups.end(g) - groups.begin(g) - 1)](
          product_of(task.row_begin + groups.begin(g)),
          sums + groups.begin(g) * kTileColumns + c);
    }
  }
  return true;
}

/// The sums of products of k in [begin, begin + count), a span, kTileColumns apart. False if bf16 or
/// f32 might not hold what is multiplied.
bool multiply_span_of_pairs(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                            const SpanFactors& factors, std::int64_t begin, std::int64_t count,
                            float* scratch, float* sums) {
  constexpr ValueRange kOne{0x3F800000u, 0x3F800000u - 1};
  const PairRows& rows = chunk.pairs;
  const RecipeTraits& t = recipe_traits(b.recipe);
  const bool late = has_late_scales(t);
  const ValueRange b_range = range_of_values(late ? kOne : factors.range(), t.element);
  if (!pairs_are_safe(rows.range, b_range, rows.factor_range, late ? factors.range() : kOne)) {
    return false;
  }
  PairStep step;
  step.span = begin;
  step.column_factors = scratch;
  step.block_factors = step.column_factors + kPanelColumns;
  step.words = step.block_factors + kSlab / kMinBlock * kPanelColumns;
  step.panel = reinterpret_cast<std::uint16_t*>(step.words + kPairSlab * kLanes);
  std::fill_n(sums, (task.row_end - task.row_begin) * kTileColumns, 0.0f);
  std::fill_n(step.column_factors, kPanelColumns, 1.0f);
  const std::int64_t most = rows.factors == nullptr ? kPairSlab : kLateBlock;
  return with_pairs(b.recipe, [&]<class D>() {
    bool done = true;
    for (std::int64_t k = begin; done && k < begin + count; k += most) {
      step.first = k;
      step.depth = std::min(most, begin + count - k);
      done = multiply_step<D>(chunk, b, task, factors, step, sums);
    }
    return done;
  });
}

/// Whether products of these recipes are sums of bf16 pairs here.
bool has_pairs(Recipe a, Recipe b) {
  const Format of_a = recipe_traits(a).element;
  return __builtin_cpu_supports("avx512bf16") && of_a != Format::f32 && of_a != Format::f16 &&
         !is_plain(b);
}

#else

bool multiply_span_of_pairs(const PackedChunk&, const OperandMatrix&, const Task&,
                            const SpanFactors&, std::int64_t, std::int64_t, float*, float*) {
  return false;
}
bool has_pairs(Recipe, Recipe) {
  return false;
}
void pack_pair_rows(const OperandMatrix&, Recipe, std::int64_t, std::int64_t, PairRows&) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();
#pragma pop_macro("HWY_TARGET_STR")

#endif  // include guard, toggled per target
