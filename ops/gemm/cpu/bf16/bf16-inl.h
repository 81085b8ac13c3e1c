// Products of bf16 pairs: every operand whose elements bf16 holds exactly.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL, on CPUs with AVX-512 BF16.
// dpbf16ps is two fused multiply-adds in f32, odd element first, each rounded to nearest even;
// subnormal numbers count as zeros. A slab of kPairSlab of k is one chain of them for each element
// of D. Slabs are added in f32, scales that are not folded into values applied to them.
//
// A is transposed into panels of 32 rows once. Rows of B are decoded as they lie, a few at a time,
// and multiplied with all panels: a pair of B is broadcast, rows of A lie in lanes. Where there is
// AMX, tiles of both, as they lie, are multiplied in its stead (tiles.h).

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
#include <type_traits>
#include <utility>

#include "ops/common/simd/amx.h"
#include "ops/gemm/cpu/bf16/tiles.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/bf16/bf16_panel-inl.h"
#include "ops/gemm/cpu/panels/microkernel-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
#include "ops/gemm/cpu/bf16/add_slab.h"
#endif

#include "ops/common/simd/push_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kPairColumns = PairRows::kPanelRows;
/// k of a chain of f32 sums.
inline constexpr std::int64_t kPairSlab = PairRows::kDepth;

/// Rows of B that are decoded at once, at most.
inline constexpr std::int64_t kPairRows = std::max<std::int64_t>(kMaxPanelRows, kTiledRows);
/// Scratch of multiply_span_of_pairs beside the sums: decoded rows of B, and their factors.
inline constexpr std::int64_t kPairScratch = kPairRows * kPairSlab / 2 + 64;

#if HWY_TARGET == HWY_AVX3_DL

/// Adds the products of kRows rows of B and 16 kVectors rows of A, or, with kVectors = 0, 8 of
/// them.
template <int kRows, int kVectors>
void multiply_pairs(const PairProduct& p) {
  using Sum = std::conditional_t<kVectors == 0, __m256, __m512>;
  constexpr int kCount = std::max(1, kVectors);
  Sum sum[kRows][kCount] = {};
  const auto* b = reinterpret_cast<const std::int32_t*>(p.b);
  const std::uint16_t* panel = p.panel;
  for (std::int64_t i = 0; i < p.pairs; ++i, ++b, panel += 2 * kPairColumns) {
    if constexpr (kVectors == 0) {
      const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel));
      HWY_UNROLL(14)
      for (int r = 0; r < kRows; ++r) {
        const __m256i x = _mm256_set1_epi32(b[r * (kPairSlab / 2)]);
        sum[r][0] = _mm256_dpbf16_ps(sum[r][0], reinterpret_cast<__m256bh>(x),
                                     reinterpret_cast<__m256bh>(a));
      }
    } else {
      __m512bh a[kCount];
      HWY_UNROLL(2)
      for (int v = 0; v < kCount; ++v) {
        a[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + v * 32));
      }
      HWY_UNROLL(14)
      for (int r = 0; r < kRows; ++r) {
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(b[r * (kPairSlab / 2)]));
        HWY_UNROLL(2)
        for (int v = 0; v < kCount; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, a[v]);
      }
    }
  }
  HWY_UNROLL(14)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int v = 0; v < kCount; ++v) {
      __m512 slab;
      if constexpr (kVectors == 0) {
        slab = _mm512_zextps256_ps512(sum[r][v]);
      } else {
        slab = sum[r][v];
      }
      add_slab(p, r, v, slab);
    }
  }
}

/// multiply_pairs for 1..kMaxPanelRows rows of B.
using MultiplyPairs = void (*)(const PairProduct&);
template <int kVectors, int... kIndex>
constexpr std::array<MultiplyPairs, sizeof...(kIndex)> multiply_pairs_table(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_pairs<kIndex + 1, kVectors>...};
}
template <int kVectors>
inline constexpr auto kMultiplyPairs =
    multiply_pairs_table<kVectors>(std::make_integer_sequence<int, kMaxPanelRows>());

/// kSlab of k of 16 rows of A, kSlab apart, all of which bf16 holds, as the half of a panel.
template <class D>
void store_panel(const float* rows, std::uint16_t* panel) {
  // Pairs of words that lie one after the other, and each word's as they are decoded.
  static constexpr auto kOrder = [] {
    PairTable<32> order;
    for (std::uint32_t i = 0; i < 32; ++i) {
      const std::uint32_t word = i / D::kCodes * D::kCodes;
      const std::uint32_t element = word + i % D::kCodes / 2 + i % 2 * (D::kCodes / 2);
      order.at[i] = static_cast<std::uint16_t>(2 * element + 1);  // upper half
    }
    return order;
  }();
  constexpr int kPairsOfWord = D::kCodes / 2;
  for (int i = 0; i < kSlab; i += 32) {
    hn::Vec<FloatTag> pairs[16];
    HWY_UNROLL(16)
    for (int r = 0; r < 16; ++r) {
      const float* const from = rows + r * kSlab + i;
      pairs[r].raw = _mm512_castsi512_ps(_mm512_permutex2var_epi16(
          _mm512_load_si512(from), _mm512_load_si512(kOrder.at), _mm512_load_si512(from + 16)));
    }
    transpose_16(pairs, pairs);
    HWY_UNROLL(16)
    for (int q = 0; q < 16; ++q) {
      const int word = (i / 2 + q) / kPairsOfWord;
      const int pair = word / 16 * (16 * kPairsOfWord) + q % kPairsOfWord * 16 + word % 16;
      _mm512_store_ps(panel + pair * 2 * kPairColumns, pairs[q].raw);
    }
  }
}

