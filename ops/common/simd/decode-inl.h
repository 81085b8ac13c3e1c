// Packed codes to f32 values (no scales), one implementation for every operation that reads codes.
//
// Included once per SIMD target by files that include hwy/foreach_target.h. `decode_run` and
// `decode_small` work on every target; loads of whole vectors exist where HWY_TARGET != HWY_SCALAR.
// All of them give the values of core's `decode` bit for bit, but for the payload of a NaN.

#if defined(BLOCKSCALE_OPS_QUANTIZE_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_DECODE_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_DECODE_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "core/format.h"
#include "core/packing.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Values of codes of up to 16 bits in 32-bit lanes. Subnormal codes are renormalised by an exact
/// subtraction, so no f32 subnormal (slow, or flushed under a caller's FTZ) ever occurs.
template <Format F, class DF, class VU>
HWY_INLINE hn::Vec<DF> decode_small(DF df, VU codes) {
  constexpr FormatTraits t = format_traits(F);
  constexpr int kMagnitudeBits = t.exponent_bits + t.mantissa_bits;
  constexpr int kShift = 23 - t.mantissa_bits;
  const hn::RebindToUnsigned<DF> du;
  const auto magnitude = hn::And(codes, hn::Set(du, (1u << kMagnitudeBits) - 1));
  const auto scaled = hn::ShiftLeft<kShift>(magnitude);
  const auto base = hn::Set(du, static_cast<std::uint32_t>(127 - t.bias) << 23);
  const auto one_up = hn::Set(du, static_cast<std::uint32_t>(128 - t.bias) << 23);
  // Field 0: as if it were 1, minus the leading bit that it lacks.
  const auto subnormal = hn::Sub(hn::BitCast(df, hn::Or(scaled, one_up)), hn::BitCast(df, one_up));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(du, 1u << t.mantissa_bits));
  auto value = hn::IfThenElse(is_subnormal, hn::BitCast(du, subnormal), hn::Add(scaled, base));
  if constexpr (t.nan_code != 0) {
    const auto special = hn::Gt(magnitude, hn::Set(du, t.max_code));
    const auto infinity = hn::IfThenElseZero(special, hn::Set(du, 0x7F800000u));
    value = hn::Or(value, infinity);
  }
  if constexpr (t.is_signed) {
    const auto at_top = hn::ShiftLeft<32 - t.bits>(codes);
    value = hn::Or(value, hn::And(at_top, hn::Set(du, 0x80000000u)));
  }
  return hn::BitCast(df, value);
}

#if HWY_TARGET != HWY_SCALAR

/// Where lane i finds its sub-byte code within 16 bytes: two bytes that contain it, and the left
/// shift that brings it to the top of a 32-bit lane. Holds for up to 16 lanes.
template <int kBits>
struct SubByteLanes {
  alignas(64) std::uint8_t bytes[64];
  alignas(64) std::uint32_t shifts[16];

  constexpr SubByteLanes() : bytes(), shifts() {
    for (int lane = 0; lane < 16; ++lane) {
      const int bit = lane * kBits;
      bytes[4 * lane] = static_cast<std::uint8_t>(bit / 8);
      bytes[4 * lane + 1] = static_cast<std::uint8_t>(bit / 8 + 1);
      bytes[4 * lane + 2] = bytes[4 * lane + 3] = bytes[4 * lane];
      shifts[lane] = static_cast<std::uint32_t>(32 - kBits - bit % 8);
    }
  }
};
template <int kBits>
inline constexpr SubByteLanes<kBits> kSubByteLanes{};

/// Lanes(du) consecutive codes of `F` from `codes`, one in each 32-bit lane. 6-bit formats read 16
/// bytes; the others read no more than the codes' own.
template <Format F, class DU>
HWY_INLINE hn::Vec<DU> load_codes(DU du, const std::uint8_t* codes) {
  constexpr int kBits = format_traits(F).bits;
  if constexpr (kBits == 32) {
    return hn::BitCast(du, hn::LoadU(hn::Repartition<std::uint8_t, DU>(), codes));
  } else if constexpr (kBits == 16) {
    const hn::Rebind<std::uint16_t, DU> d16;
    const hn::Repartition<std::uint8_t, decltype(d16)> d8;
    return hn::PromoteTo(du, hn::BitCast(d16, hn::LoadU(d8, codes)));
  } else if constexpr (kBits == 8) {
    return hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint8_t, DU>(), codes));
  } else {
    const hn::Repartition<std::uint8_t, DU> d8;
    const auto& lanes = kSubByteLanes<kBits>;
    hn::Vec<decltype(d8)> source;
    if constexpr (kBits == 4) {
      std::uint64_t word = 0;
      std::memcpy(&word, codes, hn::MaxLanes(du) / 2);
      source = hn::BitCast(d8, hn::Set(hn::Repartition<std::uint64_t, DU>(), word));
    } else {
      source = hn::LoadDup128(d8, codes);
    }
    const auto bytes = hn::TableLookupBytes(source, hn::Load(d8, lanes.bytes));
    const auto at_top = hn::Shl(hn::BitCast(du, bytes), hn::Load(du, lanes.shifts));
    return hn::ShiftRight<32 - kBits>(at_top);
  }
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// 16 consecutive e2m1 values from 8 bytes, by a table of all 16.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> decode_e2m1_x16(const std::uint8_t* codes) {
  alignas(64) static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                    4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                    -2.0f, -3.0f, -4.0f, -6.0f};
  std::int32_t low, high;
  std::memcpy(&low, codes, sizeof(low));
  std::memcpy(&high, codes + 4, sizeof(high));
  const __m512i words = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xFF00, high);
  const __m512i shifts =
      _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  // The permutation reads the low four bits of each lane.
  const __m512i nibbles = _mm512_srlv_epi32(words, shifts);
  return hn::Vec<hn::ScalableTag<float>>{_mm512_permutexvar_ps(nibbles, _mm512_load_ps(kValues))};
}
#endif

