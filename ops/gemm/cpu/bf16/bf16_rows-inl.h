// Few rows of A that are exact in bf16, times codes of B that are: pairs of products by vdpbf16ps.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL, on CPUs with AVX-512 BF16.
// As few_rows-inl.h goes, but a code becomes 16 bits, by a look-up for 32 codes, and an instruction
// multiplies and adds 32 of them: FP4 takes 14 instructions for 128 codes, so that memory is what
// limits one row of A.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
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
#include "ops/gemm/cpu/bf16/bf16_codes-inl.h"
#include "ops/gemm/cpu/bf16/bf16_scales-inl.h"
#include "ops/gemm/cpu/few_rows/few_rows-inl.h"
#include "ops/gemm/cpu/panels/chunk-inl.h"

#include "ops/common/simd/push_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

/// Rows of B over a span of k.
struct RowsOfB {
  const std::uint8_t* codes = nullptr;
  std::int64_t stride = 0;      // bytes
  std::int64_t rows = 0;        // of B
  std::int64_t chunks = 0;      // of a row, whole ones
  std::int64_t rest = 0;        // bytes of a row beyond them
  std::int64_t rows_ahead = 0;  // how far what is fetched meanwhile lies below
  bool one_by_one = false;      // each row alone, or four of them side by side
};

/// Adds the products of `groups` times kGroupColumns rows of B, from `row` on, and kRows rows of A
/// to the tile. With `step` 0, and not 1, a group is its first row, four times.
template <class C, class Scales, int kRows>
void multiply_bf16_rows(const RowsOfB& all, const Scales& scales_of_all, std::int64_t row,
                        std::int64_t groups, std::int64_t step, const std::uint16_t* a,
                        double* HWY_RESTRICT tile) {
  const RowsOfB b = all;
  const Scales scales = scales_of_all;
  const std::int64_t stride = step * b.stride;
  alignas(64) std::uint8_t last[C::kBytes] = {};  // a chunk that is not whole
  for (std::int64_t g = 0; g < groups; ++g, row += kGroupColumns, tile += kGroupColumns) {
    __m512 sums[kGroupColumns][kRows];
    const std::uint8_t* factors = nullptr;
    std::int64_t factor_stride = 0;
    if constexpr (!Scales::kOfSums) {
      factors = scales.row(row);
      factor_stride = step * scales.pitch();
    }
    const auto add_chunk = [&](const std::uint8_t* codes, const std::uint8_t* factors_of_row,
                               std::int64_t c, __m512* sum) HWY_ATTR {
      const std::uint16_t* const a_chunk = a + c * (kRows * C::kCodes);
      const C chunk(codes);
      __m512 partial[kRows];
      HWY_UNROLL(4)
      for (int m = 0; m < kRows; ++m) partial[m] = _mm512_setzero_ps();
      const auto add_vector = [&]<int kVector>() HWY_ATTR {
        const auto values = reinterpret_cast<__m512bh>(chunk.template vector<kVector>());
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) {
          const auto x = reinterpret_cast<__m512bh>(
              _mm512_load_si512(a_chunk + (m * C::kVectors + kVector) * 32));
          partial[m] = _mm512_dpbf16_ps(partial[m], values, x);
        }
      };
      [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
        (add_vector.template operator()<kIndex>(), ...);
      }(std::make_integer_sequence<int, C::kVectors>());
      if constexpr (Scales::kOfSums) {
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sum[m] = _mm512_add_ps(sum[m], partial[m]);
      } else {
        const __m512 factor = scales.factor(factors_of_row, c);
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sum[m] = _mm512_fmadd_ps(partial[m], factor, sum[m]);
      }
    };
    const std::uint8_t* const codes_of_group = b.codes + row * b.stride;
    const bool is_ahead = row + b.rows_ahead + kGroupColumns <= b.rows;
    const std::int64_t ahead = is_ahead ? b.rows_ahead * b.stride : 0;
    if (b.one_by_one) {
      for (int n = 0; n < kGroupColumns; ++n) {
        const std::uint8_t* codes = codes_of_group + n * stride;
        __m512 sum[kRows];
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sum[m] = _mm512_setzero_ps();
        for (std::int64_t c = 0; c < b.chunks; ++c, codes += C::kBytes) {
          HWY_UNROLL(2)
          for (int i = 0; i < C::kBytes; i += 64) prefetch_to_level_2(codes + ahead + i);
          add_chunk(codes, factors + n * factor_stride, c, sum);
        }
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sums[n][m] = sum[m];
      }
    } else {
      __m512 sum[kGroupColumns][kRows];  // in registers, as no index is a variable
      HWY_UNROLL(4)
      for (int n = 0; n < kGroupColumns; ++n) {
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sum[n][m] = _mm512_setzero_ps();
      }
      const std::uint8_t* codes = codes_of_group;
      const std::uint8_t* next = codes + ahead;
      for (std::int64_t c = 0; c < b.chunks; ++c, codes += C::kBytes, next += C::kBytes) {
        HWY_UNROLL(4)
        for (int n = 0; n < kGroupColumns; ++n) {
          HWY_UNROLL(2)
          for (int i = 0; i < C::kBytes; i += 64) prefetch_to_level_2(next + n * stride + i);
        }
        HWY_UNROLL(4)
        for (int n = 0; n < kGroupColumns; ++n) {
          add_chunk(codes + n * stride, factors + n * factor_stride, c, sum[n]);
        }
      }
      HWY_UNROLL(4)
      for (int n = 0; n < kGroupColumns; ++n) {
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) sums[n][m] = sum[n][m];
      }
    }
    if (b.rest != 0) {
      for (int n = 0; n < kGroupColumns; ++n) {
        std::copy_n(codes_of_group + n * stride + b.chunks * C::kBytes, b.rest, last);
        add_chunk(last, factors + n * factor_stride, b.chunks, sums[n]);
      }
    }
    HWY_UNROLL(4)
    for (int m = 0; m < kRows; ++m) {
      __m128 four = sum_lanes(hn::Vec<FloatTag>{sums[0][m]}, hn::Vec<FloatTag>{sums[1][m]},
                              hn::Vec<FloatTag>{sums[2][m]}, hn::Vec<FloatTag>{sums[3][m]})
                        .raw;
      if constexpr (Scales::kOfSums) four = _mm_mul_ps(four, scales.factors(row));
      double* const out = tile + m * kTileColumns;
      _mm256_store_pd(out, _mm256_add_pd(_mm256_load_pd(out), _mm256_cvtps_pd(four)));
    }
  }
}

