// How a product of groups of rows, of two operands with scales, becomes a launch on sm_120f.
#pragma once

#include <optional>

#include "blockscale/device.h"
#include "blockscale/grouped_gemm.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

/// By a kernel of dense products, which takes groups too. None where it would not take the rows of
/// all groups with one B (gemm_detail::takes_block_scaled), and where rows are gathered.
std::optional<GroupedStep> block_scaled_step(const GroupedGemmArguments& validated,
                                             const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
