// Products of groups of rows in FP8 on sm_90a: the dense mainloop by the tiles of groups.
#pragma once

#include "device/scheduler/grouped_order.h"
#include "ops/gemm/kernels/sm90/fp8_entry.cuh"
#include "ops/grouped_gemm/kernels/config.h"

namespace blockscale {

using Fp8GroupedParams = Fp8GemmParamsOf<GroupedOrder>;

template <int kIndex>
BLOCKSCALE_DEVICE void fp8_grouped_kernel(const Fp8GroupedParams& p) {
  fp8_gemm_kernel<kFp8GroupedKernels[kIndex]>(p);
}

}  // namespace blockscale
