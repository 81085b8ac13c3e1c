// The kernels of groups of few rows with weights in FP4 as host functions.
#include "ops/grouped_gemm/cuda/specs.h"
#include "ops/grouped_gemm/test/emulation.h"

namespace blockscale::test {
namespace {

template <int kIndex = 0>
void run(std::size_t kernel, const Fp4FewRowsParams& params) {
  if constexpr (kIndex < kFp4GroupedKernels.kCount) {
    if (kernel == grouped_gemm_detail::fp4_few_rows_kernel(kIndex)) {
      return fp4_few_rows_grouped_kernel<kFp4GroupedKernels[kIndex]>(params);
    }
    run<kIndex + 1>(kernel, params);
  }
}

}  // namespace

void run_grouped_kernel(std::size_t kernel, const Fp4FewRowsParams& params) {
  run(kernel, params);
}

}  // namespace blockscale::test
