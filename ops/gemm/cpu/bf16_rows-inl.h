// Few rows of A that are exact in bf16, times codes of B that are: pairs of products by vdpbf16ps.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL, on CPUs with AVX-512 BF16.
// As few_rows-inl.h goes, but a code becomes 16 bits, by a look-up for 32 codes, and an instruction
// multiplies and adds 32 of them: FP4 takes 14 instructions for 128 codes, so that memory is what
// limits one row of A. Scales stay bytes
// until they are needed.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/chunk-inl.h"
#include "ops/gemm/cpu/few_rows-inl.h"
#include "ops/gemm/cpu/span_factors-inl.h"

#include "ops/common/simd/push_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

/// kCodes consecutive codes as kVectors vectors of 32 bf16 values; element(v, i) is where value i
/// of vector v lies. The values that meet in a 32-bit lane are of one aligned group of 8 codes
/// (FP4) or 16 (others), in every vector.
template <Format F>
class Bf16Codes {
 public:
  static constexpr int kCodes = Chunk<F>::kCodes;
  static constexpr int kVectors = 2;
  static constexpr int kBytes = Chunk<F>::kBytes;
  static constexpr int kOverRead = Chunk<F>::kOverRead;

  static constexpr int element(int v, int i) { return i / 8 * 16 + v * 8 + i % 8; }

  HWY_INLINE explicit Bf16Codes(const std::uint8_t* bytes) : chunk_(bytes) {}
  template <int kVector>
  HWY_INLINE __m512i vector() const {
    return chunk_.pairs(kVector);
  }

 private:
  Chunk<F> chunk_;
};

/// Nibble v of each 16-bit word is vector v.
template <>
class Bf16Codes<Format::e2m1> {
 public:
  static constexpr int kCodes = 128;
  static constexpr int kVectors = 4;
  static constexpr int kBytes = 64;
  static constexpr int kOverRead = 0;

  static constexpr int element(int v, int i) { return 4 * i + v; }

  HWY_INLINE explicit Bf16Codes(const std::uint8_t* bytes)
      : words_(*reinterpret_cast<const volatile __m512i_u*>(bytes)) {}  // once, not for each shift
  template <int kVector>
  HWY_INLINE __m512i vector() const {
    // The look-up reads the five low bits of a word: a code and a bit of its neighbour.
    alignas(64) static constexpr auto kTable = [] {
      struct {
        std::uint16_t at[32] = {};
      } table;
      for (std::uint32_t i = 0; i < 32; ++i) {
        const float value = decode<Format::e2m1>(i % 16);
        table.at[i] = static_cast<std::uint16_t>(bit_cast<std::uint32_t>(value) >> 16);
      }
      return table;
    }();
    const __m512i at_bottom = kVector == 0 ? words_ : _mm512_srli_epi16(words_, 4 * kVector);
    return _mm512_permutexvar_epi16(at_bottom, _mm512_load_si512(kTable.at));
  }

 private:
  __m512i words_;
};

/// Scales of one byte of a tile of B over a span of k.
class ScaleBytes {
 public:
  /// `scratch`: kFactorPitchOfSpan bytes for each row.
  ScaleBytes(const OperandMatrix& x, std::int64_t first, std::int64_t rows, std::int64_t begin,
             std::int64_t count, std::uint8_t* scratch)
      : format_(recipe_traits(x.recipe).scale), first_(first) {
    const std::int64_t block = recipe_traits(x.recipe).block_k;
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    const PlacedScales<const std::uint8_t> placed{static_cast<const std::uint8_t*>(x.scales),
                                                  x.layout, x.scale_leading_stride};
    count_ = count / block;
    if (x.layout == ScaleLayout::row_major) {
      scales_ = placed.at(first, begin / block);
      pitch_ = x.scale_leading_stride;
      rows_left_ = x.rows - first;
    } else {
      gather_scales(placed, {first, rows, begin / block, count_, grid.rows, grid.columns}, scratch,
                    kFactorPitchOfSpan);
      scales_ = scratch;
      pitch_ = kFactorPitchOfSpan;
      rows_left_ = rows;
    }
    find_range(rows);
  }

