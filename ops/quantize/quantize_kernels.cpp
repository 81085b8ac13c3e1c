// Block maxima, scales and codes of runs of one row, for every SIMD target. numerics.md pins the
// order of operations; each f32 operation below is one step of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/quantize_kernels.cpp"
#include "ops/simd_targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/packing.h"
#include "ops/quantize/decode-inl.h"
#include "ops/quantize/encode-inl.h"
#include "ops/quantize/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

using kernels::MagnitudeBits;
using kernels::NanRule;
using kernels::Scaling;

// ---------------------------------------------------------------- block maxima

/// The bits of a magnitude as they are stored: 16 or 32 of them.
template <Format kDtype>
using RawBits = std::conditional_t<kDtype == Format::f32, std::uint32_t, std::uint16_t>;

/// Largest lane of `v`.
template <class D>
HWY_INLINE hn::TFromD<D> largest_lane(D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    return largest_lane(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else
#endif
  {
    return hn::GetLane(hn::MaxOfLanes(d, v));
  }
}

/// Whether runs of a block may end in elements that fill no vector. `kBlock` is the block's size
/// where that is a compile-time constant (16 or 32), else 0.
template <int kBlock>
inline constexpr bool kHasTail = kBlock == 0 || HWY_TARGET == HWY_SCALAR;

/// Largest magnitude (raw bits) of `count` elements.
template <Format kDtype, bool kIgnoreNan, int kBlock>
HWY_INLINE RawBits<kDtype> largest_magnitude(const std::uint8_t* x, std::int64_t count) {
  using Raw = RawBits<kDtype>;
  constexpr auto kMask = static_cast<Raw>(Raw(~Raw{0}) >> 1);
  constexpr auto kInfinityCode = static_cast<Raw>(format_traits(kDtype).max_code + 1);
  Raw result = 0;
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<Raw, kBlock == 16 ? 16 : 32> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Repartition<std::uint8_t, decltype(d)> d8;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto mask = hn::Set(d, kMask);
  auto largest = hn::Zero(d);
  for (; i + kLanes <= count; i += kLanes) {
    const auto bits = hn::BitCast(d, hn::LoadU(d8, x + i * static_cast<int>(sizeof(Raw))));
    auto magnitude = hn::And(bits, mask);
    if constexpr (kIgnoreNan) {
      const auto is_nan = hn::Gt(hn::BitCast(di, magnitude),
                                 hn::Set(di, static_cast<hn::TFromD<decltype(di)>>(kInfinityCode)));
      magnitude = hn::IfThenZeroElse(hn::RebindMask(d, is_nan), magnitude);
    }
    largest = hn::Max(largest, magnitude);
  }
  result = largest_lane(d, largest);
#endif
  if constexpr (kHasTail<kBlock>) {
    for (; i < count; ++i) {
      const auto magnitude = static_cast<Raw>(load_code<kDtype>(x, i) & kMask);
      if (!kIgnoreNan || magnitude <= kInfinityCode) result = std::max(result, magnitude);
    }
  }
  return result;
}

/// `largest_magnitude` under a NaN rule; a NaN under `ignore` costs a second scan.
template <Format kDtype, int kBlock>
HWY_INLINE RawBits<kDtype> block_maximum(const std::uint8_t* x, std::int64_t count, NanRule rule) {
  const auto largest = largest_magnitude<kDtype, false, kBlock>(x, count);
  if (rule == NanRule::poison || largest <= format_traits(kDtype).max_code + 1) return largest;
  return largest_magnitude<kDtype, true, kBlock>(x, count);
}

/// maxima[i] = max(maxima[i], raw[i] as f32 bits). Both arrays have room for a whole vector more.
template <Format kDtype>
HWY_INLINE void fold_maxima(const RawBits<kDtype>* raw, std::int64_t count, MagnitudeBits* maxima) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  for (std::int64_t i = 0; i < count; i += hn::MaxLanes(df)) {
    const auto values = decode_lanes<kDtype>(df, reinterpret_cast<const std::uint8_t*>(raw + i));
    hn::StoreU(hn::Max(hn::BitCast(du, values), hn::LoadU(du, maxima + i)), du, maxima + i);
  }
#else
  for (std::int64_t i = 0; i < count; ++i) {
    maxima[i] = std::max(maxima[i], bit_cast<MagnitudeBits>(decode<kDtype>(raw[i])));
  }
#endif
}

