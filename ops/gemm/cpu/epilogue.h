// What turns a sum of products into an element of D.
#pragma once

#include "core/format.h"

namespace blockscale::gemm_detail {

/// A tensor scale as it was stored: a multiplier, or a divisor.
struct TensorFactor {
  double value = 1.0;
  bool divides = false;
};

/// d = round(((sum * alpha) a_scale) b_scale + beta * c + bias), left to right in f64. No step can
/// overflow or underflow in f64 where its operands are finite f32 or sums of products of f32.
struct Epilogue {
  double alpha = 1.0;
  TensorFactor a_scale;
  TensorFactor b_scale;
  double beta = 0.0;  // 0: c is not read
  Format c_dtype = Format::f32;
  Format d_dtype = Format::f32;
};

}  // namespace blockscale::gemm_detail