  std::int64_t count() const { return count_; }  // in a row
  std::int64_t pitch() const { return pitch_; }
  /// ue8m0's byte 0 is in it as 2^-127.
  const ValueRange& range() const { return range_; }

  const std::uint8_t* row(std::int64_t row) const { return scales_ + (row - first_) * pitch_; }

  /// Asks for the scales of the row that lies kTileColumns below.
  HWY_INLINE void prefetch_next(std::int64_t row) const {
    if (row - first_ + kTileColumns >= rows_left_) return;
    const std::uint8_t* const next = scales_ + (row - first_ + kTileColumns) * pitch_;
    for (std::int64_t i = 0; i < count_; i += 64) prefetch_to_level_2(next + i);
  }

 private:
  static __mmask64 first_bytes(std::int64_t left, std::int64_t most) {
    return ~__mmask64{0} >> (64 - std::min(left, most));
  }

  /// Codes are in the order of their values.
  void find_range(std::int64_t rows) {
    const bool has_zero = format_ == Format::ue4m3;
    const __m512i one = _mm512_set1_epi8(has_zero ? 1 : 0);
    __m512i largest = _mm512_setzero_si512();
    __m512i smallest = _mm512_set1_epi8(-1);
    const bool touch = pitch_ == count_;  // rows that touch are one long row
    const std::int64_t count = touch ? rows * count_ : count_;
    for (std::int64_t r = 0; r < (touch ? 1 : rows); ++r) {
      const std::uint8_t* const row = scales_ + r * pitch_;
      for (std::int64_t i = 0; i < count; i += 64) {
        const __mmask64 mask = first_bytes(count - i, 64);
        const __m512i codes = _mm512_maskz_loadu_epi8(mask, row + i);
        largest = _mm512_max_epu8(largest, codes);
        smallest = _mm512_mask_min_epu8(smallest, mask, smallest, _mm512_sub_epi8(codes, one));
      }
    }
    alignas(64) std::uint8_t above[64];
    alignas(64) std::uint8_t below[64];
    _mm512_store_si512(above, largest);
    _mm512_store_si512(below, smallest);
    const std::uint32_t most = *std::max_element(above, above + 64);
    const std::uint32_t least = *std::min_element(below, below + 64) + (has_zero ? 1u : 0u);
    if (most != 0) range_.include(value(most));
    if (least <= 0xFF) range_.include(value(least));
  }
  float value(std::uint32_t code) const {
    return format_ == Format::ue8m0 ? decode<Format::ue8m0>(code) : decode<Format::ue4m3>(code);
  }

  Format format_;
  std::int64_t first_;
  std::int64_t count_ = 0;  // in a row
  const std::uint8_t* scales_ = nullptr;
  std::int64_t pitch_ = 0;
  std::int64_t rows_left_ = 0;  // from the first row on
  ValueRange range_;
};

/// The factors of a row of B over a span, for the lanes of a chunk: f32 of blocks of at least a
/// chunk, or bytes of smaller ones.
class LargeBlocks {
 public:
  template <class C>
  static LargeBlocks of(std::int64_t block) {
    LargeBlocks f;
    f.right_ = 62;
    if (block != 0) f.right_ = std::countr_zero(static_cast<std::uint64_t>(block / C::kCodes));
    return f;
  }
  HWY_INLINE __m512 factor(const std::uint8_t* row, std::int64_t c) const {
    return _mm512_set1_ps(reinterpret_cast<const float*>(row)[c >> right_]);
  }

 private:
  int right_ = 0;
};