/// With kBlock == 0 the last block may be short.
template <Format kDtype, int kBlock>
void block_maxima_of(const std::uint8_t* x, std::int64_t count, std::int64_t block, NanRule rule,
                     MagnitudeBits* maxima) {
  constexpr std::int64_t kAtOnce = 64;
  constexpr int kSize = sizeof(RawBits<kDtype>);
  const std::int64_t blocks = ceil_div(count, block);
  for (std::int64_t first = 0; first < blocks; first += kAtOnce) {
    RawBits<kDtype> raw[kAtOnce + kernels::kArrayPadding] = {};
    const std::int64_t now = std::min(kAtOnce, blocks - first);
    for (std::int64_t i = 0; i < now; ++i) {
      const std::int64_t begin = (first + i) * block;
      const std::int64_t length = kBlock != 0 ? kBlock : std::min(block, count - begin);
      raw[i] = block_maximum<kDtype, kBlock>(x + begin * kSize, length, rule);
    }
    fold_maxima<kDtype>(raw, now, maxima + first);
  }
}

template <Format kDtype>
void block_maxima_from(const std::uint8_t* x, std::int64_t count, std::int64_t block, NanRule rule,
                       MagnitudeBits* maxima) {
  if (block == 16 && count % 16 == 0) {
    block_maxima_of<kDtype, 16>(x, count, block, rule, maxima);
  } else if (block == 32 && count % 32 == 0) {
    block_maxima_of<kDtype, 32>(x, count, block, rule, maxima);
  } else {
    block_maxima_of<kDtype, 0>(x, count, block, rule, maxima);
  }
}

void block_maxima(Format dtype, const void* x, std::int64_t count, std::int64_t block, NanRule rule,
                  MagnitudeBits* maxima) {
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  switch (dtype) {
    case Format::f16: return block_maxima_from<Format::f16>(bytes, count, block, rule, maxima);
    case Format::bf16: return block_maxima_from<Format::bf16>(bytes, count, block, rule, maxima);
    default: return block_maxima_from<Format::f32>(bytes, count, block, rule, maxima);
  }
}

// ---------------------------------------------------------------- scales

/// What is added to the bits of an amax before its exponent is taken (numerics.md, MX modes).
/// ceil: carries into the exponent iff the mantissa exceeds that of the element's largest value.
inline std::uint32_t exponent_rounding(Format element, MxScaleMode mode) {
  const FormatTraits t = format_traits(element);
  switch (mode) {
    case MxScaleMode::floor: return 0;
    case MxScaleMode::ceil: return 0x007FFFFFu - (bit_cast<std::uint32_t>(t.max) & 0x007FFFFFu);
    case MxScaleMode::even: return 1u << (22 - t.mantissa_bits);
  }
  return 0;
}

void mx_scales(Format element, MxScaleMode mode, const MagnitudeBits* maxima, std::int64_t count,
               std::uint8_t* bytes, float* factors) {
  const hn::ScalableTag<std::int32_t> di;
  const hn::RebindToFloat<decltype(di)> df;
  const hn::RebindToUnsigned<decltype(di)> du;
  const hn::Rebind<std::uint8_t, decltype(di)> d8;
  const auto rounding = hn::Set(du, exponent_rounding(element, mode));
  const auto emax = hn::Set(di, format_traits(element).max_exponent);
  const auto infinity = hn::Set(di, static_cast<std::int32_t>(kernels::kInfinity));
  const auto largest = hn::Set(di, static_cast<std::int32_t>(kernels::kLargestFinite));
  const auto zero = hn::Zero(di);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(di))) {
    const auto amax = hn::BitCast(di, hn::LoadU(du, maxima + i));
    const auto is_nan = hn::Gt(amax, infinity);
    const auto finite = hn::BitCast(du, hn::Min(amax, largest));
    const auto field = hn::ShiftRight<23>(hn::Add(finite, rounding));
    // Byte e + 127. It is at most 255 - 2, so 2^-e is a normal number.
    const auto byte = hn::Max(hn::Sub(hn::BitCast(di, field), emax), zero);
    const auto stored = hn::IfThenElse(is_nan, hn::Set(di, 0xFF), byte);
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, stored)), d8, bytes + i);
    const auto inverse = hn::BitCast(df, hn::ShiftLeft<23>(hn::Sub(hn::Set(di, 254), byte)));
    const auto all_zero = hn::Or(is_nan, hn::Eq(amax, zero));
    hn::StoreU(
        hn::IfThenElse(hn::RebindMask(df, all_zero), hn::Set(df, kernels::kZeroCodes), inverse), df,
        factors + i);
  }
}

