// A thread's consecutive elements of one row: loading them, and their largest magnitude.
#pragma once

#include "core/format.h"
#include "core/packing.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "device/vector.h"

namespace blockscale::encoding {

inline constexpr uint32_t kInfinityBits = 0x7F800000u;
inline constexpr uint32_t kLargestFiniteBits = 0x7F7FFFFFu;

/// Bits of a magnitude (no NaN), infinity as the largest finite number.
BLOCKSCALE_DEVICE float finite_magnitude(uint32_t bits) {
  constexpr uint32_t kLimit = kLargestFiniteBits;
  return bit_cast<float>(bits < kLimit ? bits : uint32_t{kLimit});
}

/// kCount elements as they lie in memory: f16 and bf16 two in a word, f32 one.
template <Format kFormat, int kCount>
struct Chunk {
  static constexpr int kElementBytes = kFormat == Format::f32 ? 4 : 2;
  static constexpr int kWords = kCount * kElementBytes / 4;
  uint32_t word[kWords];
};

/// Element i in f32, exactly. i is known to the compiler wherever loops are unrolled.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE float value_at(const Chunk<kFormat, kCount>& chunk, int i) {
  if constexpr (kFormat == Format::f32) {
    return bit_cast<float>(chunk.word[i]);
  } else {
    const uint32_t word = chunk.word[i / 2];
    if constexpr (kFormat == Format::bf16) {
      return bit_cast<float>(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    } else {
      return ptx::cvt_f32_f16(static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16));
    }
  }
}

template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void clear(Chunk<kFormat, kCount>& chunk) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Chunk<kFormat, kCount>::kWords; ++i) chunk.word[i] = 0;
}

/// Two chunks of elements that alternate become one of the first and one of the second of each
/// pair.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void separate_pairs(Chunk<kFormat, kCount> (&chunks)[2]) {
  constexpr int kWords = Chunk<kFormat, kCount>::kWords;
  const Chunk<kFormat, kCount> pairs[2] = {chunks[0], chunks[1]};
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    const uint32_t a = pairs[2 * i / kWords].word[2 * i % kWords];
    const uint32_t b = pairs[2 * i / kWords].word[2 * i % kWords + 1];
    constexpr bool kWide = kFormat == Format::f32;
    chunks[0].word[i] = kWide ? a : ptx::prmt(a, b, 0x5410);
    chunks[1].word[i] = kWide ? b : ptx::prmt(a, b, 0x7632);
  }
}

/// Loads a whole chunk from an address that is a multiple of 16 bytes, or of its size. With
/// ld.global, as all that another kernel may have written is loaded: ptxas is free to move
/// ld.global.nc to the other side of griddepcontrol.wait, and does.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_vectors(Chunk<kFormat, kCount>& chunk, const uint8_t* from) {
  constexpr int kWords = Chunk<kFormat, kCount>::kWords;
  constexpr int kAtOnce = kWords < 4 ? kWords : 4;
  static_assert(kWords % kAtOnce == 0);
  using Words = device::Vector<uint32_t, kAtOnce>;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kWords / kAtOnce; ++i) {
    const Words words = ptx::ld_global(reinterpret_cast<const Words*>(from) + i);
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kAtOnce; ++j) chunk.word[kAtOnce * i + j] = words.at[j];
  }
}

/// Loads the first `count` elements (none if count <= 0) one by one; the others are 0.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_elements(Chunk<kFormat, kCount>& chunk, const uint8_t* from,
                                     int32_t count) {
  clear(chunk);
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (i >= count) continue;
    if constexpr (kFormat == Format::f32) {
      chunk.word[i] = ptx::ld_global(reinterpret_cast<const uint32_t*>(from) + i);
    } else {
      const uint32_t bits = ptx::ld_global(reinterpret_cast<const uint16_t*>(from) + i);
      chunk.word[i / 2] |= i % 2 == 0 ? bits : bits << 16;
    }
  }
}

/// Loads `count` elements the faster way that is possible; those beyond are 0, and count may be
/// below 0. `whole`: there are at least kCount, and the address is a multiple of 16 bytes.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_part(Chunk<kFormat, kCount>& chunk, const uint8_t* from, int32_t count,
                                 bool whole) {
  if (whole) {
    load_vectors(chunk, from);
  } else {
    load_elements(chunk, from, count);
  }
}

/// Magnitudes of a chunk's format on their way to a maximum: two halves of a word for f16 and bf16,
/// the bits of an f32 else. With kPoison a NaN makes the result a NaN (whose bits are above those
/// of infinity), else it does not count.
template <Format kFormat, bool kPoison>
struct Amax {
  uint32_t bits = 0;

  BLOCKSCALE_DEVICE void fold_magnitudes(uint32_t other) {
    if constexpr (kFormat == Format::f32) {
      const float a = bit_cast<float>(bits);
      const float b = bit_cast<float>(other);
      bits = bit_cast<uint32_t>(kPoison ? ptx::max_nan(a, b) : ptx::max(a, b));
    } else if constexpr (kFormat == Format::bf16) {
      bits = kPoison ? ptx::max_nan_bf16x2(bits, other) : ptx::max_bf16x2(bits, other);
    } else {
      bits = kPoison ? ptx::max_nan_f16x2(bits, other) : ptx::max_f16x2(bits, other);
    }
  }

  BLOCKSCALE_DEVICE void fold(uint32_t word) {
    if constexpr (kFormat == Format::f32) {
      fold_magnitudes(bit_cast<uint32_t>(ptx::abs(bit_cast<float>(word))));
    } else if constexpr (kFormat == Format::bf16) {
      fold_magnitudes(ptx::abs_bf16x2(word));
    } else {
      fold_magnitudes(ptx::abs_f16x2(word));
    }
  }

  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& chunk) {
    constexpr int kWords = Chunk<kFormat, kCount>::kWords;
    // With more words registers for pairs are lacking.
    constexpr bool kPairs = kFormat == Format::f32 && kPoison && kWords % 4 == 0 && kWords <= 16;
    if constexpr (kPairs) {
      // Two pairs at a time: magnitudes, NaN included, compare as their bits do, three at once.
      const auto pair = [&](int i) {
        const float a = ptx::abs(bit_cast<float>(chunk.word[i]));
        return bit_cast<uint32_t>(ptx::max_nan(a, ptx::abs(bit_cast<float>(chunk.word[i + 1]))));
      };
      const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kWords; i += 4) bits = larger(larger(bits, pair(i)), pair(i + 2));
    } else {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kWords; ++i) fold(chunk.word[i]);
    }
  }

  template <int kCount, int kChunks>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount> (&chunks)[kChunks]) {
    BLOCKSCALE_UNROLL
    for (const Chunk<kFormat, kCount>& chunk : chunks) fold(chunk);
  }

  /// The bits of the magnitude in f32; above kInfinityBits for NaN.
  BLOCKSCALE_DEVICE uint32_t f32_bits() const {
    if constexpr (kFormat == Format::f32) {
      return bits;
    } else {
      const uint32_t lower = bits & 0xFFFFu;
      const uint32_t upper = bits >> 16;
      const uint32_t larger = lower > upper ? lower : upper;
      if constexpr (kFormat == Format::bf16) return larger << 16;
      return bit_cast<uint32_t>(ptx::cvt_f32_f16(static_cast<uint16_t>(larger)));
    }
  }
};

}  // namespace blockscale::encoding
