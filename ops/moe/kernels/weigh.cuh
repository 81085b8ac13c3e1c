// Rows of experts before the first product, where weights are on its input: those of x, each times
// the weight of its entry, in the order in which entries are sorted.
//
// A block takes runs of columns of a row (row_runs.cuh).
#pragma once

#include "core/divisor.h"
#include "device/epilogue/linear.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/moe/kernels/row_runs.cuh"

namespace blockscale {

struct WeighParams {
  const int32_t* entry_of_row = nullptr;  // -1: a row of zeros
  const float* weights = nullptr;
  Divisor top_k;
  uint32_t columns = 0;
  uint32_t runs = 0;  // of all rows
  Divisor runs_of_row;
  EpilogueMatrix x;
  EpilogueMatrix rows;   // of x's dtype
  bool vectors = false;  // rows of both begin at multiples of 16 bytes and have whole eights
};

namespace weigh {

template <class Elements>
BLOCKSCALE_DEVICE void weigh_run(const WeighParams& p, uint32_t row, uint32_t run) {
  const Elements elements(run);
  if (!elements.has_any(p.columns)) return;
  const int32_t entry = ptx::ld_global(p.entry_of_row + row);
  float values[kRowRunElements] = {};
  if (entry >= 0) {
    const float weight = ptx::ld_global(p.weights + entry);
    elements.load(p.x, p.top_k.quotient(static_cast<uint32_t>(entry)), p.columns, values);
    BLOCKSCALE_UNROLL
    for (float& value : values) value = ptx::mul_rn(weight, value);
  }
  elements.store(p.rows, row, p.columns, values);
}

}  // namespace weigh

BLOCKSCALE_DEVICE void moe_weigh_kernel(const WeighParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < p.runs; i += ptx::nctaid_x()) {
    const uint32_t row = p.runs_of_row.quotient(i), run = p.runs_of_row.remainder(i);
    if (p.vectors) {
      weigh::weigh_run<row_runs::Neighbours>(p, row, run);
    } else {
      weigh::weigh_run<row_runs::Apart>(p, row, run);
    }
  }
}

}  // namespace blockscale
