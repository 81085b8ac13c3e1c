// Products of groups of rows, or of k, for every pair of operands: the dense plain kernel by the
// tiles of groups.
#pragma once

#include "device/scheduler/grouped_order.h"
#include "device/scheduler/k_groups.h"
#include "ops/gemm/kernels/plain.cuh"
#include "ops/grouped_gemm/kernels/config.h"

namespace blockscale {

using PlainGroupedParams = PlainGemmParamsOf<GroupedOrder>;
using PlainKGroupedParams = PlainGemmParamsOf<KGroupedOrder>;

/// By kernel `kIndex` of the dense ones.
template <int kIndex>
BLOCKSCALE_DEVICE void plain_grouped_kernel(const PlainGroupedParams& p) {
  plain_gemm_kernel<kPlainGemmKernels[kIndex]>(p);
}
template <int kIndex>
BLOCKSCALE_DEVICE void plain_k_grouped_kernel(const PlainKGroupedParams& p) {
  plain_gemm_kernel<kPlainGemmKernels[kIndex]>(p);
}

}  // namespace blockscale
