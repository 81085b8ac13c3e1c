#include "ops/common/cuda/kernel_list.h"

#include <algorithm>
#include <utility>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/trials.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/grouped_gemm/cuda/launch.h"
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/cuda/trials.h"
#include "ops/moe/cuda/launch.h"
#include "ops/moe/cuda/specs.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"

namespace blockscale {

std::vector<runtime::KernelSpec> kernel_list() {
  std::vector<runtime::KernelSpec> all;
  for (auto specs :
       {quantize_detail::quantize_kernel_specs(), quantize_detail::rows_and_columns_kernel_specs(),
        quantize_detail::dequantize_kernel_specs(), gemm_detail::plain_gemm_kernel_specs(),
        gemm_detail::fp8_gemm_kernel_specs(), gemm_detail::fp4_gemm_kernel_specs(),
        gemm_detail::fp4_tiles_kernel_specs(), gemm_detail::block_scaled_kernel_specs(),
        grouped_gemm_detail::kernel_specs(), moe_detail::kernel_specs()}) {
    for (runtime::KernelSpec& spec : specs) all.push_back(std::move(spec));
  }
  return all;
}

/// The kernels that calls of operations launch. Products dequantize rows and quantize results that
/// no kernel of theirs does; a mixture of experts multiplies groups, and all tokens by shared
/// experts.
static std::vector<runtime::KernelSet*> kernels_of(cuda::KernelsOf operations) {
  using cuda::KernelsOf;
  std::vector<runtime::KernelSet*> sets;
  if (operations != KernelsOf::dequantize) {
    sets = {&quantize_detail::quantize_kernels(), &quantize_detail::rows_and_columns_kernels()};
  }
  if (operations == KernelsOf::all || operations == KernelsOf::dequantize ||
      operations == KernelsOf::gemm || operations == KernelsOf::moe) {
    sets.push_back(&quantize_detail::dequantize_kernels());
  }
  if (operations == KernelsOf::all || operations == KernelsOf::gemm ||
      operations == KernelsOf::moe) {
    sets.push_back(&gemm_detail::kernels());
    sets.push_back(&gemm_detail::plain_kernels());
    sets.push_back(&gemm_detail::fp4_kernels());
  }
  if (operations != KernelsOf::quantize && operations != KernelsOf::dequantize) {
    sets.push_back(&gemm_detail::fp4_tiles_kernels());  // which take groups too
    sets.push_back(&gemm_detail::block_scaled_kernels());
  }
  if (operations == KernelsOf::all || operations == KernelsOf::grouped_gemm ||
      operations == KernelsOf::moe) {
    sets.push_back(&grouped_gemm_detail::kernels());
  }
  if (operations == KernelsOf::all || operations == KernelsOf::moe) {
    sets.push_back(&moe_detail::kernels());
  }
  return sets;
}

int cuda::load_kernels(KernelsOf operations, int device) {
  const DeviceScope scope(device);
  const DeviceTraits& chip = devices().at(static_cast<std::size_t>(device));
  require_kernels_for(quantize_detail::quantize_kernels(), chip, "device");
  int count = 0;
  const std::vector<runtime::KernelSet*> sets = kernels_of(operations);
  for (runtime::KernelSet* const set : sets) count += set->load_all(chip.architecture);
  for (const auto& trials : {gemm_detail::trials_on(chip), grouped_gemm_detail::trials_on(chip)}) {
    for (const Trial& trial : trials) {
      const bool is_of_these = std::find(sets.begin(), sets.end(), trial.kernels) != sets.end();
      if (is_of_these) (void)Trials::instance().passed(trial, device, nullptr);
    }
  }
  return count;
}

}  // namespace blockscale
