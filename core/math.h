// Elementary functions whose bits are the same on every CPU and every GPU: math-inl.h for float.
#pragma once

#include "core/activation_tail.h"
#include "core/config.h"
#include "core/input_transform.h"

// The device's form of an expression, or the host's.
#if defined(__CUDA_ARCH__)
#define BLOCKSCALE_ON_DEVICE(device, host) (device)
#else
#define BLOCKSCALE_ON_DEVICE(device, host) (host)
#endif

namespace blockscale::math {

/// Arithmetic of float: every operation rounded once to nearest even, subnormals kept. On a device
/// these are the intrinsics that no compiler option changes. Vectors have the same members, and so
/// has a kernel's own arithmetic (device/math.h).
struct ScalarMath {
  using Number = float;

  BLOCKSCALE_HD static float set(float x) { return x; }
  BLOCKSCALE_HD static float add(float a, float b) {
    return BLOCKSCALE_ON_DEVICE(__fadd_rn(a, b), a + b);
  }
  BLOCKSCALE_HD static float mul(float a, float b) {
    return BLOCKSCALE_ON_DEVICE(__fmul_rn(a, b), a * b);
  }
  BLOCKSCALE_HD static float fma(float a, float b, float c) {
    return BLOCKSCALE_ON_DEVICE(__fmaf_rn(a, b, c), __builtin_fmaf(a, b, c));
  }
  /// The other one if one is NaN.
  BLOCKSCALE_HD static float min(float a, float b) {
    return BLOCKSCALE_ON_DEVICE(fminf(a, b), __builtin_fminf(a, b));
  }
  /// NaN stays.
  BLOCKSCALE_HD static float at_most(float x, float limit) { return x > limit ? limit : x; }
  BLOCKSCALE_HD static float at_least(float x, float limit) { return x < limit ? limit : x; }
  /// c - a b, rounded once.
  BLOCKSCALE_HD static float fnma(float a, float b, float c) { return fma(-a, b, c); }

  BLOCKSCALE_HD static float abs(float x) {
    return BLOCKSCALE_ON_DEVICE(fabsf(x), __builtin_fabsf(x));
  }
  /// 0 for x < 0; NaN and -0 stay.
  BLOCKSCALE_HD static float zero_if_negative(float x) { return x < 0.0f ? 0.0f : x; }
};

#define BLOCKSCALE_MATH BLOCKSCALE_HD inline
#include "core/math-inl.h"
#undef BLOCKSCALE_MATH

/// The functions for float; their errors are stated in docs/numerics.md.
BLOCKSCALE_HD inline float silu(float x) {
  return silu<ScalarMath>(x);
}
BLOCKSCALE_HD inline float gelu(float x, const GeluTail& tail) {
  return gelu<ScalarMath>(x, tail);
}
BLOCKSCALE_HD inline float gelu_tanh(float x) {
  return gelu_tanh<ScalarMath>(x);
}
BLOCKSCALE_HD inline float gelu_erf(float x) {
  return gelu_erf<ScalarMath>(x);
}
BLOCKSCALE_HD inline float swiglu(float gate, float up) {
  return swiglu<ScalarMath>(gate, up);
}
BLOCKSCALE_HD inline float clamped_swiglu(float gate, float up, const SwigluNumbers& numbers) {
  return clamped_swiglu<ScalarMath>(gate, up, numbers);
}
BLOCKSCALE_HD inline float modulate(float x, float scale, float shift) {
  return modulate<ScalarMath>(x, scale, shift);
}
BLOCKSCALE_HD inline float rms_norm(float x, float factor, float weight) {
  return rms_norm<ScalarMath>(x, factor, weight);
}

/// 1 / sqrt(x), from two correctly rounded operations.
BLOCKSCALE_HD inline float reciprocal_sqrt(float x) {
  return BLOCKSCALE_ON_DEVICE(__frcp_rn(__fsqrt_rn(x)), 1.0f / __builtin_sqrtf(x));
}

}  // namespace blockscale::math

#undef BLOCKSCALE_ON_DEVICE
