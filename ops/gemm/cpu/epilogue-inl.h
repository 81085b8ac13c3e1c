// From sums to D: alpha, tensor scales, bias, gate and beta * C in f64, then one rounding to D's
// dtype.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp.

#if defined(BLOCKSCALE_OPS_GEMM_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_EPILOGUE_INL_H_
#undef BLOCKSCALE_OPS_GEMM_EPILOGUE_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_EPILOGUE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "core/packing.h"
#include "ops/gemm/cpu/epilogue.h"
#include "ops/gemm/cpu/plan.h"
// These are toggled per target as this file is.
#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/encode-inl.h"
#include "ops/gemm/cpu/panels/microkernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

using HalfFloatTag = hn::Rebind<float, DoubleTag>;
inline constexpr int kDoubleLanes = static_cast<int>(hn::MaxLanes(DoubleTag()));

/// kTileColumns sums, alpha and the tensor scales applied one after the other.
inline void apply_factors(const Epilogue& e, double* sums) {
  const DoubleTag dd;
  const auto apply = [&](const TensorFactor& factor) HWY_ATTR {
    if (factor.value == 1.0) return;
    const auto value = hn::Set(dd, factor.value);
    for (std::int64_t i = 0; i < kTileColumns; i += kDoubleLanes) {
      const auto sum = hn::Load(dd, sums + i);
      hn::Store(factor.divides ? hn::Div(sum, value) : hn::Mul(sum, value), dd, sums + i);
    }
  };
  apply({e.alpha, false});
  apply(e.a_scale);
  apply(e.b_scale);
}

/// Adds factor * addend to kTileColumns sums.
inline void add_scaled(double factor, const float* addend, double* sums) {
  const DoubleTag dd;
  const auto f = hn::Set(dd, factor);
  for (std::int64_t i = 0; i < kTileColumns; i += kDoubleLanes) {
    const auto x = hn::PromoteTo(dd, hn::Load(HalfFloatTag(), addend + i));
    hn::Store(hn::Add(hn::Load(dd, sums + i), hn::Mul(f, x)), dd, sums + i);
  }
}

/// Multiplies kTileColumns sums, each by its factor.
inline void multiply(const float* factors, double* sums) {
  const DoubleTag dd;
  for (std::int64_t i = 0; i < kTileColumns; i += kDoubleLanes) {
    const auto x = hn::PromoteTo(dd, hn::Load(HalfFloatTag(), factors + i));
    hn::Store(hn::Mul(hn::Load(dd, sums + i), x), dd, sums + i);
  }
}

/// `x` rounded once, to nearest even, to a value of `F` (f16 or bf16), or beyond its largest one as
/// if the exponent range went on.
template <Format F>
HWY_INLINE hn::Vec<DoubleTag> round_to(hn::Vec<DoubleTag> x) {
  constexpr FormatTraits t = format_traits(F);
  constexpr int kDrop = 52 - t.mantissa_bits;
  constexpr int kMinExponent = 1 - t.bias;
  const DoubleTag dd;
  const hn::RebindToUnsigned<DoubleTag> du;
  const auto power = [&](int exponent) HWY_ATTR {
    return hn::BitCast(dd, hn::Set(du, static_cast<std::uint64_t>(exponent + 1023) << 52));
  };
  const auto bits = hn::BitCast(du, x);
  const auto is_odd = hn::And(hn::ShiftRight<kDrop>(bits), hn::Set(du, 1u));
  const auto half_minus_one = hn::Set(du, (std::uint64_t{1} << (kDrop - 1)) - 1);
  const auto up = hn::Add(bits, hn::Add(half_minus_one, is_odd));
  const auto normal = hn::BitCast(dd, hn::ShiftLeft<kDrop>(hn::ShiftRight<kDrop>(up)));
  // Below the normal range: adding 1.5 * 2^52 units of the last place rounds to that place.
  const auto magic = hn::Mul(power(kMinExponent - t.mantissa_bits + 52), hn::Set(dd, 1.5));
  const auto subnormal = hn::CopySign(hn::Sub(hn::Add(x, magic), magic), x);
  const auto is_subnormal = hn::Lt(hn::Abs(x), power(kMinExponent));
  const auto rounded = hn::IfThenElse(is_subnormal, subnormal, normal);
  return hn::IfThenElse(hn::IsNaN(x), x, rounded);
}

