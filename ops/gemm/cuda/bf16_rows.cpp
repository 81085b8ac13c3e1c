#include "ops/gemm/cuda/bf16_rows.h"

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {
namespace {

/// Between rows: 128 bytes, at multiples of which tensor copies are fast.
std::int64_t row_elements(const ScaledTensorView& a) {
  return ceil_div(a.k, 64) * 64;
}

}  // namespace

bool has_bf16_rows(const ScaledTensorView& a) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  return !is_plain(a.recipe) && a.rows * a.batch < kMostElements / 2 && a.k < kMostElements / 2 &&
         bf16_rows_bytes(a) < kMostBytes;
}

ScaledTensorView bf16_rows_of(const ScaledTensorView& a, void* workspace) {
  ScaledTensorView rows;
  rows.recipe = Recipe::bf16;
  rows.rows = a.rows;
  rows.k = a.k;
  rows.batch = a.batch;
  rows.values = workspace;
  rows.value_row_stride = 2 * row_elements(a);
  rows.value_batch_stride = a.rows * rows.value_row_stride;
  return rows;
}

std::int64_t bf16_rows_bytes(const ScaledTensorView& a) {
  return 2 * a.batch * a.rows * row_elements(a);
}

quantize_detail::DequantizePlan plan_bf16_rows(const ScaledTensorView& a,
                                               const ScaledTensorView& rows,
                                               const cuda::Chip& chip) {
  quantize_detail::DequantizeArguments x;
  x.x = a;
  x.x.tensor_scale = nullptr;
  x.out.data = const_cast<void*>(rows.values);
  x.out.dtype = Format::bf16;
  x.out.rows = rows.rows;
  x.out.columns = rows.k;
  x.out.row_stride = rows.value_row_stride / 2;
  x.out.batch = rows.batch;
  x.out.batch_stride = rows.value_batch_stride / 2;
  quantize_detail::DequantizePlan plan = plan_dequantize(x, chip);
  if (format_traits(recipe_traits(a.recipe).element).bits == 8) plan.params.scales = nullptr;
  return plan;
}

}  // namespace blockscale::gemm_detail
