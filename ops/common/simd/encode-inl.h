// f32 values to codes, one vector at a time, and how codes are packed. Included once per SIMD
// target, as decode-inl.h. Equal to core's `encode` bit for bit.

#if defined(BLOCKSCALE_OPS_QUANTIZE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_ENCODE_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_ENCODE_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_ENCODE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "core/format.h"
#include "ops/common/simd/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

/// Whether runs of a block may end in elements that fill no vector. `kBlock` is the block's size
/// where that is a compile-time constant (16 or 32), else 0.
template <int kBlock>
inline constexpr bool kHasTail = kBlock == 0 || HWY_TARGET == HWY_SCALAR;

/// Code of non-negative `y` (infinity included, NaN not) in the low bits of each lane, nearest
/// even; the bits above the format's magnitude are arbitrary. Values above `limit` count as
/// `limit`: the format's largest value saturates; the power of two above it gives the code above,
/// which is infinity where the format has one. For formats of at most 16 bits.
template <Format F, class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_low_bits(DF df, hn::Vec<DF> y, float limit) {
  constexpr FormatTraits t = format_traits(F);
  const hn::RebindToUnsigned<DF> du;
  if constexpr (t.exponent_bits == 2 && t.bias == 1) {
    // Codes as a function of y are concave and linear between powers of two, so they are the least
    // of three lines. Added to 2^23, each is rounded to an integer once; rounding is monotone.
    constexpr float kOne = 0x1p23f;
    constexpr auto kSlope = static_cast<float>(1 << t.mantissa_bits);
    const auto steep = hn::MulAdd(y, hn::Set(df, kSlope), hn::Set(df, kOne));
    const auto middle = hn::MulAdd(y, hn::Set(df, kSlope / 2), hn::Set(df, kOne + kSlope));
    const auto flat = hn::MulAdd(y, hn::Set(df, kSlope / 4), hn::Set(df, kOne + 2 * kSlope));
    const auto cap = hn::Set(df, kOne + static_cast<float>(t.max_code));
    return hn::BitCast(du, hn::Min(hn::Min(steep, middle), hn::Min(flat, cap)));
  } else {
    // y + 2^(exponent + 23 - mantissa bits) makes the addition round at the format's last place;
    // the exponent is at least that of the subnormals, so those need no case of their own.
    constexpr int kDropped = 23 - t.mantissa_bits;
    const auto lowest = hn::Set(du, static_cast<std::uint32_t>(128 - t.bias) << 23);
    const auto clamped = hn::Min(y, hn::Set(df, limit));
    const auto field = hn::And(hn::BitCast(du, clamped), hn::Set(du, 0x7F800000u));
    const auto exponent = hn::Max(field, lowest);
    const auto shifter = hn::Add(exponent, hn::Set(du, static_cast<std::uint32_t>(kDropped) << 23));
    const auto rounded = hn::BitCast(du, hn::Add(clamped, hn::BitCast(df, shifter)));
    // The significand's leading bit adds one to the exponent field.
    const auto significand = hn::Sub(rounded, shifter);
    return hn::Add(significand, hn::ShiftRight<kDropped>(hn::Sub(exponent, lowest)));
  }
}

/// `encode_low_bits` with the other bits 0.
template <Format F, class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_magnitude(DF df, hn::Vec<DF> y, float limit) {
  constexpr FormatTraits t = format_traits(F);
  const hn::RebindToUnsigned<DF> du;
  const auto code = encode_low_bits<F>(df, y, limit);
  if constexpr (t.exponent_bits == 2) {
    return hn::And(code, hn::Set(du, (1u << (t.exponent_bits + t.mantissa_bits)) - 1));
  } else {
    return code;
  }
}

#if HWY_TARGET != HWY_SCALAR

/// Narrows codes in 32-bit lanes to consecutive bytes.
template <class DU>
HWY_INLINE hn::Vec<hn::Rebind<std::uint8_t, DU>> to_bytes(DU /*du*/, hn::Vec<DU> codes) {
  return hn::TruncateTo(hn::Rebind<std::uint8_t, DU>(), codes);
}

