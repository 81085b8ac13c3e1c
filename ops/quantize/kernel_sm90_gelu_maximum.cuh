// The largest magnitude of GELU of 16-bit elements, without computing it for each: it grows with x
// where x >= 0, and stays below 1/4 where x < 0. So where GELU of the largest x is at least that,
// it is the largest magnitude (cuda_math_emulated_test.cpp has every number).
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/packed.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// GELU of negative numbers has smaller magnitudes.
inline constexpr float kGeluBelowZero = 0.25f;
/// GELU of this and larger numbers has larger ones.
inline constexpr float kLeastOrderedX = 0.5f;

/// The largest x, NaN not counted, -infinity at first.
template <Format kFormat>
class LargestX {
  static_assert(kFormat == Format::bf16 || kFormat == Format::f16);
  static constexpr bool kIsBf16 = kFormat == Format::bf16;

 public:
  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& x) {
    BLOCKSCALE_UNROLL
    for (const uint32_t word : x.word) fold(word);
  }
  BLOCKSCALE_DEVICE void fold(uint32_t word) {
    word_ = kIsBf16 ? ptx::max_bf16x2(word_, word) : ptx::max_f16x2(word_, word);
  }

  /// Two numbers: the larger one is the largest.
  BLOCKSCALE_DEVICE uint32_t word() const { return word_; }
  BLOCKSCALE_DEVICE float value() const {
    const Chunk<kFormat, 2> x = {{word_}};
    return ptx::max(value_at(x, 0), value_at(x, 1));
  }

 private:
  uint32_t word_ = kIsBf16 ? 0xFF80FF80u : 0xFC00FC00u;
};

/// As Largest of the values of GELU, but folds chunks of x.
template <InputTransform kTransform, Format kFormat>
class LargestGelu {
 public:
  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& x) {
    largest_x_.fold(x);
    if (largest_x_.value() >= kLeastOrderedX) return;
    Chunk<Format::f32, kCount> values;
    gelu_chunk<kTransform>(values, x);
    computed_.fold(values);
  }

  /// The bits of the magnitude in f32.
  BLOCKSCALE_DEVICE uint32_t f32_bits() const {
    const float x = largest_x_.value();
    if (!(x >= kLeastOrderedX)) return computed_.f32_bits();
    return bit_cast<uint32_t>(gelu<kTransform>(x));
  }

 private:
  LargestX<kFormat> largest_x_;
  Largest<Format::f32, false> computed_;  // while all x are below kLeastOrderedX
};

}  // namespace blockscale::quantize_sm90
