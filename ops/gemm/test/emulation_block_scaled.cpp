// The kernels of products that take scales, of sm_120f, as host functions.
#include "ops/gemm/kernels/sm120/block_scaled.cuh"
#include "ops/gemm/test/emulation.h"

namespace blockscale::test {
namespace {

template <int kIndex = 0>
void run(std::size_t kernel, const BlockScaledParams& params) {
  if constexpr (kIndex < kBlockScaledKernels.kCount) {
    if (kernel == kIndex) return block_scaled_kernel<kBlockScaledKernels[kIndex]>(params);
    run<kIndex + 1>(kernel, params);
  }
}

}  // namespace

void run_kernel(std::size_t kernel, const BlockScaledParams& params) {
  run(kernel, params);
}

}  // namespace blockscale::test