/// Rows of A that share what is decoded of B. (Four take up to twice as long as three: their sums
/// leave no registers for B's codes.)
inline constexpr std::int64_t kBf16GroupRows = 3;

/// multiply_bf16_rows for 1..kBf16GroupRows rows of A.
template <class C, class Scales>
inline constexpr std::array kMultiplyBf16Rows{multiply_bf16_rows<C, Scales, 1>,
                                              multiply_bf16_rows<C, Scales, 2>,
                                              multiply_bf16_rows<C, Scales, 3>};
static_assert(kBf16GroupRows == 3 && kGroupColumns == 4);

/// Rows of A in bf16: (group, chunk, row, vector, value). What is beyond k is 0.
template <class C>
void arrange_bf16_rows_as(PackedBand& band, std::int64_t k) {
  static constexpr auto kOrder = [] {
    struct {
      std::int32_t at[C::kVectors * 32] = {};
    } order;
    for (int i = 0; i < C::kVectors * 32; ++i) order.at[i] = C::element(i / 32, i % 32);
    return order;
  }();
  const std::int64_t chunks = ceil_div(k, std::int64_t{C::kCodes});
  band.bf16_rows = band.memory.take<std::uint16_t>(chunks * C::kCodes * band.rows);
  std::uint16_t* out = band.bf16_rows.get();
  const RowGroups groups(band.rows, kBf16GroupRows);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t first = c * C::kCodes;
      for (std::int64_t r = groups.begin(g); r < groups.end(g); ++r, out += C::kCodes) {
        alignas(64) float source[C::kCodes] = {};
        std::copy_n(band.row(first / kSlab, r) + first % kSlab,
                    std::min<std::int64_t>(C::kCodes, k - first), source);
        for (int i = 0; i < C::kCodes; i += 16) {
          const __m512 values = _mm512_i32gather_ps(_mm512_loadu_si512(kOrder.at + i), source, 4);
          const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(values), 16);
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(upper));
        }
      }
    }
  }
}

/// Calls `body` with the classes of codes and scales of a recipe known at run time.
template <class Body>
auto with_bf16_classes(Recipe recipe, const Body& body) {
  const RecipeTraits& t = recipe_traits(recipe);
  const auto small = [&]<class C, Format kScale>()
                         HWY_ATTR { return body.template operator()<C, SmallBlocks<C, kScale>>(); };
  const auto fp8 = [&]<Format F>() HWY_ATTR {
    if (t.family == Family::mx) {
      return small.template operator()<Bf16Fp8Codes<F, true>, Format::ue8m0>();
    }
    using C = Bf16Fp8Codes<F, false>;
    if (t.block_k == 0) return body.template operator()<C, WholeRows>();
    return body.template operator()<C, LargeBlocks>();
  };
  switch (t.element) {
    case Format::e2m1:
      if (t.scale == Format::ue4m3) {
        return small.template operator()<Bf16Fp4Codes, Format::ue4m3>();
      }
      return small.template operator()<Bf16Fp4Codes, Format::ue8m0>();
    case Format::e2m3:
      return small.template operator()<Bf16Fp6Codes<Format::e2m3>, Format::ue8m0>();
    case Format::e3m2:
      return small.template operator()<Bf16Fp6Codes<Format::e3m2>, Format::ue8m0>();
    case Format::e5m2: return fp8.template operator()<Format::e5m2>();
    default: return fp8.template operator()<Format::e4m3>();
  }
}

