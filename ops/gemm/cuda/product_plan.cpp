#include "ops/gemm/cuda/product_plan.h"

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/quantize.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {

bool is_in_workspace(const GemmArguments& x, const cuda::Chip& chip) {
  const bool is_quantized = x.quantized && x.d.rows > 0 && x.d.columns > 0 && x.d.batch > 0;
  return is_transformed(x) || (is_quantized && !(has_fp8_kernel(x.a.recipe, x.b.recipe, chip) &&
                                                 fits_epilogue(*x.quantized)));
}

ProductPlan plan_product(const GemmArguments& x, const cuda::Chip& chip, void* workspace) {
  if (is_in_workspace(x, chip)) {
    auto* const numbers = static_cast<float*>(workspace);
    const std::int64_t of_numbers = transform_workspace_bytes(x);
    ProductPlan plan =
        plan_product(before_transform(x, numbers), chip, byte_at(workspace, of_numbers));
    plan.workspace_bytes += of_numbers;
    if (!x.quantized) {
      plan.transform = plan_transform(x, numbers, chip);
      return plan;
    }
    GemmArguments in_f32 = x;
    in_f32.d.data = numbers;
    const QuantizationPlan behind =
        plan_quantization(in_f32, *x.quantized, chip, byte_at(workspace, plan.workspace_bytes));
    plan.transform = behind.transform;
    plan.quantization = behind.quantization;
    plan.workspace_bytes += behind.workspace_bytes;
    return plan;
  }
  ProductPlan plan;
  if (has_fp8_kernel(x.a.recipe, x.b.recipe, chip)) {
    plan.product = plan_fp8_gemm(x, chip, std::nullopt, workspace);
  } else if (const auto few_rows = plan_fp4_gemm(x, chip)) {
    plan.product = *few_rows;
  } else if (const auto tiles = plan_fp4_tiles(x, chip, workspace)) {
    plan.product = *tiles;
  } else if (const auto block_scaled = plan_block_scaled(x, chip)) {
    plan.product = *block_scaled;
  } else {
    plan.product = plan_plain_gemm(x, chip);
  }
  plan.workspace_bytes =
      std::visit([](const auto& of) { return of.workspace_bytes; }, plan.product);
  return plan;
}

GemmPath ProductPlan::path() const {
  if (is_fp8()) return GemmPath::sm90_fp8;
  if (std::holds_alternative<Fp4GemmPlan>(product)) return GemmPath::fp4_few_rows;
  if (const auto* const tiles = std::get_if<Fp4TilesPlan>(&product)) return tiles->path();
  return std::holds_alternative<BlockScaledPlan>(product) ? GemmPath::sm120_block_scaled
                                                          : GemmPath::plain;
}

std::string ProductPlan::str() const {
  return std::visit([](const auto& of) { return of.str(); }, product) + str_behind();
}

std::string ProductPlan::str_behind() const {
  if (quantization) return text_of_quantizer(transform, *quantization);
  return transform ? transform->str() : "";
}

}  // namespace blockscale::gemm_detail
