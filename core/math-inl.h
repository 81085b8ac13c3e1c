// Functions that quantisers fuse with their input, for numbers and for vectors: each is stated
// once, as a fixed sequence of correctly rounded f32 operations, so that every instruction set and
// every GPU gives the same bits. Their errors are those that docs/numerics.md allows;
// core/math_test.cpp finds them over all f32 inputs.
//
// Not a header of its own: it is included inside a namespace, once for each kind of number
// (core/math.h for float; ops/quantize/transform-inl.h for vectors, once per SIMD target), with
// BLOCKSCALE_MATH as the functions' qualifiers. `M` is the arithmetic of a kind of number, see
// ScalarMath in core/math.h.

/// c0 + c1 x + c2 x^2 + ..., from the highest term down, one fma each.
template <class M, class... Higher>
BLOCKSCALE_MATH typename M::Number polynomial(typename M::Number x, float c0, Higher... higher) {
  if constexpr (sizeof...(higher) == 0) {
    return M::set(c0);
  } else {
    return M::fma(polynomial<M>(x, higher...), x, M::set(c0));
  }
}

/// Added to a number of at most 2^21, rounds it to an integer, ties to even, and leaves that in the
/// low bits of the sum.
inline constexpr float kIntegerShifter = 0x1.8p23f;

/// e^x, 1 at 0. The result, 1 + it and their reciprocals are normal numbers: an x beyond +-87
/// counts as +-87. NaN gives an arbitrary number.
template <class M>
BLOCKSCALE_MATH typename M::Number exp(typename M::Number x) {
  constexpr float kLog2EHigh = 0x1.715476p0f;  // log2(e), rounded
  constexpr float kLog2ELow = 0x1.4ae0cp-26f;  // log2(e) - kLog2EHigh
  const auto clamped = M::min(M::max(x, M::set(-87.0f)), M::set(87.0f));
  // e^x = 2^exponent 2^fraction with |fraction| <= 1/2.
  const auto shifted = M::fma(clamped, M::set(kLog2EHigh), M::set(kIntegerShifter));
  const auto exponent = M::sub(shifted, M::set(kIntegerShifter));
  const auto coarse = M::fms(clamped, M::set(kLog2EHigh), exponent);
  const auto fraction = M::fma(clamped, M::set(kLog2ELow), coarse);
  const auto power = polynomial<M>(fraction, 1.0f, 0x1.62e432p-1f, 0x1.ebfbe6p-3f, 0x1.c6ada6p-5f,
                                   0x1.3b21c6p-7f, 0x1.5fc00ap-10f, 0x1.4bc7b6p-13f);
  return M::add_exponent(power, shifted);
}

/// 2^x for -126 <= x <= 126, to about a unit of the last place; 1 + 2^-23 at 0. NaN gives an
/// arbitrary number. For tails that are added to something larger.
template <class M>
BLOCKSCALE_MATH typename M::Number exp2_short(typename M::Number x) {
  const auto shifted = M::add(x, M::set(kIntegerShifter));
  const auto fraction = M::sub(x, M::sub(shifted, M::set(kIntegerShifter)));
  const auto power = polynomial<M>(fraction, 0x1.000002p0f, 0x1.62e438p-1f, 0x1.ebf80ap-3f,
                                   0x1.c6a2dap-5f, 0x1.3d5a08p-7f, 0x1.655eep-10f);
  return M::add_exponent(power, shifted);
}

/// Where these tails end.
inline constexpr float kTanhTailEnd = 10.0f;
inline constexpr float kErfTailEnd = 8.0f;

/// 2u log2(e) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class M>
BLOCKSCALE_MATH typename M::Number tanh_exponent(typename M::Number x) {
  constexpr float kLinear = 0x1.26aec2p1f;  // 2 sqrt(2 / pi) log2(e),
  constexpr float kCubic = 0x1.a5a7dp-4f;   // and that times 0.044715
  return M::mul(x, M::fma(M::mul(x, x), M::set(kCubic), M::set(kLinear)));
}

/// (1 - tanh(u)) / 2 = 1 / (1 + e^2u) with this u, for 0 <= x <= 10. Unlike 1 - tanh it keeps its
/// relative accuracy where tanh is near 1.
template <class M>
BLOCKSCALE_MATH typename M::Number tanh_tail(typename M::Number x) {
  return M::reciprocal(M::add(M::set(1.0f), exp2_short<M>(tanh_exponent<M>(x))));
}

