// The largest magnitude of GELU of 16-bit elements, without computing it for each: it grows with x
// where x >= 0, and stays below 0.1705 where x < 0. So where GELU of the largest x is at least
// that, it is the largest magnitude (cuda_math_emulated_test.cpp has every number).
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/packed.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// GELU of negative numbers has smaller magnitudes.
inline constexpr float kGeluBelowZero = 0.1705f;
/// GELU of this and larger numbers has larger ones.
inline constexpr float kLeastOrderedX = 0.28125f;

/// The largest x, -infinity at first. With kPoison a NaN makes it a NaN, else it does not count.
template <Format kFormat, bool kPoison = false>
struct LargestX {
  static_assert(kFormat == Format::bf16 || kFormat == Format::f16);
  static constexpr bool kIsBf16 = kFormat == Format::bf16;

  /// Two numbers: the larger one is the largest.
  uint32_t bits = kIsBf16 ? 0xFF80FF80u : 0xFC00FC00u;

  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& x) {
    BLOCKSCALE_UNROLL
    for (const uint32_t word : x.word) fold(word);
  }
  BLOCKSCALE_DEVICE void fold(uint32_t word) {
    if constexpr (kPoison) {
      bits = kIsBf16 ? ptx::max_nan_bf16x2(bits, word) : ptx::max_nan_f16x2(bits, word);
    } else {
      bits = kIsBf16 ? ptx::max_bf16x2(bits, word) : ptx::max_f16x2(bits, word);
    }
  }
  /// The bits of another one, as Largest does that of magnitudes.
  BLOCKSCALE_DEVICE void fold_magnitudes(uint32_t other) { fold(other); }

  BLOCKSCALE_DEVICE float value() const {
    const Chunk<kFormat, 2> x = {{bits}};
    return kPoison ? ptx::max_nan(value_at(x, 0), value_at(x, 1))
                   : ptx::max(value_at(x, 0), value_at(x, 1));
  }
};

/// As Largest of the values of GELU, but folds chunks of x: the more at once, the fewer must be
/// computed. What counts is the largest of a warp's lanes.
template <InputTransform kTransform, Format kFormat>
class LargestGelu {
 public:
  /// All lanes of a warp call it: the x of one may be large enough for all.
  template <int kCount, int kChunks>
  BLOCKSCALE_DEVICE void fold_of_warp(const Chunk<kFormat, kCount> (&x)[kChunks]) {
    fold_x(x);
    if (!ptx::vote_sync_any(ptx::kFullMask, is_ordered())) fold_values(x);
  }
  template <int kCount, int kChunks>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount> (&x)[kChunks]) {
    fold_x(x);
    if (!is_ordered()) fold_values(x);
  }

  /// The bits of the magnitude in f32.
  BLOCKSCALE_DEVICE uint32_t f32_bits() const {
    if (!is_ordered()) return computed_.f32_bits();
    return bit_cast<uint32_t>(gelu<kTransform>(largest_x_.value()));
  }

 private:
  BLOCKSCALE_DEVICE bool is_ordered() const { return largest_x_.value() >= kLeastOrderedX; }

  template <int kCount, int kChunks>
  BLOCKSCALE_DEVICE void fold_x(const Chunk<kFormat, kCount> (&x)[kChunks]) {
    BLOCKSCALE_UNROLL
    for (const Chunk<kFormat, kCount>& chunk : x) largest_x_.fold(chunk);
  }
  template <int kCount, int kChunks>
  BLOCKSCALE_DEVICE void fold_values(const Chunk<kFormat, kCount> (&x)[kChunks]) {
    BLOCKSCALE_UNROLL
    for (const Chunk<kFormat, kCount>& chunk : x) {
      Chunk<Format::f32, kCount> values;
      gelu_chunk<kTransform>(values, chunk);
      computed_.fold(values);
    }
  }

  LargestX<kFormat> largest_x_;
  Largest<Format::f32, false> computed_;  // while all x are below kLeastOrderedX
};

/// The largest of what GELU gives.
struct LargestGeluBits {
  uint32_t bits;  // above kInfinityBits for NaN
  bool ordered;   // it follows from the largest x
};

/// The largest magnitude of GELU of the chunks that kLanes neighbouring lanes hold, with kPoison
/// NaN, if there is one. Where it does not follow from the largest x it is that of value_of(x): of
/// exact values or others. All lanes of a warp call it.
template <InputTransform kTransform, bool kPoison, uint32_t kLanes, Format kFormat, int kCount,
          int kChunks, class ValueOf>
BLOCKSCALE_DEVICE LargestGeluBits largest_gelu_of_lanes(const Chunk<kFormat, kCount> (&x)[kChunks],
                                                        const ValueOf& value_of) {
  LargestX<kFormat, kPoison> largest_x;
  BLOCKSCALE_UNROLL
  for (const Chunk<kFormat, kCount>& chunk : x) largest_x.fold(chunk);
  // Numbers above 0 compare as their bits do.
  const float of_thread = largest_x.value();
  const uint32_t largest =
      largest_of_lanes<kLanes>(of_thread <= 0 ? 0u : bit_cast<uint32_t>(of_thread));
  const bool ordered = largest >= bit_cast<uint32_t>(kLeastOrderedX);
  const uint32_t of_largest = bit_cast<uint32_t>(gelu<kTransform>(bit_cast<float>(largest)));
  if (ptx::vote_sync_all(ptx::kFullMask, ordered)) return {of_largest, true};
  Largest<Format::f32, kPoison> computed;
  BLOCKSCALE_UNROLL
  for (const Chunk<kFormat, kCount>& chunk : x) {
    Chunk<Format::f32, kCount> values;
    fill_values(values, [&](int i) { return value_of(value_at(chunk, i)); });
    computed.fold(values);
  }
  const uint32_t of_all = largest_of_lanes<kLanes>(computed.f32_bits());
  return {ordered ? of_largest : of_all, ordered};
}

/// The same of the whole warp's chunks, from exact values.
template <InputTransform kTransform, Format kFormat, int kCount, int kChunks>
BLOCKSCALE_DEVICE uint32_t largest_gelu_of_warp(const Chunk<kFormat, kCount> (&x)[kChunks]) {
  return largest_gelu_of_lanes<kTransform, false, 32>(x,
                                                      [](float y) { return gelu<kTransform>(y); })
      .bits;
}

}  // namespace blockscale::quantize_sm90
