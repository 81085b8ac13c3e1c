// What a tensor scale does to sums.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/global_memory.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

/// That of one matrix, as it was loaded.
class TensorFactor {
 public:
  TensorFactor() = default;
  BLOCKSCALE_DEVICE TensorFactor(const TensorScale& scale, uint32_t matrix)
      : value_(scale.data == nullptr ? 1.0f : ptx::ld_global(scale.data + matrix * scale.stride)),
        divides_(scale.divides) {}

  BLOCKSCALE_DEVICE float operator()(float sum) const {
    return divides_ ? ptx::div_rn(sum, value_) : ptx::mul_rn(sum, value_);
  }
  /// Of all of them, with one branch.
  template <int kSums>
  BLOCKSCALE_DEVICE void apply(float (&sums)[kSums]) const {
    if (divides_) {
      BLOCKSCALE_UNROLL
      for (float& sum : sums) sum = ptx::div_rn(sum, value_);
    } else {
      BLOCKSCALE_UNROLL
      for (float& sum : sums) sum = ptx::mul_rn(sum, value_);
    }
  }

 private:
  float value_;
  bool divides_;
};

}  // namespace blockscale
