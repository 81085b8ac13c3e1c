// Arithmetic that is built from instructions, for kernels.
#pragma once

#include "core/math.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"

namespace blockscale::device {

/// 1 / a, correctly rounded, for 2^-126 <= |a| <= 2^126: rcp.rn without its branch for the numbers
/// beyond: one Newton step with a fused remainder from the hardware's approximation. That this
/// rounds correctly is a fact about that approximation, not about every one within a unit of the
/// last place: ops/quantize/test/math_gpu_test.cpp compares all such numbers on the device.
BLOCKSCALE_DEVICE float reciprocal_of_normal(float a) {
  const float approximation = ptx::rcp_approx_ftz(a);
  const float excess = ptx::fma_rn(a, approximation, -1.0f);
  return ptx::fma_rn(approximation, -excess, approximation);
}

/// The arithmetic of core/math-inl.h in instructions.
struct KernelMath {
  using Number = float;

  BLOCKSCALE_DEVICE static float set(float x) { return x; }
  BLOCKSCALE_DEVICE static float add(float a, float b) { return ptx::add_rn(a, b); }
  BLOCKSCALE_DEVICE static float mul(float a, float b) { return ptx::mul_rn(a, b); }
  BLOCKSCALE_DEVICE static float fma(float a, float b, float c) { return ptx::fma_rn(a, b, c); }
  BLOCKSCALE_DEVICE static float fnma(float a, float b, float c) { return ptx::fma_rn(-a, b, c); }
  BLOCKSCALE_DEVICE static float min(float a, float b) { return ptx::min(a, b); }
  BLOCKSCALE_DEVICE static float at_most(float x, float limit) { return ptx::min_nan(x, limit); }
  BLOCKSCALE_DEVICE static float at_least(float x, float limit) { return ptx::max_nan(x, limit); }
  BLOCKSCALE_DEVICE static float abs(float x) { return ptx::abs(x); }
  /// -0 for x < 0, which sums with what is not 0 do not tell from 0.
  BLOCKSCALE_DEVICE static float zero_if_negative(float x) { return ptx::max_nan(x, -0.0f); }
};

}  // namespace blockscale::device
