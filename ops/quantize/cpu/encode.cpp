// Codes of runs of one row, for every SIMD target. numerics.md pins the order of operations; each
// f32 operation below is one step of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/encode.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/packing.h"
#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/encode-inl.h"
#include "ops/quantize/cpu/steps.h"
// This is toggled per target as those of ops/common/simd are.
#include "ops/quantize/cpu/encode_words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

using steps::Scaling;

/// How an element meets its block's factor.
enum class Method : std::uint8_t {
  multiply,
  divide,
  reciprocal,  // divides by multiplying with 1 / s and correcting the quotient
};
/// From this scale on `reciprocal` is exact: the remainder of a quotient q that does not round to 0
/// is a multiple of ulp(q) ulp(s), which must not be below the smallest f32, 2^-149.
template <Format kElement>
inline constexpr float kSmallestForReciprocal = kElement == Format::e5m2 ? 0x1p-80f : 0x1p-90f;

/// Code of one element by core's conversions: what vectors must agree with, and their tails.
template <Format kDtype, Format kElement, Method kMethod>
HWY_INLINE std::uint32_t encode_one(const std::uint8_t* x, std::int64_t index, float factor) {
  float value = decode<kDtype>(load_code<kDtype>(x, index));
  if (std::isnan(value)) return format_traits(kElement).nan_code;
  if (std::isinf(value)) value = std::copysign(bit_cast<float>(steps::kLargestFinite), value);
  return encode<kElement>(kMethod == Method::multiply ? value * factor : value / factor);
}

#if HWY_TARGET != HWY_SCALAR

/// The factor of each lane, in the forms that its method needs.
template <Format kElement, Method kMethod, class DF>
struct BlockFactor {
  hn::Vec<DF> factor;
  hn::Vec<DF> reciprocal;
  hn::Vec<hn::RebindToUnsigned<DF>> limit;  // on magnitudes, before scaling

  HWY_INLINE BlockFactor(DF df, hn::Vec<DF> factors) {
    const hn::RebindToUnsigned<DF> du;
    factor = factors;
    limit = hn::Set(du, steps::kLargestFinite);
    if constexpr (kMethod == Method::reciprocal) {
      reciprocal = hn::Div(hn::Set(df, 1.0f), factors);
      // What saturates anyway must not make the quotient infinite, as inf - inf would follow.
      const auto enough = static_cast<float>(4 << format_traits(kElement).max_exponent);
      limit = hn::Min(limit, hn::BitCast(du, hn::Mul(factors, hn::Set(df, enough))));
    }
  }

  /// The scaled value of finite magnitudes (bits of non-negative f32).
  HWY_INLINE hn::Vec<DF> apply_finite(DF df, hn::Vec<hn::RebindToUnsigned<DF>> magnitude) const {
    if constexpr (kMethod == Method::multiply) {
      return hn::Mul(hn::BitCast(df, magnitude), factor);
    } else {
      return apply(df, magnitude);
    }
  }

  /// The scaled value of any magnitudes; Inf counts as the largest finite one.
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
                               hn::Set(di, static_cast<std::int32_t>(steps::kInfinity)));
    return hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, t.nan_code), code);
  }
}

/// Bits of `yes` where those of `mask` are set, else of `no`.
template <class V>
HWY_INLINE V select_bits(V mask, V yes, V no) {
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
}

/// Elements that `encode_bf16_pairs` takes at once.
template <class DF>
inline constexpr std::int64_t kPairs = 2 * static_cast<std::int64_t>(hn::MaxLanes(DF()));

