// What a tensor scale does to sums.
#pragma once

#include "device/encode/scale.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/global_memory.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

/// That of one matrix, as it was loaded.
class TensorFactor {
 public:
  TensorFactor() = default;
  BLOCKSCALE_DEVICE TensorFactor(float value, bool divides) : value_(value), divides_(divides) {}
  BLOCKSCALE_DEVICE TensorFactor(const TensorScale& scale, uint32_t matrix)
      : value_(scale.data == nullptr ? 1.0f : ptx::ld_global(scale.data + matrix * scale.stride)),
        divides_(scale.divides) {}

  BLOCKSCALE_DEVICE float operator()(float sum) const {
    return divides_ ? ptx::div_rn(sum, value_) : ptx::mul_rn(sum, value_);
  }
  /// The same of all of them, with one branch. A division is 10 instructions, and of 0, as rows
  /// that there are not have it, a call; its quotient by a reciprocal is three. Where that will not
  /// do, sums go round through one place, so that there is one division.
  template <int kSums>
  BLOCKSCALE_DEVICE void apply(float (&sums)[kSums]) const {
    if (!divides_) {
      BLOCKSCALE_UNROLL
      for (float& sum : sums) sum = ptx::mul_rn(sum, value_);
    } else if (has_normal_quotients(sums)) {
      const encoding::Quotient quotient{value_, ptx::rcp_rn(value_)};
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = quotient(sums[i]);
    } else {
      BLOCKSCALE_NO_UNROLL
      for (int i = 0; i < kSums; ++i) {
        const float divided = ptx::div_rn(sums[0], value_);
        BLOCKSCALE_UNROLL
        for (int j = 0; j + 1 < kSums; ++j) sums[j] = sums[j + 1];
        sums[kSums - 1] = divided;
      }
    }
  }

 private:
  /// Whether all quotients, but those of 0, and what is left of their sums are normal numbers.
  template <int kSums>
  BLOCKSCALE_DEVICE bool has_normal_quotients(const float (&sums)[kSums]) const {
    constexpr uint32_t kLeastValue = 0x2F800000u, kMostValue = 0x4F800000u;  // 2^-32, 2^32
    constexpr uint32_t kLeastSum = 0x12800000u;                              // 2^-90
    constexpr float kMostSum = 0x1p94f;
    // Twice the magnitude's bits, less twice the least's: that wraps for what is below the least,
    // of 0 to exactly less twice the least's, and of other numbers to more.
    uint32_t most_below = 0;
    float most = 0;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kSums; ++i) {
      const uint32_t below = 2 * bit_cast<uint32_t>(sums[i]) - 2 * kLeastSum;
      most_below = most_below < below ? below : most_below;
      most = ptx::max(most, ptx::abs(sums[i]));
    }
    return bit_cast<uint32_t>(value_) - kLeastValue <= kMostValue - kLeastValue &&
           most_below <= 0u - 2 * kLeastSum && most <= kMostSum;
  }

  float value_;
  bool divides_;
};

}  // namespace blockscale
