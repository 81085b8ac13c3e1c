#include "ops/common/cuda/kernel_list.h"

#include <utility>

#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"

namespace blockscale {

std::vector<runtime::KernelSpec> kernel_list() {
  std::vector<runtime::KernelSpec> all;
  for (auto specs :
       {quantize_detail::quantize_kernel_specs(), quantize_detail::rows_and_columns_kernel_specs(),
        quantize_detail::dequantize_kernel_specs(), gemm_detail::plain_gemm_kernel_specs(),
        gemm_detail::fp8_gemm_kernel_specs()}) {
    for (runtime::KernelSpec& spec : specs) all.push_back(std::move(spec));
  }
  return all;
}

}  // namespace blockscale
