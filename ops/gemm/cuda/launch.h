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

/// FP8 products' kernels in this process, those of few and of many rows with weights in FP4, those
/// of products that take scales, and the plain ones, which serve every pair; indices are those of
/// plans.
runtime::KernelSet& kernels();
runtime::KernelSet& fp4_kernels();
runtime::KernelSet& fp4_tiles_kernels();
runtime::KernelSet& block_scaled_kernels();
runtime::KernelSet& plain_kernels();

/// Sets the tensor maps of a plan's or a step's parameters, in the caller's context.
void find_tensor_maps(ProductPlan& plan);
void find_tensor_maps(GemmStep& step);

/// Launches a plan that has its tensor maps, in the caller's context.
void launch_steps(const ProductPlan& plan, const cuda::Execution& execution);

/// cuda::gemm, by `config`, or by the model's plan if there is none, whatever was tuned.
void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8LaunchConfig>& config,
                 const cuda::Execution& execution);

/// cuda::gemm by a kernel of few rows with weights in FP4, its tiles and K divided like this.
/// Throws `unsupported` where none computes the product.
void launch_fp4_gemm(const GemmArguments& arguments, const Fp4Division& division,
                     const cuda::Execution& execution);
/// The same of many rows.
void launch_fp4_gemm(const GemmArguments& arguments, const Fp4TilesDivision& division,
                     const cuda::Execution& execution);

/// cuda::gemm by a plain kernel, whatever others there are: by `tile`, or by the one that suits.
void launch_plain_gemm(const GemmArguments& arguments, const std::optional<PlainTile>& tile,
                       const cuda::Execution& execution);

}  // namespace blockscale::gemm_detail
