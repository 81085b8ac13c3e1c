// The values of packed codes: four at a time, exactly, as f16, bf16 or f32.
#pragma once

#include "core/format.h"
#include "device/encode/codes.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"

namespace blockscale::decoding {

using encoding::Codes;
using encoding::kFp6Factor;
using encoding::kFp6Hardware;

/// The values of four FP8 codes, one in each byte, as f16: exact.
template <Format kHardware>
BLOCKSCALE_DEVICE void widen_fp8(uint32_t (&pairs)[2], uint32_t bytes) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint16_t two = static_cast<uint16_t>(bytes >> (16 * i));
    if constexpr (kHardware == Format::e5m2) {
      pairs[i] = ptx::cvt_rn_f16x2_e5m2x2(two);
    } else {
      pairs[i] = ptx::cvt_rn_f16x2_e4m3x2(two);
    }
  }
}

/// Four 6-bit codes, from the low 24 bits, as bytes of the FP8 format that has their values times
/// kFp6Factor: the inverse of pack_fp6.
BLOCKSCALE_DEVICE uint32_t unpack_fp6(uint32_t packed) {
  const uint32_t pairs = (packed & 0x00000FFFu) | ((packed << 4) & 0x0FFF0000u);
  const uint32_t codes = (pairs & 0x003F003Fu) | ((pairs << 2) & 0x3F003F00u);
  return (codes & 0x1F1F1F1Fu) | ((codes << 2) & 0x80808080u);
}

/// The values of four e2m1 codes, from the low 16 bits, as f16: their upper bytes are looked up.
BLOCKSCALE_DEVICE void widen_e2m1(uint32_t (&pairs)[2], uint32_t nibbles) {
  // 0, .5, 1, 1.5 | 2, 3, 4, 6
  const uint32_t upper = ptx::prmt(0x3E3C3800u, 0x46444240u, nibbles & 0x7777u);
  pairs[0] =
      ptx::prmt(upper, 0u, 0x1404) | ((nibbles << 12) & 0x8000u) | ((nibbles << 24) & 0x80000000u);
  pairs[1] =
      ptx::prmt(upper, 0u, 0x3424) | ((nibbles << 4) & 0x8000u) | ((nibbles << 16) & 0x80000000u);
}

/// The same as bf16: both bytes are looked up, and signs stand in the top bits of bytes that hold
/// two codes, or their lower ones shifted up.
BLOCKSCALE_DEVICE void widen_e2m1_bf16(uint32_t (&pairs)[2], uint32_t nibbles) {
  const uint32_t codes = nibbles & 0x7777u;
  const uint32_t signs = ptx::prmt(nibbles << 4, nibbles, 0x5140) & 0x80808080u;
  const uint32_t upper = ptx::prmt(0x3F3F3F00u, 0x40404040u, codes) | signs;
  const uint32_t lower = ptx::prmt(0xC0800000u, 0xC0804000u, codes);
  pairs[0] = ptx::prmt(lower, upper, 0x5140);
  pairs[1] = ptx::prmt(lower, upper, 0x7362);
}

/// Codes 4 i to 4 i + 3 of 6 bits each, in the low 24 bits.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE uint32_t four_fp6(const Codes<kElement, kCount>& codes, int i) {
  const int word = 24 * i / 32;
  const int skipped = 24 * i % 32;
  uint32_t packed = codes.word[word] >> skipped;
  if (skipped > 8) packed |= codes.word[word + 1] << (32 - skipped);
  return packed;
}

/// The values of codes 4 i to 4 i + 3, times kFp6Factor where they have 6 bits, as f16.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void widen_four(uint32_t (&pairs)[2], const Codes<kElement, kCount>& codes,
                                  int i) {
  if constexpr (kElement == Format::e2m1) {
    widen_e2m1(pairs, codes.word[i / 2] >> (16 * (i % 2)));
  } else if constexpr (format_traits(kElement).bits == 6) {
    widen_fp8<kFp6Hardware<kElement>>(pairs, unpack_fp6(four_fp6(codes, i)));
  } else {
    widen_fp8<kElement>(pairs, codes.word[i]);
  }
}

/// Values of a chunk of codes in f32, exactly.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void decode_codes(float (&values)[kCount], const Codes<kElement, kCount>& codes) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount / 4; ++i) {
    uint32_t pairs[2];
    widen_four(pairs, codes, i);
    float factor = 1.0f;
    if constexpr (format_traits(kElement).bits == 6) factor = 1.0f / kFp6Factor<kElement>;
    BLOCKSCALE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float value = ptx::cvt_f32_f16(static_cast<uint16_t>(pairs[j / 2] >> (16 * (j % 2))));
      values[4 * i + j] = factor == 1.0f ? value : ptx::mul_rn(value, factor);
    }
  }
}

/// Values of a chunk of codes in kTo, which is f16 or bf16, two in a word: exactly, as either holds
/// every element of 8 bits and fewer.
template <Format kTo, Format kElement, int kCount>
BLOCKSCALE_DEVICE void widen_codes(uint32_t (&words)[kCount / 2],
                                   const Codes<kElement, kCount>& codes) {
  static_assert(kTo == Format::f16 || kTo == Format::bf16);
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount / 4; ++i) {
    uint32_t pairs[2];
    if constexpr (kElement == Format::e2m1 && kTo == Format::bf16) {
      widen_e2m1_bf16(pairs, codes.word[i / 2] >> (16 * (i % 2)));
    } else {
      widen_four(pairs, codes, i);
    }
    BLOCKSCALE_UNROLL
    for (int j = 0; j < 2; ++j) {
      uint32_t pair = pairs[j];
      if constexpr (format_traits(kElement).bits == 6) {
        constexpr uint32_t kFactor = encode<Format::f16>(1.0f / kFp6Factor<kElement>);
        pair = ptx::mul_rn_f16x2(pair, kFactor | kFactor << 16);
      }
      if constexpr (kTo == Format::bf16 && kElement != Format::e2m1) {
        pair = ptx::cvt_rn_bf16x2_f32(ptx::cvt_f32_f16(static_cast<uint16_t>(pair >> 16)),
                                      ptx::cvt_f32_f16(static_cast<uint16_t>(pair)));
      }
      words[2 * i + j] = pair;
    }
  }
}

}  // namespace blockscale::decoding
