// Scales of gates and ups that are matrices of their own, as those of one matrix: blocks of rows
// begin anew with each of the two, which a matrix's do not.
//
// A block copies rows of scales.
#pragma once

#include "core/divisor.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

inline constexpr uint32_t kJoinScalesThreads = 64;

struct JoinScalesParams {
  GemmScales from;
  uint8_t* to = nullptr;  // rows of all matrices, of `from`'s type
  uint32_t rows = 0;
  Divisor rows_of_matrix;
  uint32_t columns = 0;
  uint32_t block_rows = 1;  // rows that one of `to` is for
};

namespace join_scales {

template <class Scale>
BLOCKSCALE_DEVICE void copy_row(const JoinScalesParams& p, uint32_t row) {
  const uint32_t first = p.rows_of_matrix.remainder(row) * p.block_rows;
  const Scale* const from = reinterpret_cast<const Scale*>(p.from.data) +
                            p.rows_of_matrix.quotient(row) * p.from.batch_stride +
                            p.from.row_offset(first);
  Scale* const to = reinterpret_cast<Scale*>(p.to) + int64_t{row} * p.columns;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t j = ptx::tid_x(); j < p.columns; j += kJoinScalesThreads) {
    ptx::st_global(to + j, ptx::ld_global(from + p.from.k_offset(j)));
  }
}

}  // namespace join_scales

BLOCKSCALE_DEVICE void moe_join_scales_kernel(const JoinScalesParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t row = ptx::ctaid_x(); row < p.rows; row += ptx::nctaid_x()) {
    if (p.from.bytes) {
      join_scales::copy_row<uint8_t>(p, row);
    } else {
      join_scales::copy_row<uint32_t>(p, row);
    }
  }
}

}  // namespace blockscale