void nvfp4_scales(float tensor_scale, const MagnitudeBits* maxima, std::int64_t count,
                  std::uint8_t* bytes, float* factors) {
  constexpr FormatTraits kScale = format_traits(Format::ue4m3);
  const hn::ScalableTag<std::int32_t> di;
  const hn::RebindToFloat<decltype(di)> df;
  const hn::RebindToUnsigned<decltype(di)> du;
  const hn::Rebind<std::uint8_t, decltype(di)> d8;
  const auto infinity = hn::Set(di, static_cast<std::int32_t>(kernels::kInfinity));
  const auto largest = hn::Set(di, static_cast<std::int32_t>(kernels::kLargestFinite));
  const auto s_tensor = hn::Set(df, tensor_scale);
  const auto element_max = hn::Set(df, format_traits(Format::e2m1).max);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(di))) {
    const auto amax = hn::BitCast(di, hn::LoadU(du, maxima + i));
    const auto is_nan = hn::Gt(amax, infinity);
    const auto finite = hn::BitCast(df, hn::Min(amax, largest));
    const auto wanted = hn::Mul(hn::Div(finite, element_max), s_tensor);
    const auto code = encode_magnitude<Format::ue4m3>(df, wanted, kScale.max);
    const auto stored =
        hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, kScale.nan_code), code);
    hn::StoreU(hn::TruncateTo(d8, stored), d8, bytes + i);
    // S / s, at most the largest finite f32; s = 0 gives kZeroCodes below.
    const auto s_block = decode_small<Format::ue4m3>(df, code);
    const auto factor = hn::Min(hn::Div(s_tensor, s_block), hn::BitCast(df, largest));
    const auto all_zero = hn::Or(is_nan, hn::Eq(hn::BitCast(di, code), hn::Zero(di)));
    hn::StoreU(
        hn::IfThenElse(hn::RebindMask(df, all_zero), hn::Set(df, kernels::kZeroCodes), factor), df,
        factors + i);
  }
}

void fp8_scales(Format element, bool power_of_two, float amax_floor, const MagnitudeBits* maxima,
                std::int64_t count, float* scales, float* factors) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const auto largest = hn::Set(du, kernels::kLargestFinite);
  const auto floor = hn::Set(df, amax_floor);
  const auto element_max = hn::Set(df, format_traits(element).max);
  const auto smallest = hn::Set(df, 0x1p-126f);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    const auto finite = hn::BitCast(df, hn::Min(hn::LoadU(du, maxima + i), largest));
    const auto amax = hn::Max(finite, floor);
    auto scale = hn::Max(hn::Div(amax, element_max), smallest);
    scale = hn::IfThenElse(hn::Eq(amax, hn::Zero(df)), hn::Set(df, 1.0f), scale);
    auto factor = scale;
    if (power_of_two) {
      const auto up = hn::Add(hn::BitCast(du, scale), hn::Set(du, 0x007FFFFFu));
      const auto exponent = hn::And(up, hn::Set(du, 0x7F800000u));
      scale = hn::BitCast(df, exponent);
      factor = hn::BitCast(df, hn::Sub(hn::Set(du, 254u << 23), exponent));
    }
    hn::StoreU(scale, df, scales + i);
    hn::StoreU(factor, df, factors + i);
  }
}

// ---------------------------------------------------------------- codes

/// How an element meets its block's factor.
enum class Method : std::uint8_t {
  multiply,
  divide,
  reciprocal,  // divides by multiplying with 1 / s and correcting the quotient: for s >= 2^-90
};
inline constexpr float kSmallestForReciprocal = 0x1p-90f;

/// Code of one element by core's conversions: what vectors must agree with, and their tails.
template <Format kDtype, Format kElement, Method kMethod>
HWY_INLINE std::uint32_t encode_one(const std::uint8_t* x, std::int64_t index, float factor) {
  float value = decode<kDtype>(load_code<kDtype>(x, index));
  if (std::isnan(value)) return format_traits(kElement).nan_code;
  if (std::isinf(value)) value = std::copysign(bit_cast<float>(kernels::kLargestFinite), value);
  return encode<kElement>(kMethod == Method::multiply ? value * factor : value / factor);
}

#if HWY_TARGET != HWY_SCALAR

/// A block's factor, broadcast, in the forms that its method needs.
template <Format kElement, Method kMethod, class DF>
struct BlockFactor {
  hn::Vec<DF> factor;
  hn::Vec<DF> reciprocal;
  hn::Vec<hn::RebindToUnsigned<DF>> limit;  // on magnitudes, before scaling

