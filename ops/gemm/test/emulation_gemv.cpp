// The GEMV, and copies of rows, as host functions.
#include "ops/gemm/kernels/align_rows.cuh"
#include "ops/gemm/kernels/gemv_fp8.cuh"
#include "ops/gemm/test/emulation.h"

namespace blockscale::test {

void run_kernel(std::size_t, const Fp8GemvParams& params) {
  fp8_gemv_kernel(params);
}

void run_kernel(std::size_t, const AlignRowsParams& params) {
  align_rows_kernel(params);
}

}  // namespace blockscale::test
