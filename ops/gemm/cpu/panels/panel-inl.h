// Operands as the microkernel reads them: decoded to f32, scales applied, in slabs of k.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp.

#if defined(BLOCKSCALE_OPS_GEMM_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_PANEL_INL_H_
#undef BLOCKSCALE_OPS_GEMM_PANEL_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_PANEL_INL_H_
#endif

#include <hwy/cache_control.h>
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
#include "ops/gemm/cpu/panels/microkernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

/// The range of many vectors of values.
class RangeOfVectors {
 public:
  HWY_INLINE RangeOfVectors()
      : largest_(hn::Zero(UnsignedTag())),
        smallest_minus_one_(hn::Set(UnsignedTag(), ValueRange::kNone)) {}

  HWY_INLINE void include(hn::Vec<FloatTag> values) {
    const UnsignedTag du;
    const auto magnitude = hn::And(hn::BitCast(du, values), hn::Set(du, 0x7FFFFFFFu));
    largest_ = hn::Max(largest_, magnitude);
    smallest_minus_one_ = hn::Min(smallest_minus_one_, hn::Sub(magnitude, hn::Set(du, 1u)));
  }
  HWY_INLINE ValueRange range() const {
    const UnsignedTag du;
    return {hn::GetLane(hn::MaxOfLanes(du, largest_)),
            hn::GetLane(hn::MinOfLanes(du, smallest_minus_one_))};
  }

 private:
  using UnsignedTag = hn::RebindToUnsigned<FloatTag>;
  hn::Vec<UnsignedTag> largest_;
  hn::Vec<UnsignedTag> smallest_minus_one_;
};

/// Rows that are decoded together.
inline constexpr std::int64_t kMaxDecodedRows = 32;
static_assert(kMaxDecodedRows >= kPanelColumns);

/// Scales of a slab of such rows as f32, kFactorPitch from row to row.
inline constexpr std::int64_t kMinBlock = 16;  // of any recipe
inline constexpr std::int64_t kFactorPitch = kSlab / kMinBlock + steps::kArrayPadding;

template <class Scale>
void load_factors(const OperandMatrix& x, const ScaleRectangle& rectangle, float* factors) {
  Scale scales[kMaxDecodedRows * kFactorPitch] = {};
  gather_scales(PlacedScales<const Scale>{static_cast<const Scale*>(x.scales), x.layout,
                                          x.scale_leading_stride},
                rectangle, scales, kFactorPitch);
  for (std::int64_t i = 0; i < rectangle.rows; ++i) {
    steps::scale_factors(recipe_traits(x.recipe).scale, scales + i * kFactorPitch,
                         rectangle.columns, 1.0f, TensorScaleSense::multiplier,
                         factors + i * kFactorPitch);
  }
}

/// Values of elements [begin, begin + count) of a packed row of k codes of `F`, where element
/// begin + i has factor factors[i / block]. kLanes divides `block`.
template <Format F>
void decode_scaled(const std::uint8_t* row, [[maybe_unused]] std::int64_t k, std::int64_t begin,
                   std::int64_t count, const float* factors, std::int64_t block, float* out) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kBits = format_traits(F).bits;
  // A load of 6-bit codes reads 16 bytes, which must lie in the row.
  constexpr std::int64_t kNeeded = kBits == 6 ? 24 : kLanes;
  const FloatTag df;
  const std::uint8_t* const first = row + begin * kBits / 8;
  const std::int64_t whole = std::min(count - count % kLanes, k - begin - kNeeded + 1);
  for (const float* factor = factors; i < whole; ++factor) {
    const auto f = hn::Set(df, *factor);
    const std::int64_t end = std::min(whole, i + block);
    for (; i < end; i += kLanes) {
      hn::StoreU(hn::Mul(codes::decode_lanes<F>(df, first + i * kBits / 8), f), df, out + i);
    }
  }
#endif
  codes::decode_run<F>(row, begin + i, count - i, out + i);
  for (; i < count; ++i) out[i] *= factors[i / block];
}

inline void decode_scaled(Format element, const std::uint8_t* row, std::int64_t k,
                          std::int64_t begin, std::int64_t count, const float* factors,
                          std::int64_t block, float* out) {
  const auto decode_as = [&]<Format F>() HWY_ATTR {
    decode_scaled<F>(row, k, begin, count, factors, block, out);
  };
  switch (element) {
    case Format::e2m1: return decode_as.template operator()<Format::e2m1>();
    case Format::e2m3: return decode_as.template operator()<Format::e2m3>();
    case Format::e3m2: return decode_as.template operator()<Format::e3m2>();
    case Format::e4m3: return decode_as.template operator()<Format::e4m3>();
    case Format::e5m2: return decode_as.template operator()<Format::e5m2>();
    default: return;  // scales come with the five above only
  }
}

