// The largest magnitude of GELU of 16-bit elements, without computing it for each: it grows with x
// where x >= 0, and below 0 stays within 0.18. So where some x is at least 1/2 the largest of them
// has it (cuda_math_emulated_test.cpp has every number).
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/packed.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_transform.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// As Largest of the values of GELU, but folds chunks of x.
template <InputTransform kTransform, Format kFormat>
class LargestGelu {
  static_assert(kFormat != Format::f32);

 public:
  template <int kCount>
  BLOCKSCALE_DEVICE void fold(const Chunk<kFormat, kCount>& x) {
    BLOCKSCALE_UNROLL
    for (const uint32_t word : x.word) {
      largest_x_ = kIsBf16 ? ptx::max_bf16x2(largest_x_, word) : ptx::max_f16x2(largest_x_, word);
    }
    if (largest_x() >= kLeastOrdered) return;
    Chunk<Format::f32, kCount> values;
    gelu_chunk<kTransform>(values, x);
    computed_.fold(values);
  }

  /// The bits of the magnitude in f32.
  BLOCKSCALE_DEVICE uint32_t f32_bits() const {
    const float x = largest_x();
    if (!(x >= kLeastOrdered)) return computed_.f32_bits();
    return bit_cast<uint32_t>(gelu<kTransform>(x));
  }

 private:
  static constexpr bool kIsBf16 = kFormat == Format::bf16;
  static constexpr float kLeastOrdered = 0.5f;

  BLOCKSCALE_DEVICE float largest_x() const {
    const Chunk<kFormat, 2> x = {{largest_x_}};
    return ptx::max(value_at(x, 0), value_at(x, 1));
  }

  uint32_t largest_x_ = kIsBf16 ? 0xFF80FF80u : 0xFC00FC00u;  // -infinity
  Largest<Format::f32, false> computed_;                      // while all x are below 1/2
};

}  // namespace blockscale::quantize_sm90