/// Packs rows [begin, end) of a band of A, kPairColumns or less from a multiple of it on, for B of
/// `recipe`.
void pack_pair_rows(const OperandMatrix& a, Recipe recipe, std::int64_t begin, std::int64_t end,
                    PairRows& out) {
  const RecipeTraits& t = recipe_traits(a.recipe);
  const bool late = has_late_scales(a.recipe);
  alignas(64) float values[kPairColumns * kSlab];
  RangeOfVectors range;
  for (std::int64_t k = 0; k < a.k; k += kSlab) {
    const std::int64_t depth = std::min(kSlab, a.k - k);
    if (!late) decode_rows(a, out.first_row + begin, end - begin, k, depth, values);
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = values + (r - begin) * kSlab;
      if (late) {
        codes::decode_run(t.element, a.values + (out.first_row + r) * a.value_row_stride, k, depth,
                          row);
      }
      std::fill(row + depth, row + kSlab, 0.0f);
      for (std::int64_t i = 0; i < depth; i += kLanes) range.include(hn::Load(FloatTag(), row + i));
    }
    const std::int64_t padded = ceil_div(end - begin, std::int64_t{16}) * 16;
    std::fill(values + (end - begin) * kSlab, values + padded * kSlab, 0.0f);
    for (std::int64_t r = 0; r < padded; r += 16) {
      with_pairs(recipe, [&]<class D>() {
        store_panel<D>(values + r * kSlab, out.panel(k, begin) + 2 * r);
      });
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
          *out.row_factors(i / kLateBlock, r) = factors[t.block_k == 0 ? 0 : (i - k) / kLateBlock];
        }
      }
    }
  }
  out.ranges[static_cast<std::size_t>(begin / kPairColumns)] = range.range();
  out.factor_ranges[static_cast<std::size_t>(begin / kPairColumns)] = factor_range;
}

/// A part of k of a span, and scratch.
struct PairStep {
  std::int64_t span = 0;   // k where the span begins
  std::int64_t first = 0;  // k where the step begins
  std::int64_t depth = 0;
  std::uint16_t* rows = nullptr;  // of B, decoded
  float* b_factors = nullptr;     // theirs, where they are not folded
  bool in_tiles = false;          // AMX's
};

/// The rows of B of a step of k, and what to prefetch while one is decoded: what follows in it, or
/// else the beginning of a row of the next task, and a part of that row's scales. Rows lie far
/// apart, so hardware does not foresee this.
class StepRows {
 public:
  StepRows(const OperandMatrix& b, const PairStep& step) : b_(b) {
    const RecipeTraits& t = recipe_traits(b.recipe);
    begin_ = row_bytes(b.recipe, step.first);
    const std::int64_t end = step.first + step.depth;
    is_last_ = end >= b.k;
    ahead_ =
        is_last_ ? kTileColumns * b.value_row_stride - begin_ : row_bytes(b.recipe, end) - begin_;
    if (t.block_rows == 1 && t.block_k != 0 && b.layout == ScaleLayout::row_major) {
      const std::int64_t size = format_traits(t.scale).bits / 8;
      scale_stride_ = b.scale_leading_stride * size;
      scales_ = static_cast<const std::uint8_t*>(b.scales) + step.first / t.block_k * size;
    }
  }
  const std::uint8_t* codes(std::int64_t row) const {
    return b_.values + row * b_.value_row_stride + begin_;
  }
  const std::uint8_t* ahead(std::int64_t row) const {
    return codes(row) + (is_last_ && row + kTileColumns >= b_.rows ? 0 : ahead_);
  }
  /// Forced inline: as prefetch_slab.
  HWY_INLINE void prefetch_scales(std::int64_t row) const {
    if (scales_ == nullptr || row + kTileColumns >= b_.rows) return;
    prefetch_to_level_2(scales_ + (row + kTileColumns) * scale_stride_);
  }

 private:
  const OperandMatrix& b_;
  std::int64_t begin_ = 0;  // bytes of a row before the step
  std::int64_t ahead_ = 0;  // bytes
  bool is_last_ = false;
  const std::uint8_t* scales_ = nullptr;
  std::int64_t scale_stride_ = 0;
};