/// `x` rounded to f32, to nearest even; infinite beyond its range.
HWY_INLINE hn::Vec<HalfFloatTag> to_f32(hn::Vec<DoubleTag> x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // There DemoteTo saturates.
  alignas(16) double from[kDoubleLanes];
  alignas(16) float to[kDoubleLanes];
  hn::Store(x, DoubleTag(), from);
  for (int i = 0; i < kDoubleLanes; ++i) to[i] = static_cast<float>(from[i]);
  return hn::Load(HalfFloatTag(), to);
#else
  return hn::DemoteTo(HalfFloatTag(), x);
#endif
}

/// Stores kTileColumns numbers as `kDtype`.
template <Format kDtype>
HWY_INLINE void store_row(const float* values, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kTileColumns; ++i) {
    store_code<kDtype>(out, i, encode<kDtype>(values[i], Overflow::propagate));
  }
#else
  constexpr std::int64_t kSize = format_traits(kDtype).bits / 8;
  for (std::int64_t i = 0; i < kTileColumns; i += kLanes) {
    codes::store_values<kDtype>(FloatTag(), hn::Load(FloatTag(), values + i), out + i * kSize);
  }
#endif
}

/// Rounds kTileColumns sums to numbers of `kDtype` in `out`, each once.
template <Format kDtype>
void round_row(const double* sums, std::uint8_t* out) {
  alignas(64) float rounded[kTileColumns];
  for (std::int64_t i = 0; i < kTileColumns; i += kDoubleLanes) {
    auto sum = hn::Load(DoubleTag(), sums + i);
    if constexpr (kDtype != Format::f32) sum = round_to<kDtype>(sum);
    hn::Store(to_f32(sum), HalfFloatTag(), rounded + i);
  }
  // The 16-bit conversions are exact but for overflow and NaN.
  store_row<kDtype>(rounded, out);
}

/// kTileColumns sums of f32, in f64.
inline void widen(const float* from, double* to) {
  for (std::int64_t i = 0; i < kTileColumns; i += kDoubleLanes) {
    hn::Store(hn::PromoteTo(DoubleTag(), hn::Load(HalfFloatTag(), from + i)), DoubleTag(), to + i);
  }
}

/// kTileColumns sums of f32 as numbers of `kDtype`: times the factor, plus bias.
template <Format kDtype>
void round_sums(float factor, const float* sums, const float* bias, std::uint8_t* out) {
  const FloatTag df;
  alignas(64) float values[kTileColumns];
  for (std::int64_t i = 0; i < kTileColumns; i += kLanes) {
    const auto value =
        hn::MulAdd(hn::Load(df, sums + i), hn::Set(df, factor), hn::Load(df, bias + i));
    hn::Store(value, df, values + i);
  }
  store_row<kDtype>(values, out);
}

/// finish_row of sums of f32, with neither C nor gate and with Epilogue::factor. `bias` holds
/// kTileColumns.
inline void finish_row_in_f32(const Epilogue& e, std::int64_t columns, const float* sums,
                              const float* bias, std::uint8_t* d) {
  alignas(64) std::uint8_t row[kTileColumns * sizeof(float)];
  std::uint8_t* const out = columns == kTileColumns ? d : row;
  switch (e.d_dtype) {
    case Format::f16: round_sums<Format::f16>(e.factor, sums, bias, out); break;
    case Format::bf16: round_sums<Format::bf16>(e.factor, sums, bias, out); break;
    default: round_sums<Format::f32>(e.factor, sums, bias, out); break;
  }
  if (out == row) {
    std::memcpy(d, row, static_cast<std::size_t>(columns * format_traits(e.d_dtype).bits / 8));
  }
}

/// Finishes `columns` (at most kTileColumns) elements of a row. `sums` holds kTileColumns elements;
/// `c` (null: none) and `d` point at the row's first element, `bias` and `gate` at kTileColumns f32
/// (or null).
inline void finish_row(const Epilogue& e, std::int64_t columns, double* sums, const std::uint8_t* c,
                       const float* bias, const float* gate, std::uint8_t* d) {
  apply_factors(e, sums);
  if (bias != nullptr) add_scaled(1.0, bias, sums);
  if (gate != nullptr) multiply(gate, sums);
  if (c != nullptr) {
    alignas(64) float values[kTileColumns] = {};
    codes::decode_run(e.c_dtype, c, 0, columns, values);
    add_scaled(e.beta, values, sums);
  }
  alignas(64) std::uint8_t row[kTileColumns * sizeof(float)];
  switch (e.d_dtype) {
    case Format::f16: round_row<Format::f16>(sums, row); break;
    case Format::bf16: round_row<Format::bf16>(sums, row); break;
    default: round_row<Format::f32>(sums, row); break;
  }
  std::memcpy(d, row, static_cast<std::size_t>(columns * format_traits(e.d_dtype).bits / 8));
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
