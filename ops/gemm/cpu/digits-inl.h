// One row of A times FP4: sums of bytes in place of sums of floats.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL (VNNI). Where few_rows-inl.h
// takes three instructions for 16 codes, this takes 15 for 128.
//
// A row of A is written as layers of integers of 22 bits: each lane of a chunk, 8 consecutive k,
// has a power of two of its own, and what 22 bits cannot hold goes to the chunk's next layer, until
// nothing is left. bf16 activations need a second layer where elements of one lane differ by more
// than 2^13: about one chunk in a hundred. An integer is three signed digits of 8 bits, which
// vpdpbusd multiplies with twice the codes, made 12 larger as it takes bytes without sign there;
// -12 times the lane's integers is added at the end. All this is exact. A lane's sum is then scaled
// and added up in f32, as few_rows-inl.h does.

#if defined(BLOCKSCALE_OPS_GEMM_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_DIGITS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_DIGITS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_DIGITS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/chunk-inl.h"
#include "ops/gemm/cpu/few_rows-inl.h"
#include "ops/gemm/cpu/integers-inl.h"
#include "ops/gemm/cpu/span_factors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

/// Bits of an integer, without sign: three digits hold it, and 8 products of it with bytes below 25
/// stay below 2^30.
inline constexpr int kDigitBits = 22;
using DigitChunk = Chunk<Format::e2m1>;
static_assert(DigitChunk::kCodes == DigitLayer::kCodes && DigitChunk::kVectors == 8);

/// The digits of the integers nearest to values / 2^-exponent of a chunk, (vector, lane) -> value;
/// `values` becomes what is left. False if that is all 0.
inline bool take_layer(__m512 values[8], DigitLayer& out) {
  __m512 largest = _mm512_setzero_ps();
  for (int v = 0; v < 8; ++v) largest = _mm512_max_ps(largest, _mm512_abs_ps(values[v]));
  // 2^(exponent + 1 - kDigitBits) and its inverse; 2^-kDigitBits for lanes of zeros.
  const __m512i none = _mm512_set1_epi32(126);
  const __mmask16 zeros = _mm512_cmpeq_ps_mask(largest, _mm512_setzero_ps());
  const __m512i exponent =
      _mm512_mask_mov_epi32(_mm512_srli_epi32(_mm512_castps_si512(largest), 23), zeros, none);
  const __m512i unit = _mm512_sub_epi32(exponent, _mm512_set1_epi32(kDigitBits - 1));
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(unit, 23));
  const __m512 inverse =
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), unit), 23));
  __m512i words[3][2] = {};
  __m512i sum = _mm512_setzero_si512();
  __mmask16 left = 0;
  for (int v = 0; v < 8; ++v) {
    const __m512 integral = _mm512_roundscale_ps(_mm512_mul_ps(values[v], inverse),
                                                 _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    values[v] = _mm512_fnmadd_ps(integral, scale, values[v]);
    left |= _mm512_cmpneq_ps_mask(values[v], _mm512_setzero_ps());
    __m512i rest = _mm512_cvtps_epi32(integral);
    sum = _mm512_add_epi32(sum, rest);
    for (int digit = 0; digit < 3; ++digit) {
      // Signed digits: the lowest 8 bits, then what is left over 256.
      const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
      rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, low), 8);
      const __m512i byte = _mm512_and_si512(low, _mm512_set1_epi32(0xFF));
      __m512i& word = words[digit][v % 2];
      word = _mm512_or_si512(word, _mm512_slli_epi32(byte, static_cast<unsigned>(v / 2 * 8)));
    }
  }
  for (int digit = 0; digit < 3; ++digit) {
    _mm512_store_si512(out.digits[digit][0], words[digit][0]);
    _mm512_store_si512(out.digits[digit][1], words[digit][1]);
  }
  _mm512_store_si512(out.offsets, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-12)));
  // Half of the unit, as codes are doubled.
  _mm512_store_ps(out.units, _mm512_mul_ps(scale, _mm512_set1_ps(0.5f)));
  return left != 0;
}

/// Writes the chunk's row of A as layers, span by span. The values must be what digits_are_safe
/// allows.
void arrange_digits(PackedChunk& chunk, std::int64_t k) {
  const std::int64_t chunks = ceil_div(k, std::int64_t{DigitLayer::kCodes});
  DigitRow& out = chunk.digits;
  out.begin.clear();
  out.chunk.clear();
  out.layers.clear();
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::int64_t first = c * DigitLayer::kCodes;
    if (first % kSpan == 0) out.begin.push_back(static_cast<std::int64_t>(out.chunk.size()));
    alignas(64) float source[DigitLayer::kCodes] = {};
    std::copy_n(chunk.row(first / kSlab, 0) + first % kSlab,
                std::min<std::int64_t>(DigitLayer::kCodes, k - first), source);
    __m512 values[8];
    for (int v = 0; v < 8; ++v) {
      const auto at = hn::Load(hn::RebindToSigned<FloatTag>(), kLaneOrder<DigitChunk>.element[v]);
      values[v] = hn::GatherIndex(FloatTag(), source, at).raw;
    }
    bool more = true;
    while (more) {
      out.chunk.push_back(static_cast<std::int32_t>(first % kSpan / DigitLayer::kCodes));
      out.layers.emplace_back();
      more = take_layer(values, out.layers.back());
    }
  }
  out.begin.push_back(static_cast<std::int64_t>(out.chunk.size()));
}