/// Values of elements [begin, begin + count) of rows [first, first + rows) of `x`, kSlab apart.
/// `begin` is a multiple of kSlab, `count` at most kSlab and `rows` at most kMaxDecodedRows. The
/// rest of the last vector of each row becomes zero.
inline void decode_rows(const OperandMatrix& x, std::int64_t first, std::int64_t rows,
                        std::int64_t begin, std::int64_t count, float* out) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  const auto grid_row = [&](std::int64_t row) {
    return t.block_rows == 0 ? 0 : row / t.block_rows;
  };
  const std::int64_t block = t.block_k == 0 ? kSlab : t.block_k;
  float factors[kMaxDecodedRows * kFactorPitch];
  if (t.family != Family::plain) {
    ScaleRectangle rectangle;
    rectangle.row = grid_row(first);
    rectangle.rows = grid_row(first + rows - 1) - rectangle.row + 1;
    rectangle.column = t.block_k == 0 ? 0 : begin / block;
    rectangle.columns = ceil_div(count, block);
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    rectangle.grid_rows = grid.rows;
    rectangle.grid_columns = grid.columns;
    if (t.scale == Format::f32) {
      load_factors<float>(x, rectangle, factors);
    } else {
      load_factors<std::uint8_t>(x, rectangle, factors);
    }
  }
  const std::int64_t padded = ceil_div(count, kLanes) * kLanes;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* const values = x.values + (first + r) * x.value_row_stride;
    float* const row = out + r * kSlab;
    if (t.family == Family::plain) {
      codes::decode_run(t.element, values, begin, count, row);
    } else {
      const float* const row_factors =
          factors + (grid_row(first + r) - grid_row(first)) * kFactorPitch;
      decode_scaled(t.element, values, x.k, begin, count, row_factors, block, row);
    }
    std::fill(row + count, row + padded, 0.0f);
  }
}

/// The range of `count` values, padded as decode_rows does.
inline ValueRange range_of_row(const float* values, std::int64_t count) {
  RangeOfVectors range;
  for (std::int64_t i = 0; i < count; i += kLanes) range.include(hn::Load(FloatTag(), values + i));
  return range.range();
}

