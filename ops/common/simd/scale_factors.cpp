// Scales as factors, for every SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/simd/scale_factors.cpp"
#include "ops/common/simd/targets.h"

#include <hwy/foreach_target.h>

#include <cstdint>

#include "ops/common/simd/decode-inl.h"
#include "ops/common/simd/scale_factors.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale {
namespace HWY_NAMESPACE {

void scale_factors(Format scale, const std::uint8_t* scales, std::int64_t count, float tensor_scale,
                   TensorScaleSense sense, float* factors) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<std::uint8_t, decltype(df)> d8;
  const auto t = hn::Set(df, tensor_scale);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    hn::Vec<decltype(df)> values;
    if (scale == Format::f32) {
      values = hn::LoadU(df, reinterpret_cast<const float*>(scales) + i);
    } else {
      const auto codes = hn::PromoteTo(du, hn::LoadU(d8, scales + i));
      if (scale == Format::ue4m3) {
        values = decode_small<Format::ue4m3>(df, codes);
      } else {
        auto bits = hn::ShiftLeft<23>(codes);
        bits = hn::IfThenElse(hn::Eq(codes, hn::Zero(du)), hn::Set(du, 0x00400000u), bits);
        bits = hn::IfThenElse(hn::Eq(codes, hn::Set(du, 0xFFu)), hn::Set(du, 0x7FC00000u), bits);
        values = hn::BitCast(df, bits);
      }
    }
    const bool multiply = sense == TensorScaleSense::multiplier;
    hn::StoreU(multiply ? hn::Mul(values, t) : hn::Div(values, t), df, factors + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace blockscale {

HWY_EXPORT(scale_factors);

namespace steps {

void scale_factors(Format scale, const void* scales, std::int64_t count, float tensor_scale,
                   TensorScaleSense sense, float* factors) {
  HWY_DYNAMIC_DISPATCH(scale_factors)
  (scale, static_cast<const std::uint8_t*>(scales), count, tensor_scale, sense, factors);
}

}  // namespace steps
}  // namespace blockscale

#endif  // HWY_ONCE