template <Format kScale, class Bytes>  // Bytes: an integer of as many bytes as a chunk has blocks
class SmallBlocks {
 public:
  template <class C>
  static SmallBlocks of(std::int64_t block) {
    SmallBlocks f;
    for (int lane = 0; lane < 16; ++lane) {
      const int scale = 8 * (C::element(0, 2 * lane) / static_cast<int>(block));
      for (int byte = 0; byte < 4; ++byte) {
        f.first_bits_[4 * lane + byte] =
            static_cast<std::uint8_t>((scale + 8 * byte - kShift + 64) % 64);
      }
    }
    return f;
  }
  /// Not of NaN, nor of ue8m0's 2^-127.
  HWY_INLINE __m512 factor(const std::uint8_t* row, std::int64_t c) const {
    Bytes bytes;
    std::memcpy(&bytes, row + c * static_cast<std::int64_t>(sizeof(Bytes)), sizeof(Bytes));
    __m512i all;
    if constexpr (sizeof(Bytes) == 2) {
      all = _mm512_set1_epi16(static_cast<std::int16_t>(bytes));
    } else if constexpr (sizeof(Bytes) == 4) {
      all = _mm512_set1_epi32(static_cast<std::int32_t>(bytes));
    } else {
      all = _mm512_set1_epi64(static_cast<std::int64_t>(bytes));
    }
    // One shuffle and a mask: what limits a row of A are shuffles and shifts, not masks.
    const __m512i placed =
        _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_load_si512(first_bits_), all),
                         _mm512_set1_epi32(0xFF << kShift));
    if constexpr (kScale == Format::ue8m0) {
      return _mm512_castsi512_ps(placed);
    } else {
      // As if the exponent had f32's bias; subnormal scales are subnormal then.
      return _mm512_mul_ps(_mm512_castsi512_ps(placed), _mm512_set1_ps(0x1p120f));
    }
  }

 private:
  /// The place of a scale's lowest bit in a lane: f32's exponent begins at bit 23, and ue4m3 has 3
  /// bits of mantissa below its own.
  static constexpr int kShift = kScale == Format::ue8m0 ? 23 : 20;

  /// Of each byte of a lane, in the scales of a chunk, which are repeated to 64 bits.
  alignas(64) std::uint8_t first_bits_[64];
};

/// kGroupColumns rows of B over a span, the same distance apart.
struct FourRows {
  const std::uint8_t* codes = nullptr;
  std::int64_t stride = 0;             // bytes
  std::int64_t ahead = 0;              // bytes from the first row to what is fetched meanwhile
  std::int64_t fetch_stride = 0;       // bytes between the four places that are fetched at a time
  std::int64_t fetch_step = 0;         // bytes by which they move from chunk to chunk
  const std::uint8_t* last = nullptr;  // the chunk that is not whole, filled up with zeros
  std::int64_t last_stride = 0;
  const std::uint8_t* factors = nullptr;
  std::int64_t factor_stride = 0;  // bytes
};

