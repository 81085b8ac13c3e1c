// The kernels of products with weights in FP4 as host functions.
#include "ops/gemm/kernels/fp4_few_rows.cuh"
#include "ops/gemm/kernels/sm90/fp4_tiles.cuh"
#include "ops/gemm/test/emulation.h"

namespace blockscale::test {
namespace {

template <int kIndex = 0>
void run(std::size_t kernel, const Fp4GemmParams& params) {
  if constexpr (kIndex < kFp4GemmKernels.kCount) {
    if (kernel == kIndex) return fp4_few_rows_kernel<kFp4GemmKernels[kIndex]>(params);
    run<kIndex + 1>(kernel, params);
  }
}

template <int kIndex = 0>
void run(std::size_t kernel, const Fp4TilesParams& params) {
  if constexpr (kIndex < kFp4TilesKernels.kCount) {
    if (kernel == kIndex) return fp4_tiles_kernel<kFp4TilesKernels[kIndex]>(params);
    run<kIndex + 1>(kernel, params);
  }
}

}  // namespace

void run_kernel(std::size_t kernel, const Fp4GemmParams& params) {
  run(kernel, params);
}

void run_kernel(std::size_t kernel, const Fp4TilesParams& params) {
  run(kernel, params);
}

}  // namespace blockscale::test
