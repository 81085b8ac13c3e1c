// Functions that quantizers fuse with their input, for numbers and for vectors: each is stated
// once, as a fixed sequence of correctly rounded f32 operations, so that every instruction set and
// every GPU gives the same bits. Their errors are those that docs/numerics.md allows;
// core/math_test.cpp finds them over all f32 inputs.
//
// Not a header of its own: it is included inside a namespace, once for each kind of number
// (core/math.h for float; ops/quantize/transform-inl.h for vectors, once per SIMD target), with
// BLOCKSCALE_MATH as the functions' qualifiers. `M` is the arithmetic of a kind of number, see
// ScalarMath in core/math.h.

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

/// gate sigmoid(alpha gate) (up + shift), of a gate that is at most the limit and an up within it.
/// A NaN stays one.
template <class M>
BLOCKSCALE_MATH typename M::Number clamped_swiglu(typename M::Number gate, typename M::Number up,
                                                  const SwigluNumbers& numbers) {
  const auto limit = M::set(numbers.limit);
  const auto x = M::mul(M::at_most(gate, limit), M::set(numbers.alpha));
  const auto within = M::at_least(M::at_most(up, limit), M::set(-numbers.limit));
  return M::mul(M::mul(silu<M>(x), M::set(numbers.reciprocal_alpha)),
                M::add(within, M::set(numbers.up_shift)));
}

/// x (1 + scale) + shift.
template <class M>
BLOCKSCALE_MATH typename M::Number modulate(typename M::Number x, typename M::Number scale,
                                            typename M::Number shift) {
  return M::fma(x, M::add(M::set(1.0f), scale), shift);
}

/// x times the row's reciprocal root mean square, times its column's weight.
template <class M>
BLOCKSCALE_MATH typename M::Number rms_norm(typename M::Number x, typename M::Number factor,
                                            typename M::Number weight) {
  return M::mul(M::mul(x, factor), weight);
}
