// A product of any pair, with any transform, as launches: what other operations plan and launch as
// a part of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"
#include "ops/gemm/cuda/transform.h"
#include "ops/gemm/path.h"
#include "ops/quantize/cuda/plan.h"

namespace blockscale::gemm_detail {

struct ProductPlan {
  std::variant<Fp8GemmPlan, Fp4GemmPlan, Fp4TilesPlan, BlockScaledPlan, PlainGemmPlan> product;
  // Behind it, of D in f32 in the workspace: either, or the first for an input that the second does
  // not fuse.
  std::optional<TransformPlan> transform;
  std::optional<quantize_detail::QuantizePlan> quantization;
  std::int64_t workspace_bytes = 0;

  bool is_fp8() const { return std::holds_alternative<Fp8GemmPlan>(product); }
  GemmPath path() const;  // that the result, or what is transformed, comes from
  std::string str() const;
  std::string str_behind() const;  // of what is behind the product
};

/// Whether D is f32 in the workspace first, whatever computes it: with a transform, and where it is
/// quantized, but by FP8 kernels that can.
bool is_in_workspace(const GemmArguments& validated, const cuda::Chip& chip);

/// Of validated arguments, by the models of kernels alone, whatever was tuned. `workspace` is not
/// looked at. Throws `unsupported` as the plans of kernels do.
ProductPlan plan_product(const GemmArguments& validated, const cuda::Chip& chip,
                         void* workspace = nullptr);

}  // namespace blockscale::gemm_detail
