// Codes of a chunk's elements, packed as they are stored.
//
// Two ways for every element: the short one, for blocks that are not `exceptional`, counts its
// instructions (an H200 has about 17 for each element at the rate of its memory); the exact one is
// right for all inputs and is taken where a block holds infinities or extreme scales, and at the
// edges of a matrix.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The packed codes of kCount elements. Bits behind the last code are arbitrary.
template <Format kElement, int kCount>
struct Codes {
  static constexpr int kBytes = kCount * format_traits(kElement).bits / 8;
  static constexpr int kWords = (kBytes + 3) / 4;
  uint32_t word[kWords];
};

// ---------------------------------------------------------------- scaled values

/// Element i, finite and no larger than its scale allows for.
template <class AnyChunk>
BLOCKSCALE_DEVICE float limited_value(const AnyChunk& chunk, int i, float limit) {
  return ptx::min_nan(ptx::max_nan(value_at(chunk, i), -limit), limit);
}

/// Quotient for any scale and any elements but infinite ones: what saturates anyway is cut off, and
/// both operands grow by a power of two where remainders could be lost.
template <Format kElement>
struct ExactQuotient {
  float limit;
  float growth;
  Quotient quotient;

  BLOCKSCALE_DEVICE explicit ExactQuotient(float s) {
    constexpr float kEnough = static_cast<float>(4 << format_traits(kElement).max_exponent);
    limit = ptx::min(ptx::mul_rn(s, kEnough), kLargestFinite);
    growth = s < kSmallestExactScale ? 0x1p80f : 1.0f;
    const float scale = ptx::mul_rn(s, growth);
    quotient = {scale, ptx::rcp_rn(scale)};
  }
  template <class AnyChunk>
  BLOCKSCALE_DEVICE float operator()(const AnyChunk& chunk, int i) const {
    return quotient(ptx::mul_rn(limited_value(chunk, i, limit), growth));
  }
};

// ---------------------------------------------------------------- e2m1

/// Eight e2m1 codes from four words that hold two magnitudes each (bits 0..2 and 16..18, the rest
/// of bytes 0 and 2 being 0), and from what is 0xFF in each byte of a negative element.
BLOCKSCALE_DEVICE uint32_t pack_e2m1(const uint32_t (&pairs)[4], uint32_t negative_low,
                                     uint32_t negative_high) {
  const uint32_t low = ptx::prmt(pairs[0], pairs[1], 0x6420) | (negative_low & 0x08080808u);
  const uint32_t high = ptx::prmt(pairs[2], pairs[3], 0x6420) | (negative_high & 0x08080808u);
  const uint32_t even = ptx::prmt(low, high, 0x6420);
  const uint32_t odd = ptx::prmt(low, high, 0x7531);
  return even + (odd << 4);
}

/// Bytes of 0xFF for negative elements among elements i to i + 3, 0 for the others.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE uint32_t negatives(const Chunk<kFormat, kCount>& chunk, int i) {
  if constexpr (kFormat == Format::f32) {
    const uint32_t first = ptx::prmt(chunk.word[i], chunk.word[i + 1], 0x00FB);
    const uint32_t second = ptx::prmt(chunk.word[i + 2], chunk.word[i + 3], 0x00FB);
    return ptx::prmt(first, second, 0x5410);
  } else {
    return ptx::prmt(chunk.word[i / 2], chunk.word[i / 2 + 1], 0xFDB9);
  }
}

/// Codes of magnitudes, two at once in f16 or bf16 arithmetic.
///
/// As a function of y the code is concave and linear between powers of two, so it is the least of
/// three lines: 2 y, 2 + y, 4 + y / 2, and at most 7. Each line is one fused multiply-add onto a
/// number whose last place stands for one code, so it is rounded once, to nearest even, and the
/// least of the rounded lines is the rounded least. cuda_math_emulated_test.cpp has every input.
template <Format kFormat>
struct PackedE2m1 {
  // The last place of `kBase` stands for one code; its low byte is 0.
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr uint32_t kBase = kIsBf16 ? 0x42004200u : 0x60006000u;  // 32, 512
  uint32_t before;    // f16: brings small elements into the range where 2^-e is an f16
  uint32_t slope[3];  // in last places of kBase

  /// factor = 2^-e.
  BLOCKSCALE_DEVICE explicit PackedE2m1(float factor) {
    const uint32_t bits = bit_cast<uint32_t>(factor);
    if constexpr (kIsBf16) {
      const uint32_t both = ptx::prmt(bits, bits, 0x3232);
      slope[0] = ptx::mul_rn_bf16x2(both, 0x3F003F00u);  // a half
      slope[1] = ptx::mul_rn_bf16x2(both, 0x3E803E80u);
      slope[2] = ptx::mul_rn_bf16x2(both, 0x3E003E00u);  // an eighth
    } else {
      // -14 <= -e <= 26 for finite f16; beyond (blocks of zeros, of infinities) any factor will do.
      const int32_t exponent = static_cast<int32_t>(bits >> 23) - 127;
      const bool small = exponent > 12;
      const int32_t field = exponent + (small ? 15 - 12 : 15);
      const uint32_t code = static_cast<uint32_t>(field < 1 ? 1 : field > 30 ? 30 : field) << 10;
      before = small ? 0x6C006C00u : 0x3C003C00u;  // 2^12, 1
      slope[0] = code | code << 16;
      slope[1] = ptx::mul_rn_f16x2(slope[0], 0x38003800u);
      slope[2] = ptx::mul_rn_f16x2(slope[0], 0x34003400u);
    }
  }

