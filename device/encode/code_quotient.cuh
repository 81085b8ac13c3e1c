// Quotients of which nothing but their e4m3 codes is wanted.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"

namespace blockscale::encoding {

/// x / s in two operations, which may miss the rounded quotient, but not its side of the numbers
/// between codes, where has_code_quotients(s) (numerics.md, "Quotients for codes").
///
/// Its two parts of 1 / s are positive, so that a quotient of -0 stays -0.
class CodeQuotient {
 public:
  /// `reciprocal` is 1 / s, rounded.
  BLOCKSCALE_DEVICE CodeQuotient(float s, float reciprocal)
      : upper_(bit_cast<float>(bit_cast<uint32_t>(reciprocal) - 1)),
        lower_(ptx::mul_rn(ptx::fma_rn(-upper_, s, 1.0f), reciprocal)) {}

  BLOCKSCALE_DEVICE float operator()(float x) const {
    return ptx::fma_rn(x, upper_, ptx::mul_rn(x, lower_));
  }

 private:
  float upper_;
  float lower_;
};

/// Not of scales whose significand is all but a multiple of 2^20: 1 of 8000.
BLOCKSCALE_DEVICE bool has_code_quotients(float s) {
  constexpr uint32_t kLeast = 0x1F800000u, kMost = 0x5F800000u;  // 2^-64, 2^64
  constexpr uint32_t kNear = 64, kStep = 1 << 20;
  const uint32_t bits = bit_cast<uint32_t>(s), low = bits % kStep;
  const bool is_near = low != 0 && (low + kNear) % kStep < 2 * kNear;
  return bits - kLeast <= kMost - kLeast && !is_near;
}

}  // namespace blockscale::encoding
