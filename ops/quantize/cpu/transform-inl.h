// core/math-inl.h for vectors of f32. Included once per SIMD target, as decode-inl.h.

#if defined(BLOCKSCALE_OPS_QUANTIZE_TRANSFORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_QUANTIZE_TRANSFORM_INL_H_
#undef BLOCKSCALE_OPS_QUANTIZE_TRANSFORM_INL_H_
#else
#define BLOCKSCALE_OPS_QUANTIZE_TRANSFORM_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "core/activation_tail.h"
#include "core/input_transform.h"
#include "ops/common/simd/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

/// math::ScalarMath, as far as vectors use it, for the vectors of a tag; `min` of a NaN is
/// arbitrary.
template <class D>
struct VectorMath {
  using Number = hn::Vec<D>;

  static HWY_INLINE Number set(float x) { return hn::Set(D(), x); }
  static HWY_INLINE Number add(Number a, Number b) { return hn::Add(a, b); }
  static HWY_INLINE Number mul(Number a, Number b) { return hn::Mul(a, b); }
#if HWY_NATIVE_FMA
  static HWY_INLINE Number fma(Number a, Number b, Number c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE Number fnma(Number a, Number b, Number c) { return hn::NegMulAdd(a, b, c); }
#else
  /// Exact but slow: the C library's fused multiply-add, lane by lane.
  static HWY_INLINE Number fma(Number a, Number b, Number c) {
    constexpr D d;
    HWY_ALIGN float x[hn::MaxLanes(D())], y[hn::MaxLanes(D())], z[hn::MaxLanes(D())];
    hn::Store(a, d, x);
    hn::Store(b, d, y);
    hn::Store(c, d, z);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) x[i] = __builtin_fmaf(x[i], y[i], z[i]);
    return hn::Load(d, x);
  }
  static HWY_INLINE Number fnma(Number a, Number b, Number c) { return fma(hn::Neg(a), b, c); }
#endif
  static HWY_INLINE Number min(Number a, Number b) { return hn::Min(a, b); }
  static HWY_INLINE Number at_most(Number x, Number limit) {
    return hn::IfThenElse(hn::Gt(x, limit), limit, x);
  }
  static HWY_INLINE Number at_least(Number x, Number limit) {
    return hn::IfThenElse(hn::Lt(x, limit), limit, x);
  }
  static HWY_INLINE Number abs(Number x) { return hn::Abs(x); }
  static HWY_INLINE Number zero_if_negative(Number x) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(D())), x);
  }
};

#define BLOCKSCALE_MATH HWY_INLINE
#include "core/math-inl.h"
#undef BLOCKSCALE_MATH

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