  /// Codes in bits 0..2 and 16..18; bytes 1 and 3 are those of kBase.
  BLOCKSCALE_DEVICE uint32_t operator()(uint32_t pair) const {
    const uint32_t y = pair & 0x7FFF7FFFu;
    constexpr uint32_t kOne = 0x00010001u;
    if constexpr (kIsBf16) {
      const uint32_t steep = ptx::fma_rn_bf16x2(y, slope[0], kBase);
      const uint32_t middle = ptx::fma_rn_bf16x2(y, slope[1], kBase + 2 * kOne);
      const uint32_t flat = ptx::fma_rn_bf16x2(y, slope[2], kBase + 4 * kOne);
      return ptx::min_bf16x2(ptx::min_bf16x2(steep, middle),
                             ptx::min_bf16x2(flat, kBase + 7 * kOne));
    } else {
      const uint32_t x = ptx::mul_rn_f16x2(y, before);
      const uint32_t steep = ptx::fma_rn_f16x2(x, slope[0], kBase);
      const uint32_t middle = ptx::fma_rn_f16x2(x, slope[1], kBase + 2 * kOne);
      const uint32_t flat = ptx::fma_rn_f16x2(x, slope[2], kBase + 4 * kOne);
      return ptx::min_f16x2(ptx::min_f16x2(steep, middle), ptx::min_f16x2(flat, kBase + 7 * kOne));
    }
  }
};

/// Codes of two scaled magnitudes below 2^13, in bits 0..2 and 16..18: the lines of PackedE2m1 in
/// f32, on numbers from 2^23 up, whose low bits are integers. Two of them are put into one word by
/// an integer multiply-add, which leaves the upper bits of the first in both upper halves alike;
/// the halves then compare as f16.
BLOCKSCALE_DEVICE uint32_t e2m1_pair(float y0, float y1) {
  constexpr float kBase = 0x1p23f;
  constexpr uint32_t kUpper = 0x4B000000u;  // of the bits of kBase
  const auto both = [](float low, float high) {
    return bit_cast<uint32_t>(high) * 0x10000u + bit_cast<uint32_t>(low);
  };
  const uint32_t steep = both(ptx::fma_rn(y0, 2.0f, kBase), ptx::fma_rn(y1, 2.0f, kBase));
  const uint32_t middle = both(ptx::add_rn(y0, kBase + 2), ptx::add_rn(y1, kBase + 2));
  const uint32_t flat = both(ptx::fma_rn(y0, 0.5f, kBase + 4), ptx::fma_rn(y1, 0.5f, kBase + 4));
  return ptx::min_f16x2(ptx::min_f16x2(steep, middle), ptx::min_f16x2(flat, kUpper | 0x00070007u));
}

// ---------------------------------------------------------------- 8 and 6 bits

/// Codes of four scaled elements, one in each byte, in the FP8 format that the hardware rounds to.
template <Format kHardware, class ValueOf>
BLOCKSCALE_DEVICE uint32_t fp8_bytes(const ValueOf& value_of, int i) {
  const auto pair = [&](int j) -> uint32_t {
    if constexpr (kHardware == Format::e5m2) {
      return ptx::cvt_rn_satfinite_e5m2x2_f32(value_of(j + 1), value_of(j));
    } else {
      return ptx::cvt_rn_satfinite_e4m3x2_f32(value_of(j + 1), value_of(j));
    }
  };
  return pair(i) | pair(i + 2) << 16;
}

/// 6-bit formats are FP8 formats with fewer exponents: scaled by this, their codes are the low five
/// bits of those of e4m3 (e2m3) or e5m2 (e3m2), subnormals included, rounded once.
template <Format kElement>
inline constexpr float kFp6Factor = kElement == Format::e2m3 ? 0x1p-6f : 0x1p-12f;
template <Format kElement>
inline constexpr Format kFp6Hardware = kElement == Format::e2m3 ? Format::e4m3 : Format::e5m2;

/// 24 bits of four 6-bit codes from bytes that hold a sign in bit 7 and at most 32 below.
BLOCKSCALE_DEVICE uint32_t pack_fp6(uint32_t bytes) {
  bytes -= (bytes >> 5) & 0x01010101u;  // 32 is what rounded past the largest value: saturate
  const uint32_t codes = (bytes & 0x1F1F1F1Fu) | ((bytes >> 2) & 0x20202020u);
  const uint32_t pairs = (codes & 0x003F003Fu) | ((codes >> 2) & 0x0FC00FC0u);
  return (pairs & 0x00000FFFu) | ((pairs >> 4) & 0x00FFF000u);
}

