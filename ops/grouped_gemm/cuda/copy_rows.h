// Launches that copy rows of groups: from a tensor of all rows, or gathered to where tensor copies
// bring them.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "blockscale/grouped_gemm.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

/// A tensor as the kernel that copies rows takes it.
template <class View>
TensorRows rows_of(const View& x, const ScaleMatrix& scales) {
  TensorRows rows;
  rows.values = static_cast<std::uint8_t*>(const_cast<void*>(static_cast<const void*>(x.values)));
  rows.row_stride = x.value_row_stride;
  rows.batch_stride = x.batch > 1 ? x.value_batch_stride : 0;
  rows.scales = scales;
  return rows;
}

/// The rows of groups, from one tensor to another.
GroupedStep copy_rows_step(const GroupedGemmArguments& validated, const TensorRows& from,
                           const TensorRows& to, std::int64_t row_bytes, const cuda::Chip& chip);

/// Whether rows of A can be gathered: each has scales of its own, or none.
bool can_copy_rows(const ScaledTensorView& a);

/// The product of rows of A that were gathered, with scales in row_major, at addresses that are
/// aligned and stand for memory.
GroupedGemmArguments with_rows_in_place(const GroupedGemmArguments& validated);

/// Of scales in row_major.
std::int64_t bytes_of_row_scales(const ScaledTensorView& x);

/// Gathers A's rows to `in_place`.
GroupedStep gather_step(const GroupedGemmArguments& validated, const ScaledTensorView& in_place,
                        const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