  HWY_INLINE BlockFactor(DF df, float value) {
    const hn::RebindToUnsigned<DF> du;
    factor = hn::Set(df, value);
    limit = hn::Set(du, kernels::kLargestFinite);
    if constexpr (kMethod == Method::reciprocal) {
      reciprocal = hn::Set(df, 1.0f / value);
      // What saturates anyway must not make the quotient infinite, as inf - inf would follow.
      const float enough = value * static_cast<float>(4 << format_traits(kElement).max_exponent);
      limit = hn::Min(limit, hn::BitCast(du, hn::Set(df, enough)));
    }
  }

  /// The scaled value of each magnitude (bits of a non-negative f32, Inf and NaN included).
  HWY_INLINE hn::Vec<DF> apply(DF df, hn::Vec<hn::RebindToUnsigned<DF>> magnitude) const {
    const auto value = hn::BitCast(df, hn::Min(magnitude, limit));
    if constexpr (kMethod == Method::multiply) {
      return hn::Mul(value, factor);
    } else if constexpr (kMethod == Method::divide) {
      return hn::Div(value, factor);
    } else {
      const auto quotient = hn::Mul(value, reciprocal);
      const auto remainder = hn::NegMulAdd(quotient, factor, value);
      return hn::MulAdd(remainder, reciprocal, quotient);
    }
  }
};

/// Codes of Lanes(df) elements, in 32-bit lanes.
template <Format kDtype, Format kElement, class Factor, class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_lanes(DF df, const std::uint8_t* x,
                                                          const Factor& factor) {
  constexpr FormatTraits t = format_traits(kElement);
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, decode_lanes<kDtype>(df, x));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const auto sign = hn::ShiftRight<32 - t.bits>(hn::Xor(bits, magnitude));
  const auto scaled = factor.apply(df, magnitude);
  const auto code = hn::Or(encode_magnitude<kElement>(df, scaled, t.max), sign);
  if constexpr (t.nan_code == 0) {
    return code;  // blocks with a NaN never come here
  } else {
    const auto is_nan = hn::Gt(hn::BitCast(di, magnitude),
                               hn::Set(di, static_cast<std::int32_t>(kernels::kInfinity)));
    return hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, t.nan_code), code);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

/// Codes of one block.
template <Format kDtype, Format kElement, Method kMethod, int kBlock>
HWY_INLINE void encode_block(const std::uint8_t* x, std::int64_t count, float factor,
                             std::uint8_t* codes) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kSize = format_traits(kDtype).bits / 8;
  constexpr int kBits = format_traits(kElement).bits;
  const hn::CappedTag<float, kStep> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const BlockFactor<kElement, kMethod, decltype(df)> block_factor(df, factor);
  for (; i + kStep <= count; i += kStep) {
    const std::uint8_t* const from = x + i * kSize;
    store_step<kElement>(
        du,
        [&](int lane) HWY_ATTR {
          return encode_lanes<kDtype, kElement>(df, from + lane * kSize, block_factor);
        },
        codes + i * kBits / 8);
  }
#endif
  if constexpr (kHasTail<kBlock>) {
    for (; i < count; ++i) {
      store_code<kElement>(codes, i, encode_one<kDtype, kElement, kMethod>(x, i, factor));
    }
  }
}

template <Format kDtype, Format kElement, Scaling kScaling, int kBlock>
HWY_INLINE void encode_scaled_block(const std::uint8_t* x, std::int64_t count, float factor,
                                    std::uint8_t* codes) {
  if constexpr (kScaling == Scaling::multiply) {
    if (HWY_UNLIKELY(factor < 0)) {  // kZeroCodes
      std::memset(codes, 0, static_cast<std::size_t>(count * format_traits(kElement).bits / 8));
      return;
    }
    encode_block<kDtype, kElement, Method::multiply, kBlock>(x, count, factor, codes);
  } else {
#if HWY_TARGET != HWY_SCALAR && HWY_NATIVE_FMA
    if (HWY_LIKELY(factor >= kSmallestForReciprocal)) {
      encode_block<kDtype, kElement, Method::reciprocal, kBlock>(x, count, factor, codes);
      return;
    }
#endif
    encode_block<kDtype, kElement, Method::divide, kBlock>(x, count, factor, codes);
  }
}

template <Format kDtype, Format kElement, Scaling kScaling, int kBlock>
void encode_blocks_sized(const std::uint8_t* x, std::int64_t count, std::int64_t block,
                         const float* factors, std::uint8_t* codes) {
  constexpr int kSize = format_traits(kDtype).bits / 8;
  constexpr int kBits = format_traits(kElement).bits;
  for (std::int64_t i = 0; i * block < count; ++i) {
    const std::int64_t begin = i * block;
    const std::int64_t length = kBlock != 0 ? kBlock : std::min(block, count - begin);
    encode_scaled_block<kDtype, kElement, kScaling, kBlock>(x + begin * kSize, length, factors[i],
                                                            codes + begin * kBits / 8);
  }
}

