// A product's launch with a config of one's own, for benchmarks and tests.
#pragma once

#include <optional>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::gemm_detail {

/// Products' kernels in this process; indices are those of plans.
runtime::KernelSet& kernels();

/// Sets the tensor maps of a step's parameters.
void find_tensor_maps(GemmStep& step);

/// cuda::gemm, by `config`, or by the model's plan if there is none, whatever was tuned.
void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8LaunchConfig>& config,
                 const cuda::Execution& execution);

}  // namespace blockscale::gemm_detail
