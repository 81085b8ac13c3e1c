// Products of groups of rows in bf16 or f16 with weights in FP4, or in FP8 with mxfp4, on sm_90a:
// the dense kernels by the tiles of groups.
#pragma once

#include "device/scheduler/grouped_order.h"
#include "ops/gemm/kernels/sm90/fp4_tiles.cuh"

namespace blockscale {

using Fp4GroupedParams = Fp4TilesParamsOf<GroupedOrder>;

template <int kIndex>
BLOCKSCALE_DEVICE void fp4_grouped_kernel(const Fp4GroupedParams& p) {
  fp4_tiles_kernel<kFp4TilesKernels[kIndex], GroupedOrder>(p);
}

}  // namespace blockscale