template <Format kDtype, Format kElement, Scaling kScaling>
void encode_blocks_of(const std::uint8_t* x, std::int64_t count, std::int64_t block,
                      const float* factors, std::uint8_t* codes) {
  if (block == 16 && count % 16 == 0) {
    encode_blocks_sized<kDtype, kElement, kScaling, 16>(x, count, block, factors, codes);
  } else if (block == 32 && count % 32 == 0) {
    encode_blocks_sized<kDtype, kElement, kScaling, 32>(x, count, block, factors, codes);
  } else {
    encode_blocks_sized<kDtype, kElement, kScaling, 0>(x, count, block, factors, codes);
  }
}

template <Format kDtype>
void encode_blocks_from(Format element, Scaling scaling, const std::uint8_t* x, std::int64_t count,
                        std::int64_t block, const float* factors, std::uint8_t* codes) {
  constexpr Scaling kMultiply = Scaling::multiply;
  constexpr Scaling kDivide = Scaling::divide;
  if (scaling == kDivide) {
    if (element == Format::e5m2) {
      return encode_blocks_of<kDtype, Format::e5m2, kDivide>(x, count, block, factors, codes);
    }
    return encode_blocks_of<kDtype, Format::e4m3, kDivide>(x, count, block, factors, codes);
  }
  switch (element) {
    case Format::e2m1:
      return encode_blocks_of<kDtype, Format::e2m1, kMultiply>(x, count, block, factors, codes);
    case Format::e2m3:
      return encode_blocks_of<kDtype, Format::e2m3, kMultiply>(x, count, block, factors, codes);
    case Format::e3m2:
      return encode_blocks_of<kDtype, Format::e3m2, kMultiply>(x, count, block, factors, codes);
    case Format::e5m2:
      return encode_blocks_of<kDtype, Format::e5m2, kMultiply>(x, count, block, factors, codes);
    default:
      return encode_blocks_of<kDtype, Format::e4m3, kMultiply>(x, count, block, factors, codes);
  }
}

void encode_blocks(Format dtype, Format element, Scaling scaling, const void* x, std::int64_t count,
                   std::int64_t block, const float* factors, std::uint8_t* codes) {
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  switch (dtype) {
    case Format::f16:
      return encode_blocks_from<Format::f16>(element, scaling, bytes, count, block, factors, codes);
    case Format::bf16:
      return encode_blocks_from<Format::bf16>(element, scaling, bytes, count, block, factors,
                                              codes);
    default:
      return encode_blocks_from<Format::f32>(element, scaling, bytes, count, block, factors, codes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(block_maxima);
HWY_EXPORT(mx_scales);
HWY_EXPORT(nvfp4_scales);
HWY_EXPORT(fp8_scales);
HWY_EXPORT(encode_blocks);

namespace kernels {

void block_maxima(Format dtype, const void* x, std::int64_t count, std::int64_t block, NanRule rule,
                  MagnitudeBits* maxima) {
  HWY_DYNAMIC_DISPATCH(block_maxima)(dtype, x, count, block, rule, maxima);
}

void mx_scales(Format element, MxScaleMode mode, const MagnitudeBits* maxima, std::int64_t count,
               std::uint8_t* bytes, float* factors) {
  HWY_DYNAMIC_DISPATCH(mx_scales)(element, mode, maxima, count, bytes, factors);
}

void nvfp4_scales(float tensor_scale, const MagnitudeBits* maxima, std::int64_t count,
                  std::uint8_t* bytes, float* factors) {
  HWY_DYNAMIC_DISPATCH(nvfp4_scales)(tensor_scale, maxima, count, bytes, factors);
}

void fp8_scales(Format element, bool power_of_two, float amax_floor, const MagnitudeBits* maxima,
                std::int64_t count, float* scales, float* factors) {
  HWY_DYNAMIC_DISPATCH(fp8_scales)
  (element, power_of_two, amax_floor, maxima, count, scales, factors);
}

void encode_blocks(Format dtype, Format element, Scaling scaling, const void* x, std::int64_t count,
                   std::int64_t block, const float* factors, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(encode_blocks)(dtype, element, scaling, x, count, block, factors, codes);
}

}  // namespace kernels
}  // namespace blockscale

#endif  // HWY_ONCE
