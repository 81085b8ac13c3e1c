#include "ops/gemm/cuda/bf16_rows.h"

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {
namespace {

/// Between rows: 128 bytes, at multiples of which tensor copies are fast.
std::int64_t row_elements(const ScaledTensorView& x) {
  return ceil_div(x.k, 64) * 64;
}

int element_bits(const ScaledTensorView& x) {
  return format_traits(recipe_traits(x.recipe).element).bits;
}

bool fits_workspace(const ScaledTensorView& x) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  return x.rows * x.batch < kMostElements / 2 && x.k < kMostElements / 2 &&
         bf16_rows_bytes(x) < kMostBytes;
}

}  // namespace

bool has_bf16_rows(const ScaledTensorView& a) {
  return !is_plain(a.recipe) && fits_workspace(a);
}

bool has_bf16_weights(const ScaledTensorView& b) {
  return recipe_traits(b.recipe).family == Family::mx && element_bits(b) > 4 && fits_workspace(b);
}

ScaledTensorView bf16_rows_of(const ScaledTensorView& x, void* workspace) {
  ScaledTensorView rows;
  rows.recipe = Recipe::bf16;
  rows.rows = x.rows;
  rows.k = x.k;
  rows.batch = x.batch;
  rows.values = workspace;
  rows.value_row_stride = 2 * row_elements(x);
  rows.value_batch_stride = x.rows * rows.value_row_stride;
  return rows;
}

std::int64_t bf16_rows_bytes(const ScaledTensorView& x) {
  return 2 * x.batch * x.rows * row_elements(x);
}

bool has_scales_of_k(const ScaledTensorView& x) {
  return element_bits(x) == 8 && recipe_traits(x.recipe).block_k != 0;
}

BlockScales block_scales_of_rows(const ScaledTensorView& x) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  const bool are_any = t.scale == Format::f32 && !t.power_of_two;
  const bool are_left = t.family == Family::fp8 && (are_any || t.block_k == 0);
  return are_left ? BlockScales::left : BlockScales::applied;
}

quantize_detail::DequantizePlan plan_bf16_rows(const ScaledTensorView& x,
                                               const ScaledTensorView& rows, BlockScales scales,
                                               const cuda::Chip& chip, ConversionLoss* loss) {
  quantize_detail::DequantizeArguments of;
  of.x = x;
  of.x.tensor_scale = nullptr;
  of.out.data = const_cast<void*>(rows.values);
  of.out.dtype = Format::bf16;
  of.out.rows = rows.rows;
  of.out.columns = rows.k;
  of.out.row_stride = rows.value_row_stride / 2;
  of.out.batch = rows.batch;
  of.out.batch_stride = rows.value_batch_stride / 2;
  quantize_detail::DequantizePlan plan = plan_dequantize(of, chip);
  if (scales == BlockScales::left) plan.params.scales = nullptr;
  plan.params.loss = loss;
  return plan;
}

}  // namespace blockscale::gemm_detail
