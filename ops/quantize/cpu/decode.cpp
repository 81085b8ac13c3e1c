// Values of runs of one row of codes, for every SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize/cpu/decode.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/packing.h"
#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/encode-inl.h"
#include "ops/quantize/cpu/steps.h"
// This is toggled per target as those of ops/common/simd are.
#include "ops/quantize/cpu/decode_words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

template <Format kElement, Format kDtype>
HWY_INLINE void decode_block(const std::uint8_t* codes, std::int64_t count, float factor,
                             std::uint8_t* out) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kBits = format_traits(kElement).bits;
  constexpr int kSize = format_traits(kDtype).bits / 8;
  const hn::CappedTag<float, kStep> df;
  constexpr std::int64_t kLanes = hn::MaxLanes(df);
  const auto factors = hn::Set(df, factor);
  for (; i + kLanes <= count; i += kLanes) {
    const std::uint8_t* from = codes + i * kBits / 8;
    std::uint8_t last[16] = {};
    // A 6-bit load reads 16 bytes, which hold 21 codes and a part of the next.
    if (kBits == 6 && i + 22 > count) {
      std::memcpy(last, from, static_cast<std::size_t>((count - i) * kBits / 8));
      from = last;
    }
    store_values<kDtype>(df, hn::Mul(decode_lanes<kElement>(df, from), factors), out + i * kSize);
  }
#endif
  for (; i < count; ++i) {
    const float value = decode<kElement>(load_code<kElement>(codes, i)) * factor;
    const bool is_nan = value != value;
    store_code<kDtype>(
        out, i,
        is_nan ? format_traits(kDtype).nan_code : encode<kDtype>(value, Overflow::propagate));
  }
}

template <Format kElement, Format kDtype>
void decode_blocks_of(const std::uint8_t* codes, std::int64_t count, std::int64_t block,
                      const float* factors, std::uint8_t* out) {
  constexpr int kBits = format_traits(kElement).bits;
  for (std::int64_t i = 0;;) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kDtype == Format::bf16 && kBits <= 8) {
      i = decode_words_run<kElement>(codes, i, count, block, factors, out);
    }
#endif
    if (i >= count) return;
    const std::int64_t now = std::min(count - i, block - i % block);
    decode_block<kElement, kDtype>(codes + i * kBits / 8, now, factors[i / block],
                                   out + i * (format_traits(kDtype).bits / 8));
    i += now;
  }
}

template <Format kElement>
void decode_blocks_from(Format dtype, const std::uint8_t* codes, std::int64_t count,
                        std::int64_t block, const float* factors, std::uint8_t* out) {
  switch (dtype) {
    case Format::f16:
      return decode_blocks_of<kElement, Format::f16>(codes, count, block, factors, out);
    case Format::bf16:
      return decode_blocks_of<kElement, Format::bf16>(codes, count, block, factors, out);
    default: return decode_blocks_of<kElement, Format::f32>(codes, count, block, factors, out);
  }
}

void decode_blocks(Format element, Format dtype, const std::uint8_t* codes, std::int64_t count,
                   std::int64_t block, const float* factors, void* out) {
  auto* const bytes = static_cast<std::uint8_t*>(out);
  switch (element) {
    case Format::e2m1:
      return decode_blocks_from<Format::e2m1>(dtype, codes, count, block, factors, bytes);
    case Format::e2m3:
      return decode_blocks_from<Format::e2m3>(dtype, codes, count, block, factors, bytes);
    case Format::e3m2:
      return decode_blocks_from<Format::e3m2>(dtype, codes, count, block, factors, bytes);
    case Format::e4m3:
      return decode_blocks_from<Format::e4m3>(dtype, codes, count, block, factors, bytes);
    case Format::e5m2:
      return decode_blocks_from<Format::e5m2>(dtype, codes, count, block, factors, bytes);
    case Format::f16:
      return decode_blocks_from<Format::f16>(dtype, codes, count, block, factors, bytes);
    case Format::bf16:
      return decode_blocks_from<Format::bf16>(dtype, codes, count, block, factors, bytes);
    default: return decode_blocks_from<Format::f32>(dtype, codes, count, block, factors, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(decode_blocks);

namespace steps {

void decode_blocks(Format element, Format dtype, const std::uint8_t* codes, std::int64_t count,
                   std::int64_t block, const float* factors, void* out) {
  HWY_DYNAMIC_DISPATCH(decode_blocks)(element, dtype, codes, count, block, factors, out);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