/// Stores groups of 12 bits, one in the low bits of each 16-bit lane, without gaps: 12 bytes from
/// each 16. The lanes' upper bits are arbitrary.
template <class D16>
HWY_INLINE void store_packed_12bit(D16 /*d16*/, hn::Vec<D16> groups, std::uint8_t* out) {
  const hn::Repartition<std::uint8_t, D16> d8;
  const hn::Repartition<std::uint32_t, D16> d32;
  const auto pairs = hn::BitCast(d32, groups);
  const auto packed = hn::Or(hn::And(pairs, hn::Set(d32, 0xFFFu)),
                             hn::And(hn::ShiftRight<4>(pairs), hn::Set(d32, 0xFFF000u)));
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0,  1,  2,  4,  5,  6,  8,  9,
                                                          10, 12, 13, 14, 14, 14, 14, 14};
  const auto dense = hn::TableLookupBytes(hn::BitCast(d8, packed), hn::LoadDup128(d8, kOrder));
  alignas(64) std::uint8_t bytes[hn::MaxLanes(d8)];
  if constexpr (hn::MaxLanes(d8) == 32) {
    // Two stores, of which the second overwrites what the first leaves behind its 12 bytes.
    const hn::Half<decltype(d8)> half;
    hn::StoreU(hn::LowerHalf(half, dense), half, out);
    hn::Store(hn::UpperHalf(half, dense), half, bytes);
    std::memcpy(out + 12, bytes, 12);
  } else {
    hn::Store(dense, d8, bytes);
    std::memcpy(out, bytes, 12);
  }
}

/// Stores bytes that hold one 6-bit code each, 16 as 12.
template <class D8>
HWY_INLINE void store_packed_6bit(D8 /*d8*/, hn::Vec<D8> codes, std::uint8_t* out) {
  const hn::Repartition<std::uint16_t, D8> d16;
  const auto pairs = hn::BitCast(d16, codes);
  store_packed_12bit(d16,
                     hn::Or(hn::And(pairs, hn::Set(d16, std::uint16_t{0x3F})),
                            hn::And(hn::ShiftRight<2>(pairs), hn::Set(d16, std::uint16_t{0xFC0}))),
                     out);
}

/// Stores Lanes(du) 4-bit codes, low nibble first.
template <class DU>
HWY_INLINE void store_packed_4bit(DU /*du*/, hn::Vec<DU> codes, std::uint8_t* out) {
  const hn::Repartition<std::uint64_t, DU> d64;
  const hn::Rebind<std::uint8_t, decltype(d64)> d8;
  const auto pairs = hn::BitCast(d64, codes);
  hn::StoreU(hn::TruncateTo(d8, hn::Or(pairs, hn::ShiftRight<28>(pairs))), d8, out);
}

/// Elements that `encode_step` takes at once: a whole number of bytes of every format.
inline constexpr int kStep = 16;

/// Packs kStep codes that `codes_of(i)` gives Lanes(du) at a time, from lane i on, into `out`.
template <Format F, class DU, class CodesOf>
HWY_INLINE void store_step(DU du, CodesOf codes_of, std::uint8_t* out) {
  constexpr int kBits = format_traits(F).bits;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(du));
  if constexpr (kBits == 6) {
    const hn::CappedTag<std::uint8_t, kStep> d8;
    alignas(16) std::uint8_t bytes[kStep];
    for (int i = 0; i < kStep; i += kLanes) {
      hn::StoreU(to_bytes(du, codes_of(i)), hn::Rebind<std::uint8_t, DU>(), bytes + i);
    }
    store_packed_6bit(d8, hn::Load(d8, bytes), out);
  } else {
    for (int i = 0; i < kStep; i += kLanes) {
      if constexpr (kBits == 4) {
        store_packed_4bit(du, codes_of(i), out + i / 2);
      } else {
        hn::StoreU(to_bytes(du, codes_of(i)), hn::Rebind<std::uint8_t, DU>(), out + i);
      }
    }
  }
}

/// Codes of `values` in f16 or bf16, in 32-bit lanes; infinity beyond the range.
template <Format kDtype, class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_half(DF df, hn::Vec<DF> values) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, values);
  if constexpr (kDtype == Format::bf16) {
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    return hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  } else {
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    return hn::Or(sign, encode_magnitude<kDtype>(df, hn::BitCast(df, magnitude), 0x1p16f));
  }
}

/// Stores `values` rounded to `kDtype`, every NaN as the canonical one.
template <Format kDtype, class DF>
HWY_INLINE void store_values(DF df, hn::Vec<DF> values, std::uint8_t* out) {
  const hn::RebindToUnsigned<DF> du;
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(values));
  const auto nan = hn::Set(du, format_traits(kDtype).nan_code);
  if constexpr (kDtype == Format::f32) {
    const auto bits = hn::IfThenElse(is_nan, nan, hn::BitCast(du, values));
    const hn::Repartition<std::uint8_t, DF> d8;
    hn::StoreU(hn::BitCast(d8, bits), d8, out);
  } else {
    const auto codes = hn::IfThenElse(is_nan, nan, encode_half<kDtype>(df, values));
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::Repartition<std::uint8_t, decltype(d16)> d8;
    hn::StoreU(hn::BitCast(d8, hn::TruncateTo(d16, codes)), d8, out);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
