// The float64 GEMM that results are checked against, and the error bound that they must keep.
//
// Written to be obviously right, one element at a time, from core's scalar `decode` alone: it
// shares no code with the implementations.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "blockscale/gemm.h"

namespace blockscale::gemm_detail {

/// Values of row `row` of matrix `index` of a resolved operand, tensor scale left out: the f32
/// product of code and scale, as f64.
std::vector<double> operand_row(const ScaledTensorView& x, std::int64_t index, std::int64_t row);

/// Rows of a resolved operand, each decoded once while together they take at most 64 MiB.
class OperandRows {
 public:
  explicit OperandRows(const ScaledTensorView& x) : x_(x) {}

  /// operand_row, valid until the next call.
  const std::vector<double>& get(std::int64_t index, std::int64_t row);

 private:
  ScaledTensorView x_;
  std::unordered_map<std::int64_t, std::vector<double>> rows_;
};

/// `sum` times (or over, by its sense) the tensor scale of matrix `index`.
double apply_tensor_scale(const ScaledTensorView& x, std::int64_t index, double sum);

/// Value `column` of row `row` of matrix `index` of a resolved view.
double matrix_element(const MatrixView& x, std::int64_t index, std::int64_t row,
                      std::int64_t column);

/// An exact element of D and what its error is measured against.
struct ReferenceElement {
  double value = 0;      // gate * (alpha * sum_k a b + bias) + beta * C
  double magnitude = 0;  // |gate| (|alpha| * sum_k |a||b| + |bias|) + |beta C|
};

/// Element (m, n) of matrix `index`; `a_row` and `b_row` are operand_row of its operands.
ReferenceElement reference_element(const GemmArguments& validated, std::int64_t index,
                                   std::int64_t m, std::int64_t n, const std::vector<double>& a_row,
                                   const std::vector<double>& b_row);

/// Throws if a check is asked for no samples.
void check_samples(std::int64_t samples);

/// Element `sample` of `samples`, as its index in [0, elements): a fixed random choice, or every
/// one of them if there are no more than samples.
std::int64_t sampled_element(std::int64_t sample, std::int64_t samples, std::int64_t elements);

/// Half the distance between neighbouring values of `dtype` (f32, f16 or bf16) around `value`.
double half_ulp(Format dtype, double value);

/// How far `d`, an element of dtype `dtype`, is from `reference` in units of 2^-24 * magnitude,
/// when half an ulp of its dtype is allowed for its last rounding: the c that the bound of
/// docs/numerics.md would have needed. 0 where the two agree (NaN with NaN and equal infinities
/// included), infinite where no c is enough.
double error_ratio(Format dtype, double d, const ReferenceElement& reference);

}  // namespace blockscale::gemm_detail
