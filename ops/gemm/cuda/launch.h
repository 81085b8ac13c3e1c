// A product's launches as a part of other operations, and with a config of one's own, for
// benchmarks and tests.
#pragma once

#include <optional>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/product_plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::gemm_detail {

/// FP8 products' kernels in this process, and the plain ones, which serve every pair; indices are
/// those of plans.
runtime::KernelSet& kernels();
runtime::KernelSet& plain_kernels();

/// Launches a plan, in the caller's context. Its tensor maps become those that the driver makes.
void launch_steps(ProductPlan& plan, const cuda::Execution& execution);

/// Sets the tensor maps of a step's parameters.
void find_tensor_maps(GemmStep& step);

/// cuda::gemm, by `config`, or by the model's plan if there is none, whatever was tuned.
void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8LaunchConfig>& config,
                 const cuda::Execution& execution);

/// cuda::gemm by a plain kernel, whatever others there are: by `tile`, or by the one that suits.
void launch_plain_gemm(const GemmArguments& arguments, const std::optional<PlainTile>& tile,
                       const cuda::Execution& execution);

}  // namespace blockscale::gemm_detail