// ---------------------------------------------------------------- chunks

/// Codes of a chunk from a function that gives scaled elements.
template <Format kElement, int kCount, class ValueOf>
BLOCKSCALE_DEVICE Codes<kElement, kCount> encode_bytes(const ValueOf& value_of) {
  Codes<kElement, kCount> codes;
  if constexpr (format_traits(kElement).bits == 8) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kCount / 4; ++i) {
      codes.word[i] = fp8_bytes<kElement>(value_of, 4 * i);
    }
  } else {
    uint32_t packed[kCount / 4];
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kCount / 4; ++i) {
      packed[i] = pack_fp6(fp8_bytes<kFp6Hardware<kElement>>(value_of, 4 * i));
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Codes<kElement, kCount>::kWords; ++i) {
      // Bits [32 i, 32 i + 32) of the row of 24-bit groups.
      const int group = 32 * i / 24;
      const int skipped = 32 * i % 24;
      codes.word[i] = packed[group] >> skipped;
      if (group + 1 < kCount / 4) codes.word[i] |= packed[group + 1] << (24 - skipped);
    }
  }
  return codes;
}

/// e2m1 codes from a function that gives pairs of magnitudes as pack_e2m1 wants them.
template <Format kFormat, int kCount, class PairOf>
BLOCKSCALE_DEVICE Codes<Format::e2m1, kCount> encode_e2m1(const Chunk<kFormat, kCount>& chunk,
                                                          const PairOf& pair_of) {
  Codes<Format::e2m1, kCount> codes;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount / 8; ++i) {
    const uint32_t pairs[4] = {pair_of(8 * i), pair_of(8 * i + 2), pair_of(8 * i + 4),
                               pair_of(8 * i + 6)};
    codes.word[i] = pack_e2m1(pairs, negatives(chunk, 8 * i), negatives(chunk, 8 * i + 4));
  }
  return codes;
}

/// Codes of a chunk of an fp8 block: quotients.
template <Format kElement, bool kExact, Format kFormat, int kCount>
BLOCKSCALE_DEVICE Codes<kElement, kCount> encode_quotients(const Chunk<kFormat, kCount>& chunk,
                                                           const BlockScale& scale) {
  if constexpr (kExact) {
    const ExactQuotient<kElement> quotient(scale.factor);
    return encode_bytes<kElement, kCount>([&](int i) { return quotient(chunk, i); });
  } else {
    const Quotient quotient{scale.factor, scale.reciprocal};
    return encode_bytes<kElement, kCount>([&](int i) { return quotient(value_at(chunk, i)); });
  }
}

/// Codes of a chunk of an mx or nvfp4 block: products.
template <Format kElement, ScaleRule kRule, bool kExact, Format kFormat, int kCount>
BLOCKSCALE_DEVICE Codes<kElement, kCount> encode_products(const Chunk<kFormat, kCount>& chunk,
                                                          const BlockScale& scale) {
  const auto finite = [&](int i) {
    return kExact ? limited_value(chunk, i, kLargestFinite) : value_at(chunk, i);
  };
  if constexpr (kElement != Format::e2m1) {
    constexpr bool kFp6 = format_traits(kElement).bits == 6;
    const float factor = kFp6 ? ptx::mul_rn(scale.factor, kFp6Factor<kElement>) : scale.factor;
    return encode_bytes<kElement, kCount>([&](int i) { return ptx::mul_rn(finite(i), factor); });
  } else if constexpr (kRule == ScaleRule::mx && kFormat != Format::f32 && !kExact) {
    const PackedE2m1<kFormat> code_pair(scale.factor);
    return encode_e2m1(chunk, [&](int i) { return code_pair(chunk.word[i / 2]); });
  } else {
    const auto magnitude = [&](int i) {
      const float y = ptx::mul_rn(ptx::abs(finite(i)), scale.factor);
      return kExact ? ptx::min(y, 8.0f) : y;
    };
    return encode_e2m1(chunk, [&](int i) { return e2m1_pair(magnitude(i), magnitude(i + 1)); });
  }
}

/// Codes of a chunk. kExact: for every input; else for blocks that are not exceptional.
template <Format kElement, ScaleRule kRule, bool kExact, Format kFormat, int kCount>
BLOCKSCALE_DEVICE Codes<kElement, kCount> encode_chunk(const Chunk<kFormat, kCount>& chunk,
                                                       const BlockScale& scale) {
  if constexpr (kRule == ScaleRule::fp8) {
    return encode_quotients<kElement, kExact>(chunk, scale);
  } else {
    Codes<kElement, kCount> codes = encode_products<kElement, kRule, kExact>(chunk, scale);
    BLOCKSCALE_UNROLL
    for (uint32_t& word : codes.word) word &= scale.keep;
    return codes;
  }
}

}  // namespace blockscale::quantize_sm90