/// Adds the products of these rows of B and kRows rows of A to the tile: `whole` chunks, and one
/// that is not if there is a `last` one.
template <class C, class Factors, int kRows>
void multiply_bf16_rows(const FourRows& b, const Factors& of_lanes, std::int64_t whole,
                        const std::uint16_t* a, double* HWY_RESTRICT tile) {
  const Factors local = of_lanes;
  const std::uint8_t* const factors = b.factors;
  const std::int64_t factor_stride = b.factor_stride;
  __m512 sum[kGroupColumns][kRows];
  HWY_UNROLL(4)
  for (int n = 0; n < kGroupColumns; ++n) {
    HWY_UNROLL(4)
    for (int m = 0; m < kRows; ++m) sum[n][m] = _mm512_setzero_ps();
  }
  const auto step = [&](const std::uint8_t* codes, std::int64_t stride, std::int64_t c) HWY_ATTR {
    const std::uint16_t* const a_chunk = a + c * (kRows * C::kCodes);
    const C chunk0(codes);
    const C chunk1(codes + stride);
    const C chunk2(codes + 2 * stride);
    const C chunk3(codes + 3 * stride);
    __m512 partial[kGroupColumns][kRows];
    const auto add_vector = [&]<int kVector>() HWY_ATTR {
      __m512bh x[kRows];
      HWY_UNROLL(4)
      for (int m = 0; m < kRows; ++m) {
        x[m] = reinterpret_cast<__m512bh>(
            _mm512_load_si512(a_chunk + (m * C::kVectors + kVector) * 32));
      }
      HWY_UNROLL(4)
      for (int n = 0; n < kGroupColumns; ++n) {
        const C& chunk = n == 0 ? chunk0 : n == 1 ? chunk1 : n == 2 ? chunk2 : chunk3;
        const auto values = reinterpret_cast<__m512bh>(chunk.template vector<kVector>());
        HWY_UNROLL(4)
        for (int m = 0; m < kRows; ++m) {
          partial[n][m] =
              _mm512_dpbf16_ps(kVector == 0 ? _mm512_setzero_ps() : partial[n][m], values, x[m]);
        }
      }
    };
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
      (add_vector.template operator()<kIndex>(), ...);
    }(std::make_integer_sequence<int, C::kVectors>());
    HWY_UNROLL(4)
    for (int n = 0; n < kGroupColumns; ++n) {
      const __m512 factor = local.factor(factors + n * factor_stride, c);
      HWY_UNROLL(4)
      for (int m = 0; m < kRows; ++m) {
        sum[n][m] = _mm512_fmadd_ps(partial[n][m], factor, sum[n][m]);
      }
    }
  };
  const std::uint8_t* codes = b.codes;
  const std::int64_t stride = b.stride;
  const std::int64_t fetch_stride = b.fetch_stride;
  const std::int64_t fetch_step = b.fetch_step;
  const std::uint8_t* next = codes + b.ahead;
  for (std::int64_t c = 0; c < whole; ++c, codes += C::kBytes, next += fetch_step) {
    HWY_UNROLL(4)
    for (int n = 0; n < kGroupColumns; ++n) prefetch_to_level_2(next + n * fetch_stride);
    step(codes, stride, c);
  }
  if (b.last != nullptr) step(b.last, b.last_stride, whole);
  HWY_UNROLL(4)
  for (int m = 0; m < kRows; ++m) {
    add_lanes(hn::Vec<FloatTag>{sum[0][m]}, hn::Vec<FloatTag>{sum[1][m]},
              hn::Vec<FloatTag>{sum[2][m]}, hn::Vec<FloatTag>{sum[3][m]}, tile + m * kTileColumns);
  }
}

/// multiply_bf16_rows for 1..kFewRows rows of A.
template <class C, class Factors>
inline constexpr std::array kMultiplyBf16Rows{
    multiply_bf16_rows<C, Factors, 1>, multiply_bf16_rows<C, Factors, 2>,
    multiply_bf16_rows<C, Factors, 3>, multiply_bf16_rows<C, Factors, 4>};
static_assert(kFewRows == 4 && kGroupColumns == 4);

/// Rows of A in bf16: (chunk, row, vector, value). What is beyond k is 0.
template <class C>
void arrange_bf16_rows_as(PackedChunk& chunk, std::int64_t k) {
  static constexpr auto kOrder = [] {
    struct {
      std::int32_t at[C::kVectors * 32] = {};
    } order;
    for (int i = 0; i < C::kVectors * 32; ++i) order.at[i] = C::element(i / 32, i % 32);
    return order;
  }();
  const std::int64_t chunks = ceil_div(k, std::int64_t{C::kCodes});
  chunk.bf16_rows = chunk.memory.take<std::uint16_t>(chunks * C::kCodes * chunk.rows);
  std::uint16_t* out = chunk.bf16_rows.get();
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::int64_t first = c * C::kCodes;
    for (std::int64_t r = 0; r < chunk.rows; ++r, out += C::kCodes) {
      alignas(64) float source[C::kCodes] = {};
      std::copy_n(chunk.row(first / kSlab, r) + first % kSlab,
                  std::min<std::int64_t>(C::kCodes, k - first), source);
      for (int i = 0; i < C::kCodes; i += 16) {
        const __m512 values = _mm512_i32gather_ps(_mm512_loadu_si512(kOrder.at + i), source, 4);
        const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(values), 16);
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(upper));
      }
    }
  }
}

/// Calls `body` with the codes of an element format known at run time.
template <class Body>
auto with_bf16_codes(Format element, const Body& body) {
  switch (element) {
    case Format::e2m1: return body.template operator()<Bf16Codes<Format::e2m1>>();
    case Format::e2m3: return body.template operator()<Bf16Codes<Format::e2m3>>();
    case Format::e3m2: return body.template operator()<Bf16Codes<Format::e3m2>>();
    case Format::e5m2: return body.template operator()<Bf16Codes<Format::e5m2>>();
    default: return body.template operator()<Bf16Codes<Format::e4m3>>();
  }
}

