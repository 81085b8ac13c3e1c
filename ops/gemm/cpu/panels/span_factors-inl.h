// Scales of a tile of B over a span of k, as f32.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp.

#if defined(BLOCKSCALE_OPS_GEMM_SPAN_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_SPAN_FACTORS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_SPAN_FACTORS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_SPAN_FACTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/common/scale_placement.h"
#include "ops/common/simd/scale_factors.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/common/simd/decode-inl.h"
#include "ops/gemm/cpu/panels/chunk-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

/// Factors of a row of B over a span, with room for a vector more.
inline constexpr std::int64_t kFactorPitchOfSpan = kSpan / kMinBlock + steps::kArrayPadding;

/// kLanes scales as f32.
HWY_INLINE hn::Vec<FloatTag> decode_scales(Format, const float* scales) {
  return hn::LoadU(FloatTag(), scales);
}
using ScaleCodesTag = hn::Rebind<std::uint8_t, FloatTag>;
HWY_INLINE hn::Vec<FloatTag> decode_scales(Format scale, hn::Vec<ScaleCodesTag> scales) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bytes = hn::PromoteTo(du, scales);
  if (scale == Format::ue4m3) {
    // As if the exponent had f32's bias; subnormal scales are subnormal then.
    const auto magnitude = hn::And(bytes, hn::Set(du, 0x7Fu));
    const auto low = hn::BitCast(df, hn::ShiftLeft<20>(magnitude));
    const auto is_nan = hn::RebindMask(df, hn::Eq(magnitude, hn::Set(du, 0x7Fu)));
    const auto nan = hn::BitCast(df, hn::Set(du, 0x7FC00000u));
    return hn::IfThenElse(is_nan, nan, hn::Mul(low, hn::Set(df, 0x1p120f)));
  }
  auto bits = hn::ShiftLeft<23>(bytes);
  bits = hn::IfThenElse(hn::Eq(bytes, hn::Zero(du)), hn::Set(du, 0x00400000u), bits);
  bits = hn::IfThenElse(hn::Eq(bytes, hn::Set(du, 0xFFu)), hn::Set(du, 0x7FC00000u), bits);
  return hn::BitCast(df, bits);
}
HWY_INLINE hn::Vec<FloatTag> decode_scales(Format scale, const std::uint8_t* scales) {
  return decode_scales(scale, hn::LoadU(ScaleCodesTag(), scales));
}

/// `count` (less than kLanes) of them, then zeros. Reads nothing else: nothing where there is one
/// lane, which g++ 12.4 does not see.
HWY_INLINE hn::Vec<FloatTag> decode_some_scales(Format, const float* scales, std::int64_t count) {
  const FloatTag df;
#if BLOCKSCALE_HAS_CHUNKS
  return hn::MaskedLoad(hn::FirstN(df, static_cast<std::size_t>(count)), df, scales);
#else
  HWY_ALIGN float some[kLanes] = {};
  if constexpr (kLanes > 1) std::copy_n(scales, count, some);
  return hn::Load(df, some);
#endif
}
HWY_INLINE hn::Vec<FloatTag> decode_some_scales(Format scale, const std::uint8_t* scales,
                                                std::int64_t count) {
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto first = hn::FirstN(ScaleCodesTag(), static_cast<std::size_t>(count));
  return hn::IfThenElseZero(mask,
                            decode_scales(scale, hn::MaskedLoad(first, ScaleCodesTag(), scales)));
#else
  std::uint8_t some[kLanes] = {};
  if constexpr (kLanes > 1) std::copy_n(scales, count, some);
  return hn::IfThenElseZero(mask, decode_scales(scale, some));
#endif
}

/// Factors of columns [first, first + columns) of a tile over a span of k, as f32. Rows of B that
/// share scales share a row of `values`.
class SpanFactors {
 public:
  SpanFactors(const OperandMatrix& x, std::int64_t first, std::int64_t rows, std::int64_t begin,
              std::int64_t count, float* values)
      : block_rows_(recipe_traits(x.recipe).block_rows), first_(grid_row(first)), values_(values) {
    const RecipeTraits& t = recipe_traits(x.recipe);
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    ScaleRectangle r;
    r.row = first_;
    r.rows = grid_row(first + rows - 1) - first_ + 1;
    r.column = t.block_k == 0 ? 0 : begin / t.block_k;
    r.columns = t.block_k == 0 ? 1 : ceil_div(count, t.block_k);
    r.grid_rows = grid.rows;
    r.grid_columns = grid.columns;
    if (t.scale == Format::f32) {
      load<float>(x, r);
    } else {
      load<std::uint8_t>(x, r);
    }
  }

  const float* row(std::int64_t row) const {
    return values_ + (grid_row(row) - first_) * kFactorPitchOfSpan;
  }
  const ValueRange& range() const { return range_; }
  const float* values() const { return values_; }

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  /// Where the rows of 16 rows of B begin in `values`; those from `count` on repeat the last one.
  hn::Vec<hn::RebindToSigned<FloatTag>> rows_of_16(std::int64_t row, std::int64_t count) const {
    alignas(64) std::int32_t begin[16];
    for (int i = 0; i < 16; ++i) {
      const std::int64_t r = row + std::min<std::int64_t>(i, count - 1);
      begin[i] = static_cast<std::int32_t>((grid_row(r) - first_) * kFactorPitchOfSpan);
    }
    return hn::Load(hn::RebindToSigned<FloatTag>(), begin);
  }
#endif

 private:
  std::int64_t grid_row(std::int64_t row) const {
    return block_rows_ <= 1 ? row * block_rows_ : row / block_rows_;
  }

  template <class Scale>
  void load(const OperandMatrix& x, const ScaleRectangle& r) {
    const FloatTag df;
    const PlacedScales<const Scale> placed{static_cast<const Scale*>(x.scales), x.layout,
                                           x.scale_leading_stride};
    const Format scale = recipe_traits(x.recipe).scale;
    const std::int64_t whole = r.columns / kLanes * kLanes;
    RangeOfVectors range;
    for (std::int64_t i = 0; i < r.rows; ++i) {
      Scale gathered[kFactorPitchOfSpan];
      const Scale* from = gathered;
      ScaleRectangle line = r;
      line.row += i;
      line.rows = 1;
      if (x.layout == ScaleLayout::row_major) {
        from = placed.at(line.row, line.column);
      } else {
        gather_scales(placed, line, gathered, kFactorPitchOfSpan);
      }
      float* const out = values_ + i * kFactorPitchOfSpan;
      for (std::int64_t j = 0; j < whole; j += kLanes) {
        const auto factors = decode_scales(scale, from + j);
        range.include(factors);
        hn::StoreU(factors, df, out + j);
      }
      // Loads of a chunk's factors read up to a vector more.
      const auto last = decode_some_scales(scale, from + whole, r.columns - whole);
      range.include(last);
      hn::StoreU(last, df, out + whole);
    }
    range_ = range.range();
  }

  std::int64_t block_rows_;
  std::int64_t first_;
  float* values_;
  ValueRange range_;
};

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
