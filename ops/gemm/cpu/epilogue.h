// What turns a sum of products into an element of D.
#pragma once

#include <cmath>
#include <initializer_list>

#include "core/format.h"

namespace blockscale::gemm_detail {

/// A tensor scale as it was stored: a multiplier, or a divisor.
struct TensorFactor {
  double value = 1.0;
  bool divides = false;
};

/// d = round((((sum * alpha) a_scale) b_scale + bias) gate + beta * c), left to right in f64. No
/// step can overflow or underflow in f64 where its operands are finite f32 or sums of products of
/// f32.
struct Epilogue {
  double alpha = 1.0;
  TensorFactor a_scale;
  TensorFactor b_scale;
  double beta = 0.0;  // 0: c is not read
  Format c_dtype = Format::f32;
  Format d_dtype = Format::f32;

  /// alpha and the tensor scales as one number, where f32 holds it: with neither C nor gate, sums
  /// that are f32 then become D by one multiply-add. Where that overflows, so does D.
  float factor = 1.0f;
  bool fits_f32 = true;

  void combine() {
    double product = alpha;
    for (const TensorFactor& scale : {a_scale, b_scale}) {
      product = scale.divides ? product / scale.value : product * scale.value;
    }
    const double magnitude = std::abs(product);
    fits_f32 = product == 0.0 || (magnitude >= 0x1p-126 && magnitude < 0x1p127);
    factor = fits_f32 ? static_cast<float>(product) : 0.0f;
  }
};

}  // namespace blockscale::gemm_detail
