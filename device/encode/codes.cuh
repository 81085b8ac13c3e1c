// Codes of a chunk's elements, packed as they are stored.
//
// Two ways for every element: the short one, for blocks that are not `exceptional`, counts its
// instructions (an H200 has about 17 for each element at the rate of its memory); the exact one is
// right for all inputs and is taken where a block holds infinities or extreme scales, and at the
// edges of a matrix.
#pragma once

#include "device/encode/chunk.cuh"
#include "device/encode/scale.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"

namespace blockscale::encoding {

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
//
// As a function of the scaled magnitude y the code is concave and linear between powers of two: it
// is the least of 2 y, 2 + y, 4 + y / 2 and 7. Each line is a fused multiply-add onto a number
// whose last place stands for one code, so it is rounded once, to nearest even, and the least of
// the rounded lines is the rounded least. The first two lines are one: below a power of two the
// last place is half of what it is above, and with y = 2 there, 2 y and 2 + y have the same slope.
// So the bits of that sum, as an integer, are 4 less than the code from those of the power of two,
// whose low bits are 0. ops/quantize/test/math_emulated_test.cpp has every input.

/// Signs of elements i to i + 7: bit 3 of each nibble, the other bits being 0.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE uint32_t sign_nibbles(const Chunk<kFormat, kCount>& chunk, int i) {
  // Bytes of 0xFF for the negative ones, first of elements next to each other, then of every
  // second.
  uint32_t even, odd;
  if constexpr (kFormat == Format::f32) {
    const auto two = [&](int j) {
      return ptx::prmt(chunk.word[i + j], chunk.word[i + j + 2], 0x00FB);
    };
    even = ptx::prmt(two(0), two(4), 0x5410);
    odd = ptx::prmt(two(1), two(5), 0x5410);
  } else {
    const auto four = [&](int j) {
      return ptx::prmt(chunk.word[(i + j) / 2], chunk.word[(i + j) / 2 + 1], 0xFDB9);
    };
    const uint32_t low = four(0);
    const uint32_t high = four(4);
    even = ptx::prmt(low, high, 0x6420);
    odd = ptx::prmt(low, high, 0x7531);
  }
  return (even & 0x08080808u) | (odd & 0x80808080u);
}

/// Codes of magnitudes, two at once in f16 or bf16 arithmetic.
template <Format kFormat>
class PackedE2m1 {
  // Above the powers of two that `kPower` holds the last place is a quarter or a half.
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr uint32_t kPower = kIsBf16 ? 0x42004200u : 0x60006000u;  // 32, 512

 public:
  /// factor = 2^-e.
  BLOCKSCALE_DEVICE explicit PackedE2m1(float factor) {
    const uint32_t bits = bit_cast<uint32_t>(factor);
    if constexpr (kIsBf16) {
      const uint32_t both = ptx::prmt(bits, bits, 0x3232);
      slope_ = ptx::mul_rn_bf16x2(both, 0x3E803E80u);  // a quarter
      flat_slope_ = ptx::mul_rn_bf16x2(both, 0x3E003E00u);
    } else {
      // -14 <= -e <= 26 for finite f16; beyond (blocks of zeros, of infinities) any factor will do.
      const int32_t exponent = static_cast<int32_t>(bits >> 23) - 127;
      const bool small = exponent > 12;
      const int32_t field = exponent + (small ? 15 - 12 : 15);
      const uint32_t code = static_cast<uint32_t>(field < 1 ? 1 : field > 30 ? 30 : field) << 10;
      before_ = small ? 0x6C006C00u : 0x3C003C00u;  // 2^12, 1
      slope_ = ptx::mul_rn_f16x2(code | code << 16, 0x38003800u);
      flat_slope_ = ptx::mul_rn_f16x2(code | code << 16, 0x34003400u);
    }
  }

  /// Codes, less 4, in the low bits of each half: modulo 8 in bits 0..2 and 16..18.
  BLOCKSCALE_DEVICE uint32_t operator()(uint32_t pair) const {
    const uint32_t y = pair & 0x7FFF7FFFu;
    constexpr uint32_t kOne = 0x00010001u;
    // kPower less 2 of the slope's units: 31.5, 511.
    constexpr uint32_t kStart = kPower - 4 * kOne;
    if constexpr (kIsBf16) {
      const uint32_t steep = ptx::fma_rn_bf16x2(y, slope_, kStart);
      const uint32_t flat = ptx::fma_rn_bf16x2(y, flat_slope_, kPower);
      return ptx::min_bf16x2(ptx::min_bf16x2(steep, flat), kPower + 3 * kOne);
    } else {
      const uint32_t x = ptx::mul_rn_f16x2(y, before_);
      const uint32_t steep = ptx::fma_rn_f16x2(x, slope_, kStart);
      const uint32_t flat = ptx::fma_rn_f16x2(x, flat_slope_, kPower);
      return ptx::min_f16x2(ptx::min_f16x2(steep, flat), kPower + 3 * kOne);
    }
  }

