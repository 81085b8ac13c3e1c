// Block maxima and scales of runs of one row, for every SIMD target. numerics.md pins the order of
// operations; each f32 operation below is one step of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/scale.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstdint>

#include "core/packing.h"
#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/encode-inl.h"
#include "ops/quantize/cpu/steps.h"
#include "ops/quantize/exponent_rounding.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

using steps::MagnitudeBits;
using steps::NanRule;

// ---------------------------------------------------------------- block maxima

/// The bits of a magnitude as they are stored: 16 or 32 of them.
template <Format kDtype>
using RawBits = std::conditional_t<kDtype == Format::f32, std::uint32_t, std::uint16_t>;

/// Largest magnitude (raw bits) of `count` elements; NaN does not count with kIgnoreNan.
template <Format kDtype, bool kIgnoreNan>
HWY_INLINE RawBits<kDtype> largest_magnitude(const std::uint8_t* x, std::int64_t count) {
  using Raw = RawBits<kDtype>;
  constexpr auto kMask = static_cast<Raw>(Raw(~Raw{0}) >> 1);
  constexpr auto kInfinityCode = static_cast<Raw>(format_traits(kDtype).max_code + 1);
  Raw result = 0;
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<Raw, 32> d;
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
  result = hn::GetLane(hn::MaxOfLanes(d, largest));
#endif
  for (; i < count; ++i) {
    const auto magnitude = static_cast<Raw>(load_code<kDtype>(x, i) & kMask);
    if (!kIgnoreNan || magnitude <= kInfinityCode) result = std::max(result, magnitude);
  }
  return result;
}

/// `largest_magnitude` under a NaN rule; a NaN under `ignore` costs a second scan.
template <Format kDtype>
HWY_INLINE RawBits<kDtype> block_maximum(const std::uint8_t* x, std::int64_t count, NanRule rule) {
  const auto largest = largest_magnitude<kDtype, false>(x, count);
  if (rule == NanRule::poison || largest <= format_traits(kDtype).max_code + 1) return largest;
  return largest_magnitude<kDtype, true>(x, count);
}

#if HWY_TARGET != HWY_SCALAR

/// Vectors in which the maxima of several blocks are found together.
template <Format kDtype>
using MaximaTag = hn::CappedTag<RawBits<kDtype>, 32 / sizeof(RawBits<kDtype>)>;