#if HWY_TARGET != HWY_SCALAR
/// Transposes the 4 x 4 blocks that four rows hold in each 128 bits: block b of out[i] becomes
/// element 4 b + i of each row.
HWY_INLINE void transpose_in_blocks(hn::Vec<FloatTag> r0, hn::Vec<FloatTag> r1,
                                    hn::Vec<FloatTag> r2, hn::Vec<FloatTag> r3,
                                    hn::Vec<FloatTag> out[4]) {
  const FloatTag df;
  const hn::RepartitionToWide<FloatTag> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(df, r0, r1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(df, r2, r3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(df, r0, r1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(df, r2, r3));
  out[0] = hn::BitCast(df, hn::InterleaveLower(dw, low01, low23));
  out[1] = hn::BitCast(df, hn::InterleaveUpper(dw, low01, low23));
  out[2] = hn::BitCast(df, hn::InterleaveLower(dw, high01, high23));
  out[3] = hn::BitCast(df, hn::InterleaveUpper(dw, high01, high23));
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// Transposes 16 x 16 values.
HWY_INLINE void transpose_16(const hn::Vec<FloatTag> in[16], hn::Vec<FloatTag> out[16]) {
  hn::Vec<FloatTag> t[4][4];
  HWY_UNROLL(4)
  for (int g = 0; g < 4; ++g) {
    transpose_in_blocks(in[4 * g], in[4 * g + 1], in[4 * g + 2], in[4 * g + 3], t[g]);
  }
  // Block b of t[g][i] holds rows 4 g .. 4 g + 3 of value 4 b + i.
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const __m512 even01 = _mm512_shuffle_f32x4(t[0][i].raw, t[1][i].raw, 0x88);
    const __m512 even23 = _mm512_shuffle_f32x4(t[2][i].raw, t[3][i].raw, 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(t[0][i].raw, t[1][i].raw, 0xDD);
    const __m512 odd23 = _mm512_shuffle_f32x4(t[2][i].raw, t[3][i].raw, 0xDD);
    out[i] = hn::Vec<FloatTag>{_mm512_shuffle_f32x4(even01, even23, 0x88)};
    out[i + 4] = hn::Vec<FloatTag>{_mm512_shuffle_f32x4(odd01, odd23, 0x88)};
    out[i + 8] = hn::Vec<FloatTag>{_mm512_shuffle_f32x4(even01, even23, 0xDD)};
    out[i + 12] = hn::Vec<FloatTag>{_mm512_shuffle_f32x4(odd01, odd23, 0xDD)};
  }
}
#endif

/// Transposes kLanes rows (kSlab apart) x kLanes values into vectors that are kPanelColumns apart.
HWY_INLINE void transpose(const float* rows, float* out, RangeOfVectors& range) {
  const FloatTag df;
#if HWY_TARGET == HWY_SCALAR
  const auto value = hn::Load(df, rows);
  range.include(value);
  hn::Store(value, df, out);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  hn::Vec<FloatTag> in[16];
  hn::Vec<FloatTag> transposed[16];
  HWY_UNROLL(16)
  for (int r = 0; r < 16; ++r) {
    in[r] = hn::Load(df, rows + r * kSlab);
    range.include(in[r]);
  }
  transpose_16(in, transposed);
  HWY_UNROLL(16)
  for (int i = 0; i < 16; ++i) hn::Store(transposed[i], df, out + i * kPanelColumns);
#else
  constexpr int kGroups = kLanes / 4;
  hn::Vec<FloatTag> t[kGroups][4];
  HWY_UNROLL(kGroups)
  for (int g = 0; g < kGroups; ++g) {
    const float* const row = rows + 4 * g * kSlab;
    const auto r0 = hn::Load(df, row);
    const auto r1 = hn::Load(df, row + kSlab);
    const auto r2 = hn::Load(df, row + 2 * kSlab);
    const auto r3 = hn::Load(df, row + 3 * kSlab);
    range.include(r0);
    range.include(r1);
    range.include(r2);
    range.include(r3);
    transpose_in_blocks(r0, r1, r2, r3, t[g]);
  }
  // Block b of t[g][i] holds rows 4 g .. 4 g + 3 of value 4 b + i.
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    float* const to = out + i * kPanelColumns;
#if HWY_TARGET == HWY_AVX2
    hn::Store(hn::ConcatLowerLower(df, t[1][i], t[0][i]), df, to);
    hn::Store(hn::ConcatUpperUpper(df, t[1][i], t[0][i]), df, to + 4 * kPanelColumns);
#else
    static_assert(kLanes == 4);
    hn::Store(t[0][i], df, to);
#endif
  }
#endif
}

/// Asks for the codes of the slab from `begin` on of row `row`. A slab is few bytes of each row and
/// rows lie far apart, so hardware prefetchers miss it (M = 1 gains a third). Forced inline: g++
/// takes a call that only prefetches for one without effect and drops it.
HWY_INLINE void prefetch_slab(const OperandMatrix& x, std::int64_t row, std::int64_t begin) {
  constexpr std::int64_t kCacheLine = 64;  // bytes
  if (begin >= x.k) return;
  const std::uint8_t* const values = x.values + row * x.value_row_stride;
  const std::int64_t end = row_bytes(x.recipe, std::min(begin + kSlab, x.k));
  for (std::int64_t i = row_bytes(x.recipe, begin); i < end; i += kCacheLine) {
    hwy::Prefetch(values + i);
  }
}

/// Decodes `columns` (at most kPanelColumns) rows of B from `first` on, for k in
/// [begin, begin + depth), into a panel; missing columns become zero. `rows` is scratch for
/// kPanelColumns x kSlab values.
inline ValueRange pack_panel(const OperandMatrix& x, std::int64_t first, std::int64_t columns,
                             std::int64_t begin, std::int64_t depth, float* rows, float* panel) {
  const std::int64_t padded = ceil_div(depth, kLanes) * kLanes;
  for (std::int64_t c = 0; c < columns; ++c) prefetch_slab(x, first + c, begin + kSlab);
  decode_rows(x, first, columns, begin, depth, rows);
  for (std::int64_t c = columns; c < kPanelColumns; ++c) {
    std::fill_n(rows + c * kSlab, padded, 0.0f);
  }
  RangeOfVectors range;
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    for (int v = 0; v < kPanelVectors; ++v) {
      transpose(rows + v * kLanes * kSlab + i, panel + i * kPanelColumns + v * kLanes, range);
    }
  }
  return range.range();
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