/// The sums of the lanes of kGroupColumns rows of B, over the layers [begin, end) of a span.
inline void multiply_digits(const RowOfB* b, const LaneScales& scales, const DigitRow& a,
                            std::int64_t begin, std::int64_t end, std::int64_t whole,
                            float* HWY_RESTRICT sums) {
  // The six low bits of a byte are an index: a code and two bits of its neighbour.
  alignas(64) static constexpr auto kTable = [] {
    struct {
      std::uint8_t at[64] = {};
    } table;
    constexpr int kDoubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < 64; ++i) {
      const int value = kDoubled[i % 8];
      table.at[i] = static_cast<std::uint8_t>(12 + (i % 16 < 8 ? value : -value));
    }
    return table;
  }();
  const __m512i table = _mm512_load_si512(kTable.at);
  const __m512i block_of_lane = _mm512_load_si512(scales.block_of_lane);
  __m512 sum[kGroupColumns];
  HWY_UNROLL(4)
  for (int n = 0; n < kGroupColumns; ++n) sum[n] = _mm512_setzero_ps();
  for (std::int64_t i = begin; i < end; ++i) {
    const DigitLayer& layer = a.layers[static_cast<std::size_t>(i)];
    const std::int64_t c = a.chunk[static_cast<std::size_t>(i)];
    const std::int64_t first_factor = c << scales.left >> scales.right;
    HWY_UNROLL(4)
    for (int n = 0; n < kGroupColumns; ++n) {
      const std::uint8_t* const at = c < whole ? b[n].codes + c * 64 : b[n].last;
      prefetch_to_level_2(b[n].next + c * 64);
      const __m512i codes = _mm512_loadu_si512(at);
      const __m512i even = _mm512_permutexvar_epi8(codes, table);
      const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
      __m512i products = _mm512_setzero_si512();
      HWY_UNROLL(3)
      for (int digit = 2; digit >= 0; --digit) {
        if (digit != 2) products = _mm512_slli_epi32(products, 8);
        const auto* const of_a = layer.digits[digit];
        products = _mm512_dpbusd_epi32(products, even, _mm512_load_si512(of_a[0]));
        products = _mm512_dpbusd_epi32(products, odd, _mm512_load_si512(of_a[1]));
      }
      products = _mm512_add_epi32(products, _mm512_load_si512(layer.offsets));
      const __m512 factor = _mm512_mul_ps(
          _mm512_permutexvar_ps(block_of_lane, _mm512_loadu_ps(b[n].factors + first_factor)),
          _mm512_load_ps(layer.units));
      sum[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sum[n]);
    }
  }
  HWY_UNROLL(4)
  for (int n = 0; n < kGroupColumns; ++n) _mm512_store_ps(sums + n * kLanes, sum[n]);
}

/// multiply_span of few_rows-inl.h, for one row of A in digits.
bool multiply_span_of_digits(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                             const SpanFactors& factors, std::int64_t begin, std::int64_t count,
                             float* sums, double* tile) {
  if (!digits_are_safe(chunk.range, factors.range())) return false;
  const LaneScales scales = LaneScales::of<DigitChunk>(recipe_traits(b.recipe));
  const std::int64_t padded = ceil_div(task.columns, std::int64_t{kGroupColumns}) * kGroupColumns;
  const std::size_t span = static_cast<std::size_t>(begin / kSpan);
  const std::int64_t whole = GroupOfB<DigitChunk>::whole_chunks(count);
  for (std::int64_t n = 0; n < task.columns; n += kGroupColumns) {
    const GroupOfB<DigitChunk> rows(b, factors, task.column_begin + n,
                                    task.column_begin + task.columns, begin, count);
    multiply_digits(rows.rows(), scales, chunk.digits, chunk.digits.begin[span],
                    chunk.digits.begin[span + 1], whole, sums + n * kLanes);
  }
  add_lanes(RowGroups(1, 1), task.columns, padded, sums, tile);
  return true;
}

/// Whether one row of A in `a` is best multiplied so. An f32 A would need two layers.
bool has_digits(Recipe a, Recipe b) {
  return a != Recipe::f32 && recipe_traits(b).element == Format::e2m1;
}

#else

void arrange_digits(PackedChunk&, std::int64_t) {}
bool multiply_span_of_digits(const PackedChunk&, const OperandMatrix&, const Task&,
                             const SpanFactors&, std::int64_t, std::int64_t, float*, double*) {
  return false;
}
bool has_digits(Recipe, Recipe) {
  return false;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
