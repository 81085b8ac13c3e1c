// A product's launch with a choice of one's own, for benchmarks and tests.
#pragma once

#include <optional>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/plan.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::gemm_detail {

/// Products' kernels in this process; indices are those of plans.
runtime::KernelSet& kernels();

/// Sets the tensor maps of the launch's parameters.
void find_tensor_maps(Fp8GemmLaunch& launch);

/// cuda::gemm, by `choice`, or by the model's plan if there is none, whatever was tuned.
void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8GemmChoice>& choice,
                 const cuda::Execution& execution);

}  // namespace blockscale::gemm_detail
