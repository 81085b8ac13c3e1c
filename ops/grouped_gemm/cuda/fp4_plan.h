// How a grouped product with weights in FP4 becomes a launch on Hopper, and of few rows on SM120.
#pragma once

#include <optional>

#include "blockscale/device.h"
#include "blockscale/grouped_gemm.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

/// None where another kernel computes the product: of groups with more than kFp4GroupedRows rows on
/// average, other recipes, scales or chips, of rows that do not begin and end at multiples of 16
/// bytes, and where rows of D move or a row's bits must not depend on their number. `division`: in
/// place of the one that is expected to be fastest.
std::optional<GroupedStep> fp4_few_rows_step(
    const GroupedGemmArguments& validated, const cuda::Chip& chip,
    std::optional<gemm_detail::Fp4Division> division = std::nullopt);

/// The same of any number of rows in bf16 or f16, or beside mxfp4 in FP8 with a scale a row or one
/// for all, which are not gathered; none as of
/// gemm_detail::plan_fp4_tiles. A row's bits never depend on their number.
std::optional<GroupedStep> fp4_tiles_step(const GroupedGemmArguments& validated,
                                          const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
