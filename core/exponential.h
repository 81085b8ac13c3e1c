// e^x and what follows from it, with the same bits on every CPU and every GPU: fixed sequences of
// correctly rounded f32 operations.
#pragma once

#include "core/config.h"
#include "core/math.h"

namespace blockscale::math {

/// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2: a fit at Chebyshev nodes, within 2^-26 of e^r.
struct ExponentialTail {
  float at[5];
};
BLOCKSCALE_TABLE ExponentialTail kExponentialTail = {
    {0.5f, 0x1.5554dcp-3f, 0x1.555518p-5f, 0x1.120c62p-7f, 0x1.6d11fep-10f}};

/// a / b, rounded once to nearest even.
BLOCKSCALE_HD inline float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// 2^n for -126 <= n <= 127.
BLOCKSCALE_HD inline float power_of_two(int32_t n) {
  return bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

/// e^x within 1.1 units of the last place, subnormal results included. 0 gives 1, what is above the
/// largest f32 Inf, what is below half of the smallest subnormal 0; NaN gives NaN. A larger x never
/// gives less (core/exponential_test.cpp).
BLOCKSCALE_HD inline float exponential(float x) {
  using M = ScalarMath;
  // Beyond these results are Inf and 0 anyhow, and powers of two would have no exponent.
  constexpr float kLeast = -104.0f, kMost = 89.0f;
  if (x != x) return x;
  const float cut = x < kLeast ? kLeast : x > kMost ? kMost : x;
  // x = n ln(2) + r. The sum with 1.5 * 2^23 rounds to an integer, which stands in its last bits.
  constexpr float kShift = 0x1.8p23f, kLog2E = 0x1.715476p0f;
  const float shifted = M::fma(cut, kLog2E, kShift);
  const float n = M::add(shifted, -kShift);
  // ln(2) in two parts, of which n times the first is exact.
  constexpr float kLn2 = 0x1.63p-1f, kRestOfLn2 = -0x1.bd0106p-13f;
  const float r = M::fma(-n, kRestOfLn2, M::fma(-n, kLn2, cut));
  const float tail = polynomial<M>(r, kExponentialTail.at);
  const float of_r = M::add(M::fma(M::mul(r, r), tail, r), 1.0f);
  // In two steps, so that neither factor overflows; only the second one rounds.
  const int32_t power = static_cast<int32_t>(n), half = power / 2;
  return M::mul(M::mul(of_r, power_of_two(half)), power_of_two(power - half));
}

/// 1 / (1 + e^-x), in [0, 1].
BLOCKSCALE_HD inline float sigmoid(float x) {
  return divide(1.0f, ScalarMath::add(1.0f, exponential(-x)));
}

}  // namespace blockscale::math