/// Asks for a line of each page of the tile below, and of the first tile too: in pages of 4 KiB the
/// walks to them, one after the other, take as long as reading; side by side they take nothing.
inline void touch_pages(const RowsOfB& b, std::int64_t row) {
  constexpr std::int64_t kPage = 4096;
  const std::int64_t end = std::min(b.rows, row + 2 * kTileColumns) * b.stride;
  for (std::int64_t i = (row == 0 ? 0 : row + kTileColumns) * b.stride; i < end; i += kPage) {
    prefetch_to_level_2(b.codes + i);
  }
}

/// multiply_span of few_rows-inl.h, for A in bf16. `scratch`: kFactorScratch numbers. A span of A
/// is 32 KiB at most: a level-1 cache.
template <class C, class Scales>
bool multiply_span_of_bf16_as(const PackedBand& band, const OperandMatrix& b, const Task& task,
                              std::int64_t begin, std::int64_t count, float* scratch,
                              double* tile) {
  RowsOfB rows;
  rows.codes = b.values + row_bytes(b.recipe, begin);
  rows.stride = b.value_row_stride;
  rows.rows = b.rows;
  rows.chunks = count / C::kCodes;
  const std::int64_t whole_bytes = rows.chunks * C::kBytes;
  rows.rest = row_bytes(b.recipe, count) - whole_bytes;
  if (begin == 0) touch_pages(rows, task.column_begin);
  const Scales scales(b, task, begin, count, scratch);
  if (!span_is_safe(band.range, scales.range(), recipe_traits(b.recipe).element)) return false;
  // Long rows are read one after the other, as memory lies: it gives up to twice as much so. Short
  // ones side by side: they share what is loaded of A, and no loop of a few turns ends in a branch.
  rows.one_by_one = whole_bytes >= 1024;
  // What is fetched takes a tenth of a microsecond to come, in which short rows are many; but the
  // first ones, which nothing fetched, are much of a small B.
  const std::int64_t bytes_ahead = (rows.one_by_one ? 32 : 8) * 1024;
  rows.rows_ahead =
      std::max<std::int64_t>(kAhead, bytes_ahead / std::max<std::int64_t>(1, b.value_row_stride));
  const RowGroups groups(band.rows, kBf16GroupRows);
  const std::int64_t all_codes = ceil_div(b.k, std::int64_t{C::kCodes}) * C::kCodes;
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t first = groups.begin(g), count_of_group = groups.end(g) - first;
    const auto multiply =
        kMultiplyBf16Rows<C, Scales>[static_cast<std::size_t>(count_of_group - 1)];
    const std::uint16_t* const a =
        band.bf16_rows.get() + first * all_codes + begin * count_of_group;
    double* const to = tile + first * kTileColumns;
    const std::int64_t columns = task.columns / kGroupColumns * kGroupColumns;
    multiply(rows, scales, task.column_begin, columns / kGroupColumns, 1, a, to);
    for (std::int64_t n = columns; n < task.columns; ++n) {
      alignas(64) double column[kBf16GroupRows * kTileColumns] = {};
      multiply(rows, scales, task.column_begin + n, 1, 0, a, column);
      for (std::int64_t m = 0; m < count_of_group; ++m) {
        to[m * kTileColumns + n] += column[m * kTileColumns];
      }
    }
  }
  return true;
}

bool multiply_span_of_bf16(const PackedBand& band, const OperandMatrix& b, const Task& task,
                           std::int64_t begin, std::int64_t count, float* scratch, double* tile) {
  return with_bf16_classes(b.recipe, [&]<class C, class Scales>() {
    return multiply_span_of_bf16_as<C, Scales>(band, b, task, begin, count, scratch, tile);
  });
}

/// Prepares a band of A, of values that bf16 holds, for multiply_span_of_bf16 with B of `recipe`.
void arrange_bf16_rows(PackedBand& band, std::int64_t k, Recipe recipe) {
  with_bf16_classes(recipe, [&]<class C, class>() HWY_ATTR { arrange_bf16_rows_as<C>(band, k); });
}

/// Whether few rows of A in `a` are multiplied so: their values, without the tensor scale, are
/// those of bf16.
bool has_bf16_rows(Recipe a, Recipe b) {
  static const bool has_instruction = __builtin_cpu_supports("avx512bf16") != 0;
  const RecipeTraits& t = recipe_traits(a);
  const bool exact = is_plain(a) ? t.element == Format::bf16 : t.scale != Format::f32;
  return has_instruction && exact && !is_plain(b);
}

#else

bool multiply_span_of_bf16(const PackedBand&, const OperandMatrix&, const Task&, std::int64_t,
                           std::int64_t, float*, double*) {
  return false;
}
void arrange_bf16_rows(PackedBand&, std::int64_t, Recipe) {}
bool has_bf16_rows(Recipe, Recipe) {
  return false;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();
#pragma pop_macro("HWY_TARGET_STR")

#endif  // include guard, toggled per target