/// The products of a span. `factors_of(row)` is where the factors of a row of B begin, and those of
/// the rows below it, `factor_stride` bytes apart. A span of A is 32 KiB at most: a level-1 cache.
template <class C, class Factors, class FactorsOf>
void add_bf16_span(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                   std::int64_t begin, std::int64_t count, const FactorsOf& factors_of,
                   std::int64_t factor_stride, double* tile) {
  const auto of_lanes = Factors::template of<C>(recipe_traits(b.recipe).block_k);
  const auto multiply = kMultiplyBf16Rows<C, Factors>[static_cast<std::size_t>(chunk.rows - 1)];
  const std::uint16_t* const a = chunk.bf16_rows.get() + begin * chunk.rows;
  const std::uint8_t* const first = b.values + row_bytes(b.recipe, begin);
  const std::int64_t whole = count / C::kCodes;
  const std::int64_t whole_bytes = whole * C::kBytes;
  const std::int64_t bytes = row_bytes(b.recipe, count) - whole_bytes;
  // What is fetched takes a tenth of a microsecond to come, in which short rows are many.
  constexpr std::int64_t kBytesAhead = 16 * 1024;
  // Rows are used side by side, but long ones are fetched one after the other where they touch: in
  // huge pages memory gives twice as much so.
  const bool in_order = b.value_row_stride == whole_bytes && whole_bytes >= 1024;
  const std::int64_t rows_ahead = std::max<std::int64_t>(
      kGroupColumns, kBytesAhead / std::max<std::int64_t>(1, b.value_row_stride));
  alignas(64) std::uint8_t last[kGroupColumns][64] = {};
  static_assert(C::kBytes <= 64 && C::kOverRead == 0);
  // `rows`: how many there are, or 1, four times.
  const auto multiply_rows = [&](std::int64_t row, std::int64_t rows, double* out) {
    FourRows four;
    const std::int64_t step = rows == 1 ? 0 : 1;
    four.codes = first + row * b.value_row_stride;
    four.stride = step * b.value_row_stride;
    if (row + rows_ahead + kGroupColumns <= b.rows) four.ahead = rows_ahead * b.value_row_stride;
    four.fetch_stride = in_order ? C::kBytes : four.stride;
    four.fetch_step = in_order ? kGroupColumns * C::kBytes : C::kBytes;
    four.factors = factors_of(row);
    four.factor_stride = step * factor_stride;
    if (bytes != 0) {
      for (std::int64_t r = 0; r < rows; ++r) {
        std::copy_n(four.codes + r * four.stride + whole_bytes, bytes, last[r]);
      }
      four.last = last[0];
      four.last_stride = step * 64;
    }
    multiply(four, of_lanes, whole, a, out);
  };
  std::int64_t n = 0;
  for (; n + kGroupColumns <= task.columns; n += kGroupColumns) {
    multiply_rows(task.column_begin + n, kGroupColumns, tile + n);
  }
  for (; n < task.columns; ++n) {
    alignas(64) double column[kFewRows * kTileColumns] = {};
    multiply_rows(task.column_begin + n, 1, column);
    for (std::int64_t m = 0; m < chunk.rows; ++m) {
      tile[m * kTileColumns + n] += column[m * kTileColumns];
    }
  }
}

