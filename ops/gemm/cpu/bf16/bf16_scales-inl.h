// Scales of a tile of B over a span of k, for few rows of A in bf16.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp; for AVX3_DL. There is a class for each
// way in which they enter, by the size of blocks against the chunks of bf16_codes-inl.h:
//   SmallBlocks  bytes of MX and NVFP4, several blocks to a chunk
//   LargeBlocks  blocks of FP8, of a chunk
//   WholeRows    rows and tensors of FP8: kOfSums, as nothing but the sum of a row is scaled
// Each has range(), which span_is_safe looks at; the first two give factors of a chunk's lanes.

#if defined(BLOCKSCALE_OPS_GEMM_BF16_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_BF16_SCALES_INL_H_
#undef BLOCKSCALE_OPS_GEMM_BF16_SCALES_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_BF16_SCALES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/recipe.h"
#include "ops/common/scale_placement.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/few_rows/few_rows-inl.h"
#include "ops/gemm/cpu/panels/chunk-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE std::uint32_t smallest_byte(__m512i bytes) {
  const __m256i of_32 =
      _mm256_min_epu8(_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1));
  const __m128i of_16 =
      _mm_min_epu8(_mm256_castsi256_si128(of_32), _mm256_extracti128_si256(of_32, 1));
  const __m128i words = _mm_min_epu8(of_16, _mm_srli_epi16(of_16, 8));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(words))) & 0xFFu;
}

/// Scales of one byte of a tile of B over a span of k.
class ScaleBytes {
 public:
  /// `scratch`: kFactorPitchOfSpan bytes for each row. Behind a row's scales there are zeros up to
  /// a multiple of `chunk`, the number of blocks of a chunk.
  ScaleBytes(const OperandMatrix& x, const Task& task, std::int64_t begin, std::int64_t count,
             std::int64_t chunk, std::uint8_t* scratch)
      : format_(recipe_traits(x.recipe).scale), first_(task.column_begin) {
    const std::int64_t block = recipe_traits(x.recipe).block_k;
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    const PlacedScales<const std::uint8_t> placed{static_cast<const std::uint8_t*>(x.scales),
                                                  x.layout, x.scale_leading_stride};
    count_ = count / block;
    if (x.layout == ScaleLayout::row_major && count_ % chunk == 0) {
      scales_ = placed.at(first_, begin / block);
      pitch_ = x.scale_leading_stride;
      rows_left_ = x.rows - first_;
    } else {
      gather_scales(placed, {first_, task.columns, begin / block, count_, grid.rows, grid.columns},
                    scratch, kFactorPitchOfSpan);
      for (std::int64_t r = 0; r < task.columns; ++r) {
        std::fill_n(scratch + r * kFactorPitchOfSpan + count_,
                    ceil_div(count_, chunk) * chunk - count_, std::uint8_t{0});
      }
      scales_ = scratch;
      pitch_ = kFactorPitchOfSpan;
      rows_left_ = task.columns;
    }
    find_range(task.columns);
  }

  std::int64_t pitch() const { return pitch_; }
  /// ue8m0's byte 0 is in it as 2^-127.
  const ValueRange& range() const { return range_; }

  HWY_INLINE const std::uint8_t* row(std::int64_t row) const {
    return scales_ + (row - first_) * pitch_;
  }
  /// Asks for the scales of the kGroupColumns rows that lie kTileColumns below.
  HWY_INLINE void prefetch_next(std::int64_t row) const {
    if (row - first_ + kTileColumns + kGroupColumns > rows_left_) return;
    const std::uint8_t* const next = this->row(row + kTileColumns);
    const bool touch = pitch_ == count_;
    const std::int64_t count = touch ? kGroupColumns * count_ : count_;
    for (std::int64_t r = 0; r < (touch ? 1 : kGroupColumns); ++r) {
      for (std::int64_t i = 0; i < count; i += 64) prefetch_to_level_2(next + r * pitch_ + i);
    }
  }

