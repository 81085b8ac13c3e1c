// GELU and silu as data: each is max(x, 0) - |x| tail(|x|) (core/math-inl.h), and they differ in
// their tails only, so that one kernel may take any of a kind as a parameter.
#pragma once

#include "core/config.h"

namespace blockscale::math {

/// A tail, which falls from 1/2 to 0: the eighth power of a polynomial, which is positive for
/// magnitudes of 0 to `end`. Those beyond count as `end`.
template <int kDegree>
struct ActivationTail {
  float end;
  float root[kDegree + 1];  // coefficients, from the constant one up
};
using GeluTail = ActivationTail<6>;
using SiluTail = ActivationTail<10>;

// From tools/fit_polynomials.py.

/// (1 - tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
BLOCKSCALE_TABLE GeluTail kGeluTanh = {
    5.0f,
    {0x1.d57fd6p-1f, -0x1.75b84ap-4f, -0x1.09f0c6p-5f, -0x1.68d7c8p-12f, 0x1.eb5ac6p-10f,
     -0x1.5373c6p-12f, 0x1.8794acp-16f}};

/// (1 - erf(x / sqrt 2)) / 2, the normal distribution's tail.
BLOCKSCALE_TABLE GeluTail kGeluErf = {
    5.4f,
    {0x1.d5824cp-1f, -0x1.77318ep-4f, -0x1.00b2aep-5f, -0x1.a7a688p-10f, 0x1.258ad2p-9f,
     -0x1.1cdb7p-12f, 0x1.0dc6d2p-17f}};

/// 1 - sigmoid(x) = 1 / (1 + e^x).
BLOCKSCALE_TABLE SiluTail kSilu = {
    15.8f,
    {0x1.d57f9ap-1f, -0x1.d4076ap-5f, -0x1.a42d66p-7f, 0x1.95b7dcp-11f, 0x1.2483b8p-10f,
     -0x1.938c5cp-12f, 0x1.0d2c0cp-14f, -0x1.a7f3a4p-18f, 0x1.8ff454p-22f, -0x1.a20ed4p-27f,
     0x1.743136p-33f}};

}  // namespace blockscale::math