/// Maxima of `kCount` consecutive blocks of magnitudes: lane i holds one of block i % kCount, over
/// a part of that block which kCount lanes share. With kCount lanes it is that of the whole block.
template <Format kDtype, int kBlock, int kCount>
HWY_INLINE hn::Vec<MaximaTag<kDtype>> merged_maxima(const std::uint8_t* x) {
  using Raw = RawBits<kDtype>;
  const MaximaTag<kDtype> d;
  constexpr int kLanes = hn::MaxLanes(d);
  if constexpr (kCount == 1) {
    const hn::Repartition<std::uint8_t, decltype(d)> d8;
    const auto mask = hn::Set(d, static_cast<Raw>(Raw(~Raw{0}) >> 1));
    auto largest = hn::And(hn::BitCast(d, hn::LoadU(d8, x)), mask);
    for (int i = kLanes; i < kBlock; i += kLanes) {
      const auto bits = hn::BitCast(d, hn::LoadU(d8, x + i * static_cast<int>(sizeof(Raw))));
      largest = hn::Max(largest, hn::And(bits, mask));
    }
    return largest;
  } else {
    constexpr int kHalf = kCount / 2;
    constexpr int kHalfBytes = kHalf * static_cast<int>(sizeof(Raw));
    const auto a = merged_maxima<kDtype, kBlock, kHalf>(x);
    const auto b = merged_maxima<kDtype, kBlock, kHalf>(x + kBlock * kHalfBytes);
    // Groups of kHalf lanes alternate between a and b; the two halves of either meet in Max.
    if constexpr (kHalfBytes < 16) {
      using Unit = hwy::UnsignedFromSize<kHalfBytes>;
      const hn::Repartition<Unit, decltype(d)> du;
      const auto unit_a = hn::BitCast(du, a);
      const auto unit_b = hn::BitCast(du, b);
      return hn::Max(hn::BitCast(d, hn::InterleaveLower(du, unit_a, unit_b)),
                     hn::BitCast(d, hn::InterleaveUpper(du, unit_a, unit_b)));
    } else {
      return hn::Max(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

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

/// Raw maxima of `count` blocks of kBlock elements (0: of `block`, where `left` elements are left
/// for the last ones).
template <Format kDtype, int kBlock>
HWY_INLINE void raw_maxima(const std::uint8_t* x, std::int64_t count, std::int64_t block,
                           std::int64_t left, NanRule rule, RawBits<kDtype>* raw) {
  constexpr int kSize = sizeof(RawBits<kDtype>);
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kBlock != 0) {
    const MaximaTag<kDtype> d;
    const hn::RebindToSigned<decltype(d)> di;
    constexpr int kLanes = hn::MaxLanes(d);
    const auto infinity =
        hn::Set(di, static_cast<hn::TFromD<decltype(di)>>(format_traits(kDtype).max_code + 1));
    // What does not fill a vector is found together with blocks before it, once more.
    for (; i < count && kLanes <= count; i += kLanes) {
      const std::int64_t first = std::min(i, count - kLanes);
      const auto maxima = merged_maxima<kDtype, kBlock, kLanes>(x + first * kBlock * kSize);
      if (rule == NanRule::ignore &&
          HWY_UNLIKELY(!hn::AllFalse(di, hn::Gt(hn::BitCast(di, maxima), infinity)))) {
        break;
      }
      hn::StoreU(maxima, d, raw + first);
    }
  }
#endif
  for (; i < count; ++i) {
    const std::int64_t begin = i * block;
    raw[i] = block_maximum<kDtype>(x + begin * kSize, std::min(block, left - begin), rule);
  }
}

/// With kBlock == 0 the last block may be short.
template <Format kDtype, int kBlock>
void block_maxima_of(const std::uint8_t* x, std::int64_t count, std::int64_t block, NanRule rule,
                     MagnitudeBits* maxima) {
  constexpr std::int64_t kAtOnce = 64;
  constexpr int kSize = sizeof(RawBits<kDtype>);
  const std::int64_t blocks = ceil_div(count, block);
  for (std::int64_t first = 0; first < blocks; first += kAtOnce) {
    RawBits<kDtype> raw[kAtOnce + steps::kArrayPadding] = {};
    const std::int64_t now = std::min(kAtOnce, blocks - first);
    const std::int64_t begin = first * block;
    raw_maxima<kDtype, kBlock>(x + begin * kSize, now, block, count - begin, rule, raw);
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
  } else if (block == 128 && count % 128 == 0) {
    block_maxima_of<kDtype, 128>(x, count, block, rule, maxima);
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

void mx_scales(Format element, MxScaleMode mode, const MagnitudeBits* maxima, std::int64_t count,
               std::uint8_t* bytes, float* factors) {
  const hn::ScalableTag<std::int32_t> di;
  const hn::RebindToFloat<decltype(di)> df;
  const hn::RebindToUnsigned<decltype(di)> du;
  const hn::Rebind<std::uint8_t, decltype(di)> d8;
  const auto rounding = hn::Set(du, quantize_detail::exponent_rounding(element, mode));
  const auto emax = hn::Set(di, format_traits(element).max_exponent);
  const auto infinity = hn::Set(di, static_cast<std::int32_t>(steps::kInfinity));
  const auto largest = hn::Set(di, static_cast<std::int32_t>(steps::kLargestFinite));
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
        hn::IfThenElse(hn::RebindMask(df, all_zero), hn::Set(df, steps::kZeroCodes), inverse), df,
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
  const auto infinity = hn::Set(di, static_cast<std::int32_t>(steps::kInfinity));
  const auto largest = hn::Set(di, static_cast<std::int32_t>(steps::kLargestFinite));
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
    hn::StoreU(hn::IfThenElse(hn::RebindMask(df, all_zero), hn::Set(df, steps::kZeroCodes), factor),
               df, factors + i);
  }
}

void fp8_scales(Format element, bool power_of_two, float amax_floor, const MagnitudeBits* maxima,
                std::int64_t count, float* scales, float* factors) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const auto largest = hn::Set(du, steps::kLargestFinite);
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

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(block_maxima);
HWY_EXPORT(mx_scales);
HWY_EXPORT(nvfp4_scales);
HWY_EXPORT(fp8_scales);

namespace steps {

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

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