/// Codes of kPairs bf16 elements, all finite. Each 32-bit lane holds two of them, of which the even
/// one's code ends up in the lane's low `kUnit` bits and the odd one's in those above; no widening,
/// and one narrowing for all. Returns false, having stored nothing, if one is Inf or NaN.
template <Format kElement, class Factor, class DF>
HWY_INLINE bool encode_bf16_pairs(DF df, const std::uint8_t* x, const Factor& factor,
                                  std::uint8_t* codes) {
  constexpr FormatTraits t = format_traits(kElement);
  constexpr int kUnit = t.bits;
  constexpr std::uint32_t kMagnitude = (1u << (t.bits - 1)) - 1;
  constexpr std::uint32_t kSign = 1u << (t.bits - 1);
  const hn::RebindToUnsigned<DF> du;
  const hn::Repartition<std::uint8_t, DF> d8;
  const hn::Repartition<std::int16_t, DF> d16;
  const auto pairs = hn::BitCast(du, hn::LoadU(d8, x));
  const auto magnitudes = hn::BitCast(d16, hn::And(pairs, hn::Set(du, 0x7FFF7FFFu)));
  const auto special = hn::Gt(magnitudes, hn::Set(d16, std::int16_t{0x7F7F}));
  if (HWY_UNLIKELY(!hn::AllFalse(d16, special))) return false;

  const auto upper = hn::Set(du, 0x7FFF0000u);
  const auto even = factor.apply_finite(df, hn::And(hn::ShiftLeft<16>(pairs), upper));
  const auto odd = factor.apply_finite(df, hn::And(pairs, upper));
  const auto even_code = encode_low_bits<kElement>(df, even, t.max);
  const auto odd_code = encode_low_bits<kElement>(df, odd, t.max);
  const auto both = select_bits(hn::Set(du, kMagnitude), even_code, hn::ShiftLeft<kUnit>(odd_code));
  const auto signs = select_bits(hn::Set(du, kSign), hn::ShiftRight<16 - t.bits>(pairs),
                                 hn::ShiftRight<32 - t.bits - kUnit>(pairs));
  const auto packed = select_bits(hn::Set(du, kMagnitude | kMagnitude << kUnit), both, signs);
  if constexpr (kUnit == 4) {
    const hn::Rebind<std::uint8_t, DF> narrow;
    hn::StoreU(hn::TruncateTo(narrow, packed), narrow, codes);
  } else if constexpr (t.bits == 8) {
    const hn::Rebind<std::uint16_t, DF> narrow;
    const hn::Repartition<std::uint8_t, decltype(narrow)> bytes;
    hn::StoreU(hn::BitCast(bytes, hn::TruncateTo(narrow, packed)), bytes, codes);
  } else {
    const hn::Rebind<std::uint16_t, DF> narrow;
    store_packed_12bit(narrow, hn::TruncateTo(narrow, packed), codes);
  }
  return true;
}

/// Whether elements go through `encode_bf16_pairs`; 6-bit codes are packed 16 at a time.
template <Format kDtype, Format kElement, class DF>
inline constexpr bool kUsesPairs =
    kDtype == Format::bf16 && (format_traits(kElement).bits != 6 || kPairs<DF> >= 16);

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
  const BlockFactor<kElement, kMethod, decltype(df)> block_factor(df, hn::Set(df, factor));
  if constexpr (kUsesPairs<kDtype, kElement, decltype(df)>) {
    constexpr std::int64_t kPairStep = kPairs<decltype(df)>;
    for (; i + kPairStep <= count; i += kPairStep) {
      if (encode_bf16_pairs<kElement>(df, x + i * kSize, block_factor, codes + i * kBits / 8)) {
        continue;
      }
      for (std::int64_t j = i; j < i + kPairStep; ++j) {
        store_code<kElement>(codes, j, encode_one<kDtype, kElement, kMethod>(x, j, factor));
      }
    }
  }
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
    if (HWY_LIKELY(factor >= kSmallestForReciprocal<kElement>)) {
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

/// Any elements, factors and lengths.
template <Format kDtype>
void encode_any_blocks(Format element, Scaling scaling, const std::uint8_t* x, std::int64_t count,
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

template <Format kDtype>
void encode_blocks_from(Format element, Scaling scaling, const std::uint8_t* x, std::int64_t count,
                        std::int64_t block, const float* factors, std::uint8_t* codes,
                        [[maybe_unused]] std::int64_t ahead) {
#if HWY_TARGET == HWY_AVX3
  constexpr std::int64_t kSize = format_traits(kDtype).bits / 8;
  const EncodeRun run{element, x, count, block, factors, codes, ahead};
  for (std::int64_t i = 0;;) {
    i = encode_words<kDtype>(run, scaling, i);
    if (i >= count) return;
    // Up to the end of a block.
    const std::int64_t most =
        block < kWordGroup ? kWordGroup / block * block : std::min(kWordGroup, block - i % block);
    const std::int64_t now = std::min(most, count - i);
    encode_any_blocks<kDtype>(element, scaling, x + i * kSize, now, std::min(block, now),
                              factors + i / block, codes + i * format_traits(element).bits / 8);
    i += now;
  }
#else
  encode_any_blocks<kDtype>(element, scaling, x, count, block, factors, codes);
#endif
}

void encode_blocks(Format dtype, Format element, Scaling scaling, const void* x, std::int64_t count,
                   std::int64_t block, const float* factors, std::uint8_t* codes,
                   std::int64_t ahead) {
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  switch (dtype) {
    case Format::f16:
      return encode_blocks_from<Format::f16>(element, scaling, bytes, count, block, factors, codes,
                                             ahead);
    case Format::bf16:
      return encode_blocks_from<Format::bf16>(element, scaling, bytes, count, block, factors, codes,
                                              ahead);
    default:
      return encode_blocks_from<Format::f32>(element, scaling, bytes, count, block, factors, codes,
                                             ahead);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(encode_blocks);

namespace steps {

void encode_blocks(Format dtype, Format element, Scaling scaling, const void* x, std::int64_t count,
                   std::int64_t block, const float* factors, std::uint8_t* codes,
                   std::int64_t ahead) {
  HWY_DYNAMIC_DISPATCH(encode_blocks)
  (dtype, element, scaling, x, count, block, factors, codes, ahead);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