 private:
  /// Codes are in the order of their values.
  void find_range(std::int64_t rows) {
    const std::uint32_t zeros = format_ == Format::ue4m3 ? 1 : 0;
    __m512i largest = _mm512_setzero_si512();
    __m512i smallest = _mm512_set1_epi8(-1);  // less `zeros`, so that a zero is the largest
    const __m512i one = _mm512_set1_epi8(static_cast<char>(zeros));
    const bool touch = pitch_ == count_;  // rows that touch are one long row
    const std::int64_t count = touch ? rows * count_ : count_;
    for (std::int64_t r = 0; r < (touch ? 1 : rows); ++r) {
      const std::uint8_t* const row = scales_ + r * pitch_;
      for (std::int64_t i = 0; i < count; i += 64) {
        const __mmask64 mask = ~__mmask64{0} >> (64 - std::min<std::int64_t>(count - i, 64));
        const __m512i codes = _mm512_maskz_loadu_epi8(mask, row + i);
        largest = _mm512_max_epu8(largest, codes);
        smallest = _mm512_mask_min_epu8(smallest, mask, smallest, _mm512_sub_epi8(codes, one));
      }
    }
    const std::uint32_t most =
        0xFFu - smallest_byte(_mm512_sub_epi8(_mm512_set1_epi8(-1), largest));
    const std::uint32_t least = smallest_byte(smallest) + zeros;
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

template <class C, Format kScale>  // C: the class of codes
class SmallBlocks {
 public:
  static constexpr bool kOfSums = false;

  SmallBlocks(const OperandMatrix& b, const Task& task, std::int64_t begin, std::int64_t count,
              float* scratch)
      : bytes_(b, task, begin, count, kBlocks, reinterpret_cast<std::uint8_t*>(scratch)) {}

  const ValueRange& range() const { return bytes_.range(); }
  std::int64_t pitch() const { return bytes_.pitch(); }  // bytes from row to row

  /// What `factor` takes for this row, the first of a group.
  HWY_INLINE const std::uint8_t* row(std::int64_t row) const {
    bytes_.prefetch_next(row);
    return bytes_.row(row);
  }
  /// Not of NaN, nor of ue8m0's 2^-127.
  HWY_INLINE __m512 factor(const std::uint8_t* row, std::int64_t c) const {
    __m512i all;
    const auto load = [&]<class Bytes>(Bytes& bytes) {
      std::memcpy(&bytes, row + c * kBlocks, sizeof(bytes));
      return bytes;
    };
    if constexpr (kBlocks == 2) {
      std::int16_t bytes;
      all = _mm512_set1_epi16(load(bytes));
    } else if constexpr (kBlocks == 4) {
      std::int32_t bytes;
      all = _mm512_set1_epi32(load(bytes));
    } else {
      std::int64_t bytes;
      all = _mm512_set1_epi64(load(bytes));
    }
    // One shuffle and a mask: what limits a row of A are shuffles and shifts, not masks.
    const __m512i placed =
        _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_load_si512(kFirstBits.at), all),
                         _mm512_set1_epi32(0xFF << kShift));
    if constexpr (kScale == Format::ue8m0) {
      return _mm512_castsi512_ps(placed);
    } else {
      // As if the exponent had f32's bias; subnormal scales are subnormal then.
      return _mm512_mul_ps(_mm512_castsi512_ps(placed), _mm512_set1_ps(0x1p120f));
    }
  }

 private:
  static constexpr int kBlock = kScale == Format::ue8m0 ? 32 : 16;
  static constexpr int kBlocks = C::kCodes / kBlock;  // of a chunk
  /// The place of a scale's lowest bit in a lane: f32's exponent begins at bit 23, and ue4m3 has 3
  /// bits of mantissa below its own.
  static constexpr int kShift = kScale == Format::ue8m0 ? 23 : 20;

  /// Of each byte of a lane, in the scales of a chunk, which are repeated to 64 bits.
  struct FirstBits {
    alignas(64) std::uint8_t at[64];

    constexpr FirstBits() : at() {
      for (int byte = 0; byte < 64; ++byte) {
        const int scale = 8 * (C::element(0, byte / 4 * 2) / kBlock);
        at[byte] = static_cast<std::uint8_t>((scale + byte % 4 * 8 - kShift + 64) % 64);
      }
    }
  };
  static constexpr FirstBits kFirstBits{};

  ScaleBytes bytes_;
};

class LargeBlocks {
 public:
  static constexpr bool kOfSums = false;

  LargeBlocks(const OperandMatrix& b, const Task& task, std::int64_t begin, std::int64_t count,
              float* scratch)
      : factors_(b, task.column_begin, task.columns, begin, count, scratch),
        pitch_(recipe_traits(b.recipe).block_rows == 1 ? kPitch : 0) {}

  const ValueRange& range() const { return factors_.range(); }
  /// Where rows share factors, those of a group do, as it starts at a multiple of four.
  std::int64_t pitch() const { return pitch_; }
  HWY_INLINE const std::uint8_t* row(std::int64_t row) const {
    return reinterpret_cast<const std::uint8_t*>(factors_.row(row));
  }
  HWY_INLINE __m512 factor(const std::uint8_t* row, std::int64_t c) const {
    return _mm512_set1_ps(reinterpret_cast<const float*>(row)[c]);
  }

 private:
  static constexpr std::int64_t kPitch = kFactorPitchOfSpan * std::int64_t{sizeof(float)};

  SpanFactors factors_;
  std::int64_t pitch_;
};

class WholeRows {
 public:
  static constexpr bool kOfSums = true;

  WholeRows(const OperandMatrix& b, const Task& task, std::int64_t, std::int64_t, float* scratch)
      : first_(task.column_begin), values_(scratch) {
    const PlacedScales<const float> placed{static_cast<const float*>(b.scales), b.layout,
                                           b.scale_leading_stride};
    const bool one = recipe_traits(b.recipe).block_rows == 0;  // for all rows
    float gathered[kTileColumns];
    const float* from = gathered;
    if (one) {
      std::fill_n(gathered, task.columns, *placed.at(0, 0));
    } else if (b.layout == ScaleLayout::mn_major || b.scale_leading_stride == 1) {
      from = placed.at(first_, 0);
    } else {
      gather_scales(placed, {first_, task.columns, 0, 1, b.rows, 1}, gathered, 1);
    }
    // A group that is one row, four times, takes factors of rows that the tile has not.
    RangeOfVectors range;
    for (std::int64_t i = 0; i < kTileColumns + kGroupColumns; i += kLanes) {
      const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, task.columns - i));
      const auto scales = hn::MaskedLoad(hn::FirstN(FloatTag(), count), FloatTag(), from + i);
      range.include(scales);
      hn::StoreU(scales, FloatTag(), values_ + i);
    }
    range_ = range.range();
  }
  const ValueRange& range() const { return range_; }
  /// Of kGroupColumns rows.
  HWY_INLINE __m128 factors(std::int64_t row) const { return _mm_loadu_ps(values_ + row - first_); }

 private:
  std::int64_t first_;
  float* values_;
  ValueRange range_;
};

#endif  // HWY_AVX3_DL

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
