// The plain kernels as host functions.
#include "ops/gemm/kernels/plain.cuh"
#include "ops/gemm/test/emulation.h"

namespace blockscale::test {
namespace {

template <int kIndex = 0>
void run(std::size_t kernel, const PlainGemmParams& params) {
  if constexpr (kIndex < kPlainGemmKernels.kCount) {
    if (kernel == kIndex) return plain_gemm_kernel<kPlainGemmKernels[kIndex]>(params);
    run<kIndex + 1>(kernel, params);
  }
}

}  // namespace

void run_kernel(std::size_t kernel, const PlainGemmParams& params) {
  run(kernel, params);
}

}  // namespace blockscale::test
