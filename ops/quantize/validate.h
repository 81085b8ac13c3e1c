// Every check of quantize's and dequantize's arguments, shared by all implementations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/quantize.h"
#include "ops/common/regions.h"
#include "ops/quantize/fused_input.h"

namespace blockscale::quantize_detail {

/// Arguments with packed strides filled in.
struct QuantizeArguments {
  MatrixView x;
  MutableScaledTensorView out;
  FusedInput input;  // strides of operands filled in
  /// CUDA, fp8_1x128 without a transform: row r is of x's row row_index[r], x having any number of
  /// rows; if that is negative, row r stays as it is. On the device; null: row r of row r.
  const std::int32_t* row_index = nullptr;
};
struct RowsAndColumnsArguments {
  MatrixView x;
  MutableScaledTensorView rows, columns;
  FusedInput input;
};
struct AbsoluteMaximumArguments {
  MatrixView x;
  FusedInput input;
  std::int64_t k;              // columns of the transform's result
  const float* out = nullptr;  // x.batch of them
};
struct DequantizeArguments {
  ScaledTensorView x;
  MutableMatrixView out;
};

/// Throws invalid_argument, naming the argument, its value and what is allowed. Reads no data.
QuantizeArguments validated(const MatrixView& x, const MutableScaledTensorView& out,
                            const QuantizeOptions& options);
/// The same where nothing but the shape of x is known.
QuantizeArguments validated_shape(const MatrixView& x, const MutableScaledTensorView& out,
                                  const QuantizeOptions& options);
/// The same of rows of `x` by an index: QuantizeArguments::row_index. Its memory is not looked at.
QuantizeArguments validated_gather(const MatrixView& x, const std::int32_t* row_index,
                                   const MutableScaledTensorView& out,
                                   const QuantizeOptions& options);
RowsAndColumnsArguments validated(const MatrixView& x, const MutableScaledTensorView& out_rows,
                                  const MutableScaledTensorView& out_columns,
                                  const QuantizeOptions& options);
AbsoluteMaximumArguments validated(const MatrixView& x, const QuantizeInput& input,
                                   const float* out, int threads);
DequantizeArguments validated(const ScaledTensorView& x, const MutableMatrixView& out, int threads);

/// All that a call reads and writes.
std::vector<Region> regions_of(const QuantizeArguments& a);
std::vector<Region> regions_of(const RowsAndColumnsArguments& a);
std::vector<Region> regions_of(const AbsoluteMaximumArguments& a);

/// What is fused with `x` for a result of `k` columns (the value of `k_argument`), with its
/// operands' strides filled in.
FusedInput validated(const MatrixView& x, const QuantizeInput& input, std::int64_t k,
                     const char* k_argument);

/// Columns of the result of a transform of `x`.
std::int64_t transformed_columns(const MatrixView& x, const QuantizeInput& input);

/// Checks the scales that a caller gave (they are host memory here): each finite and above zero,
/// tensor scales such that their inverse is finite too.
void check_given_scales(const MutableScaledTensorView& out);

/// Checks weights of `k` columns, if there are any: each finite and at least 0.
void check_channel_weights(const float* weights, std::int64_t k);

/// Checks means of `k` columns, if there are any: none has a square above its weight.
void check_channel_means(const float* means, const float* weights, std::int64_t k);

}  // namespace blockscale::quantize_detail