 private:
  uint32_t before_ = 0;  // f16: brings small elements into the range where 2^-e is an f16
  uint32_t slope_;       // of 2 + y, in last places above kPower
  uint32_t flat_slope_;  // of 4 + y / 2
};

/// Codes of magnitudes y = factor x in f32. The product is not rounded by itself.
class E2m1Lines {
 public:
  /// A quarter and an eighth of the factor must be exact.
  BLOCKSCALE_DEVICE explicit E2m1Lines(float factor)
      : slope_(ptx::mul_rn(factor, 0.25f)), flat_slope_(ptx::mul_rn(factor, 0.125f)) {}

  /// The code, and kOffset.
  BLOCKSCALE_DEVICE uint32_t operator()(float magnitude) const {
    const float steep = ptx::fma_rn(magnitude, slope_, kPower - 0.5f);
    const float flat = ptx::fma_rn(magnitude, flat_slope_, kPower);
    // None of them is negative, so their bits compare as they do.
    const auto least = [](int32_t a, int32_t b) { return a < b ? a : b; };
    const int32_t line = least(bit_cast<int32_t>(steep), bit_cast<int32_t>(flat));
    return static_cast<uint32_t>(least(line, static_cast<int32_t>(kOffset + 7)));
  }

  static constexpr float kPower = 0x1p21f;               // above it the last place is a quarter
  static constexpr uint32_t kOffset = 0x4A000000u - 4u;  // the bits of kPower, less 4

 private:
  float slope_;
  float flat_slope_;
};

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

/// e2m1 codes from a function that gives pairs of codes as PackedE2m1 does.
template <Format kFormat, int kCount, class PairOf>
BLOCKSCALE_DEVICE Codes<Format::e2m1, kCount> encode_e2m1_pairs(const Chunk<kFormat, kCount>& chunk,
                                                                const PairOf& pair_of) {
  Codes<Format::e2m1, kCount> codes;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount / 8; ++i) {
    const auto four = [&](int j) {
      // Bytes 0 and 2 of each pair; and bit 3 is the sign.
      const uint32_t bytes = ptx::prmt(pair_of(j), pair_of(j + 2), 0x6420);
      const uint32_t negative = ptx::prmt(chunk.word[j / 2], chunk.word[j / 2 + 1], 0xFDB9);
      return (bytes & ~0x08080808u) | (negative & 0x08080808u);
    };
    const uint32_t low = four(8 * i);
    const uint32_t high = four(8 * i + 4);
    const uint32_t even = ptx::prmt(low, high, 0x6420);
    const uint32_t odd = ptx::prmt(low, high, 0x7531);
    const uint32_t less_4 = (even & 0x0F0F0F0Fu) | (odd * 16 & 0xF0F0F0F0u);
    codes.word[i] = less_4 ^ 0x44444444u;
  }
  return codes;
}

/// e2m1 codes from a function that gives one as E2m1Lines does.
template <Format kFormat, int kCount, class CodeOf>
BLOCKSCALE_DEVICE Codes<Format::e2m1, kCount> encode_e2m1(const Chunk<kFormat, kCount>& chunk,
                                                          const CodeOf& code_of) {
  Codes<Format::e2m1, kCount> codes;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount / 8; ++i) {
    uint32_t magnitudes = 0u - E2m1Lines::kOffset * 0x11111111u;
    BLOCKSCALE_UNROLL
    for (int j = 0; j < 8; ++j) magnitudes += code_of(8 * i + j) * (1u << 4 * j);
    codes.word[i] = magnitudes | sign_nibbles(chunk, 8 * i);
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

/// Codes of a chunk of nvfp4 blocks: products with factor_of(i).
template <bool kExact, Format kFormat, int kCount, class FactorOf>
BLOCKSCALE_DEVICE Codes<Format::e2m1, kCount> encode_nvfp4(const Chunk<kFormat, kCount>& chunk,
                                                           const FactorOf& factor_of) {
  const E2m1Lines code(1.0f);
  return encode_e2m1(chunk, [&](int i) {
    const float x = kExact ? limited_value(chunk, i, kLargestFinite) : value_at(chunk, i);
    return code(ptx::mul_rn(ptx::abs(x), factor_of(i)));
  });
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
    return encode_e2m1_pairs(chunk, [&](int i) { return code_pair(chunk.word[i / 2]); });
  } else if constexpr (kRule == ScaleRule::mx) {
    const E2m1Lines code(scale.factor);  // a power of two: the product is exact
    return encode_e2m1(chunk, [&](int i) { return code(ptx::abs(finite(i))); });
  } else {
    return encode_nvfp4<kExact>(chunk, [&](int) { return scale.factor; });
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

}  // namespace blockscale::encoding