/// Lanes(df) consecutive values of `F`; reads as `load_codes` does.
template <Format F, class DF>
HWY_INLINE hn::Vec<DF> decode_lanes(DF df, const std::uint8_t* codes) {
  const hn::RebindToUnsigned<DF> du;
  if constexpr (F == Format::f32) {
    return hn::BitCast(df, load_codes<F>(du, codes));
  } else if constexpr (F == Format::bf16) {
    return hn::BitCast(df, hn::ShiftLeft<16>(load_codes<F>(du, codes)));
#if HWY_TARGET != HWY_SSE4 && HWY_TARGET != HWY_EMU128  // theirs has no infinity and no NaN
  } else if constexpr (F == Format::f16) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    const hn::Repartition<std::uint8_t, decltype(d16)> d8;
    return hn::PromoteTo(df, hn::BitCast(d16, hn::LoadU(d8, codes)));
#endif
  } else {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    if constexpr (F == Format::e2m1 && hn::MaxLanes(df) == 16) return decode_e2m1_x16(codes);
#endif
    return decode_small<F>(df, load_codes<F>(du, codes));
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

/// Values of elements [begin, begin + count) of a packed row of `F`. `begin` starts a byte: it is
/// even for 4-bit formats and a multiple of 4 for 6-bit ones. Reads no byte outside of these
/// elements' own.
template <Format F>
void decode_run(const std::uint8_t* row, std::int64_t begin, std::int64_t count, float* out) {
  constexpr int kBits = format_traits(F).bits;
  const std::uint8_t* const codes = row + begin * kBits / 8;
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> df;
  constexpr std::int64_t kLanes = hn::MaxLanes(df);
  // A 6-bit load reads 16 bytes, which hold 21 codes and a part of the next.
  constexpr std::int64_t kNeeded = kBits == 6 ? 24 : kLanes;
  for (; i + kNeeded <= count; i += kLanes) {
    hn::StoreU(decode_lanes<F>(df, codes + i * kBits / 8), df, out + i);
  }
  if constexpr (kBits == 6) {
    for (; i < count; i += kLanes) {
      std::uint8_t bytes[16] = {};
      const std::int64_t left = count - i < kLanes ? count - i : kLanes;
      std::memcpy(bytes, codes + i * kBits / 8, static_cast<std::size_t>((left * kBits + 7) / 8));
      HWY_ALIGN float values[kLanes];
      hn::Store(decode_lanes<F>(df, bytes), df, values);
      std::memcpy(out + i, values, static_cast<std::size_t>(left) * sizeof(float));
    }
  }
#endif
  for (; i < count; ++i) out[i] = decode<F>(load_code<F>(codes, i));
}

/// `decode_run` for an element format known at run time (not ue8m0).
inline void decode_run(Format format, const std::uint8_t* row, std::int64_t begin,
                       std::int64_t count, float* out) {
  switch (format) {
    case Format::e2m1: return decode_run<Format::e2m1>(row, begin, count, out);
    case Format::e2m3: return decode_run<Format::e2m3>(row, begin, count, out);
    case Format::e3m2: return decode_run<Format::e3m2>(row, begin, count, out);
    case Format::e4m3: return decode_run<Format::e4m3>(row, begin, count, out);
    case Format::e5m2: return decode_run<Format::e5m2>(row, begin, count, out);
    case Format::ue4m3: return decode_run<Format::ue4m3>(row, begin, count, out);
    case Format::f16: return decode_run<Format::f16>(row, begin, count, out);
    case Format::bf16: return decode_run<Format::bf16>(row, begin, count, out);
    case Format::f32: return decode_run<Format::f32>(row, begin, count, out);
    case Format::ue8m0: break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