/// The logarithm, to base 2, of erf_tail.
template <class M>
BLOCKSCALE_MATH typename M::Number erf_exponent(typename M::Number x) {
  return polynomial<M>(x, -1.0f, -0x1.26b01ap0f, -0x1.d613ecp-2f, -0x1.b12056p-5f, 0x1.ebfd68p-8f,
                       -0x1.ab2426p-12f, -0x1.b00a6p-14f, 0x1.f41d66p-16f, -0x1.e62a92p-19f,
                       0x1.e447a6p-23f, -0x1.90e924p-28f);
}

/// (1 - erf(x / sqrt 2)) / 2, the normal distribution's tail, for 0 <= x <= 8: 2 to the power of a
/// polynomial, which needs no division and keeps its relative accuracy.
template <class M>
BLOCKSCALE_MATH typename M::Number erf_tail(typename M::Number x) {
  return exp2_short<M>(erf_exponent<M>(x));
}

/// 1 / (1 + e^-x), 1/2 at 0. NaN gives an arbitrary number.
template <class M>
BLOCKSCALE_MATH typename M::Number sigmoid(typename M::Number x) {
  return M::reciprocal(M::add(M::set(1.0f), exp<M>(M::negate(x))));
}

/// c[0] + c[1] x + c[2] x^2 + ..., from the highest term down, one fma each.
template <class M, int kTerm = 0, int kTerms>
BLOCKSCALE_MATH typename M::Number polynomial(typename M::Number x, const float (&c)[kTerms]) {
  if constexpr (kTerm + 1 == kTerms) {
    return M::set(c[kTerm]);
  } else {
    return M::fma(polynomial<M, kTerm + 1>(x, c), x, M::set(c[kTerm]));
  }
}

/// max(x, 0) - |x| tail(|x|), in 6 operations besides the polynomial. Unlike x (1 - tail(x)) it
/// does not cancel for negative x. Keeps the sign of 0; Inf gives Inf, NaN gives NaN, and what is
/// below -end gives what -end does, which is above -2^-18.
template <class M, int kDegree>
BLOCKSCALE_MATH typename M::Number activation(typename M::Number x,
                                              const math::ActivationTail<kDegree>& tail) {
  const auto magnitude = M::min(M::abs(x), M::set(tail.end));
  const auto root = polynomial<M>(magnitude, tail.root);
  const auto square = M::mul(root, root);
  const auto fourth = M::mul(square, square);
  return M::fnma(M::mul(magnitude, fourth), fourth, M::zero_if_negative(x));
}

/// GELU with the tail that is given. Of bf16 and of f16 numbers x >= 0 a larger one never gives
/// less; for x < 0 the magnitude stays below 0.1705, which x >= 0.28125 exceed.
template <class M>
BLOCKSCALE_MATH typename M::Number gelu(typename M::Number x, const math::GeluTail& tail) {
  return activation<M>(x, tail);
}
template <class M>
BLOCKSCALE_MATH typename M::Number gelu_tanh(typename M::Number x) {
  return gelu<M>(x, math::kGeluTanh);
}
template <class M>
BLOCKSCALE_MATH typename M::Number gelu_erf(typename M::Number x) {
  return gelu<M>(x, math::kGeluErf);
}

/// x sigmoid(x), also called swish.
template <class M>
BLOCKSCALE_MATH typename M::Number silu(typename M::Number x) {
  return activation<M>(x, math::kSilu);
}

template <class M>
BLOCKSCALE_MATH typename M::Number swiglu(typename M::Number gate, typename M::Number up) {
  return M::mul(silu<M>(gate), up);
}

/// x (1 + scale) + shift.
template <class M>
BLOCKSCALE_MATH typename M::Number modulate(typename M::Number x, typename M::Number scale,
                                            typename M::Number shift) {
  return M::fma(x, M::add(M::set(1.0f), scale), shift);
}

/// 1 / sqrt(x), from two correctly rounded operations. x is normal and at most 2^126.
template <class M>
BLOCKSCALE_MATH typename M::Number reciprocal_sqrt(typename M::Number x) {
  return M::reciprocal(M::sqrt(x));
}

/// x times the row's reciprocal root mean square, times its column's weight.
template <class M>
BLOCKSCALE_MATH typename M::Number rms_norm(typename M::Number x, typename M::Number factor,
                                            typename M::Number weight) {
  return M::mul(M::mul(x, factor), weight);
}