/// Adds the products of a step to `sums`, (row of B, row of A), rows of B `pitch` apart.
template <class D>
bool multiply_step(const PackedBand& band, const OperandMatrix& b, const Task& task,
                   const SpanFactors& factors, const PairStep& step, float* sums,
                   std::int64_t pitch) {
  const PairRows& rows = band.pairs;
  const RecipeTraits& t = recipe_traits(b.recipe);
  const std::int64_t block = t.block_k == 0 ? 0 : (step.first - step.span) / t.block_k;
  constexpr std::int64_t kWords = 16;
  const StepRows step_rows(b, step);
  const RowGroups groups(task.columns, step.in_tiles ? kTiledRows : kMaxPanelRows);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t begin = groups.begin(g);
    const std::int64_t count = groups.end(g) - begin;
    const std::int64_t first_row = task.column_begin + begin;
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const row_factors = factors.row(first_row + i) + block;
      step_rows.prefetch_scales(first_row + i);
      if (!decode_pairs<D>(step_rows.codes(first_row + i), step.depth, row_factors,
                           step_rows.ahead(first_row + i), step.rows + i * kPairSlab)) {
        return false;
      }
      if (D::kFoldedBlock == 0) step.b_factors[i] = *row_factors;
    }
    PairProduct product;
    product.b = step.rows;
    product.pairs = ceil_div(step.depth, kWords * D::kCodes) * kWords * D::kCodes / 2;
    product.b_factors = step.b_factors;
    product.pitch = pitch;
    const auto index = static_cast<std::size_t>(count - 1);
    for (std::int64_t r = task.row_begin; r < task.row_end; r += kPairColumns) {
      product.panel = rows.panel(step.first, r);
      if (rows.factors != nullptr) product.a_factors = rows.row_factors(step.first / kLateBlock, r);
      product.sums = sums + begin * pitch + (r - task.row_begin);
      const std::int64_t left = task.row_end - r;
      if (step.in_tiles) {
        multiply_pairs_in_tiles(product, count, left);
        continue;
      }
      (left > 16  ? kMultiplyPairs<2>[index]
       : left > 8 ? kMultiplyPairs<1>[index]
                  : kMultiplyPairs<0>[index])(product);
    }
  }
  return true;
}

/// Sums of all rows of the task, (row of A, row of B), from (row of B, row of A).
inline void transpose_sums(const Task& task, const float* from, std::int64_t pitch, float* sums) {
  const std::int64_t rows = task.row_end - task.row_begin;
  for (std::int64_t r = 0; r < rows; r += 16) {
    for (std::int64_t c = 0; c < kTileColumns; c += 16) {
      hn::Vec<FloatTag> block[16];
      HWY_UNROLL(16)
      for (int i = 0; i < 16; ++i) block[i] = hn::Load(FloatTag(), from + (c + i) * pitch + r);
      transpose_16(block, block);
      for (int i = 0; i < std::min<std::int64_t>(16, rows - r); ++i) {
        hn::Store(block[i], FloatTag(), sums + (r + i) * kTileColumns + c);
      }
    }
  }
}

/// The sums of products of k in [begin, begin + count), a span, kTileColumns apart. False if bf16
/// or f32 might not hold what is multiplied. `scratch`: of kPairScratch and another tile.
bool multiply_span_of_pairs(const PackedBand& band, const OperandMatrix& b, const Task& task,
                            const SpanFactors& factors, std::int64_t begin, std::int64_t count,
                            float* scratch, float* sums) {
  constexpr ValueRange kOne{0x3F800000u, 0x3F800000u - 1};
  const PairRows& rows = band.pairs;
  const RecipeTraits& t = recipe_traits(b.recipe);
  const bool late = has_late_scales(b.recipe);
  const ValueRange b_range = range_of_values(late ? kOne : factors.range(), t.element);
  if (!pairs_are_safe(rows.range, b_range, rows.factor_range, late ? factors.range() : kOne)) {
    return false;
  }
  PairStep step;
  step.span = begin;
  step.rows = reinterpret_cast<std::uint16_t*>(scratch);
  step.b_factors = scratch + kPairRows * kPairSlab / 2;
  step.in_tiles = uses_amx();
  const Tiles tiles(step.in_tiles);
  float* const transposed = scratch + kPairScratch;
  const std::int64_t pitch = sums_pitch(task.row_end - task.row_begin);
  std::fill_n(transposed, kTileColumns * pitch, 0.0f);
  std::fill_n(step.b_factors, kPairRows, 1.0f);
  const bool done = with_pairs(b.recipe, [&]<class D>() {
    for (std::int64_t k = begin; k < begin + count; k += rows.chain) {
      step.first = k;
      step.depth = std::min(rows.chain, begin + count - k);
      if (!multiply_step<D>(band, b, task, factors, step, transposed, pitch)) return false;
    }
    return true;
  });
  if (done) transpose_sums(task, transposed, pitch, sums);
  return done;
}

/// Whether products of these recipes are sums of bf16 pairs here.
bool has_pairs(Recipe a, Recipe b) {
  const Format of_a = recipe_traits(a).element;
  return __builtin_cpu_supports("avx512bf16") && of_a != Format::f32 && of_a != Format::f16 &&
         !is_plain(b);
}

#else

bool multiply_span_of_pairs(const PackedBand&, const OperandMatrix&, const Task&,
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