/// add_bf16_span where blocks are smaller than a chunk. False, and nothing done, if f32 might not
/// hold the sums.
template <class C, Format kScale, class Bytes>
bool multiply_small_blocks(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                           std::int64_t begin, std::int64_t count, std::uint8_t* scratch,
                           double* tile) {
  const ScaleBytes scales(b, task.column_begin, task.columns, begin, count, scratch);
  if (!span_is_safe(chunk.range, scales.range(), recipe_traits(b.recipe).element)) return false;
  const std::int64_t end = task.column_begin + task.columns;
  using Factors = SmallBlocks<kScale, Bytes>;
  if (count % C::kCodes == 0) {
    const auto factors = [&](std::int64_t row) HWY_ATTR {
      for (std::int64_t r = row; r < std::min(row + kGroupColumns, end); ++r) {
        scales.prefetch_next(r);
      }
      return scales.row(row);
    };
    add_bf16_span<C, Factors>(chunk, b, task, begin, count, factors, scales.pitch(), tile);
    return true;
  }
  // The factors that the last chunk lacks are 0.
  constexpr std::int64_t kPitch = kSpan / kMinBlock;
  std::uint8_t filled[kGroupColumns * kPitch] = {};
  const auto factors = [&](std::int64_t row) {
    for (std::int64_t r = row; r < std::min(row + kGroupColumns, end); ++r) {
      std::copy_n(scales.row(r), scales.count(), filled + (r - row) * kPitch);
    }
    return static_cast<const std::uint8_t*>(filled);
  };
  add_bf16_span<C, Factors>(chunk, b, task, begin, count, factors, kPitch, tile);
  return true;
}

/// The same where they are not.
template <class C>
bool multiply_large_blocks(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                           std::int64_t begin, std::int64_t count, float* scratch, double* tile) {
  const RecipeTraits& t = recipe_traits(b.recipe);
  const SpanFactors all(b, task.column_begin, task.columns, begin, count, scratch);
  if (!span_is_safe(chunk.range, all.range(), t.element)) return false;
  const auto factors = [&](std::int64_t row) {
    return reinterpret_cast<const std::uint8_t*>(all.row(row));
  };
  // Where rows share factors, four that start at a multiple of four do.
  const auto stride = static_cast<std::int64_t>(kFactorPitchOfSpan * sizeof(float));
  add_bf16_span<C, LargeBlocks>(chunk, b, task, begin, count, factors,
                                t.block_rows == 1 ? stride : 0, tile);
  return true;
}

/// multiply_span of few_rows-inl.h, for A in bf16. `scratch`: kFactorScratch numbers.
bool multiply_span_of_bf16(const PackedChunk& chunk, const OperandMatrix& b, const Task& task,
                           std::int64_t begin, std::int64_t count, float* scratch, double* tile) {
  const RecipeTraits& t = recipe_traits(b.recipe);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(scratch);
  const auto small = [&]<Format F, Format kScale, class Bytes>() {
    return multiply_small_blocks<Bf16Codes<F>, kScale, Bytes>(chunk, b, task, begin, count, bytes,
                                                              tile);
  };
  const auto any = [&]<Format F>() {
    if (t.family == Family::mx) {
      return small.template operator()<F, Format::ue8m0, std::uint16_t>();
    }
    return multiply_large_blocks<Bf16Codes<F>>(chunk, b, task, begin, count, scratch, tile);
  };
  constexpr Format kUe8m0 = Format::ue8m0;
  switch (t.element) {
    case Format::e2m1:
      if (t.scale == Format::ue4m3) {
        return small.template operator()<Format::e2m1, Format::ue4m3, std::uint64_t>();
      }
      return small.template operator()<Format::e2m1, kUe8m0, std::uint32_t>();
    case Format::e2m3: return small.template operator()<Format::e2m3, kUe8m0, std::uint16_t>();
    case Format::e3m2: return small.template operator()<Format::e3m2, kUe8m0, std::uint16_t>();
    case Format::e5m2: return any.template operator()<Format::e5m2>();
    default: return any.template operator()<Format::e4m3>();
  }
}

/// Prepares a chunk of A, of values that bf16 holds, for multiply_span_of_bf16 with B of `recipe`.
void arrange_bf16_rows(PackedChunk& chunk, std::int64_t k, Recipe recipe) {
  with_bf16_codes(recipe_traits(recipe).element,
                  [&]<class C>() HWY_ATTR { arrange_bf16_rows_as<C>(chunk, k); });
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

bool multiply_span_of_bf16(const PackedChunk&, const OperandMatrix&, const Task&, std::int64_t,
                           std::int64_t, float*, double*) {
  return false;
}
void arrange_bf16_rows(PackedChunk&, std::int64_t, Recipe) {}
bool has_bf16_rows(Recipe, Recipe) {
  return false;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();
#pragma pop_macro("HWY_TARGET_STR")

#endif  // include guard, toggled per target
