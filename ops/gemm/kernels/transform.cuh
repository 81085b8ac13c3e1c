// GELU, SiLU or SwiGLU of a product's D in f32, rounded once to what the caller wants.
//
// A block takes runs of kTransformRun columns of a row.
#pragma once

#include "core/divisor.h"
#include "device/epilogue/elements.h"
#include "device/epilogue/result_transform.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"

namespace blockscale {

inline constexpr int kTransformThreads = 256;
inline constexpr int kTransformElements = 4;  // of a thread, in a run
inline constexpr uint32_t kTransformRun = kTransformThreads * kTransformElements;

struct TransformParams {
  const float* numbers = nullptr;  // D before the transform: all rows, one behind the other
  int64_t number_columns = 0;
  EpilogueMatrix d;
  uint32_t columns = 0;  // of d
  uint32_t runs = 0;     // of all rows
  Divisor runs_of_row;
  Divisor rows_of_matrix;
  ResultTransform of_result;
};

namespace transform {

/// What an element of D is computed from.
struct Numbers {
  float x;  // the gate
  float up;
};

BLOCKSCALE_DEVICE Numbers load(const TransformParams& p, const float* row, uint32_t column) {
  if (!p.of_result.is_gated) return {ptx::ld_global(row + column), 1};
  const ResultTransform::Columns of = p.of_result.columns_of(column);
  return {ptx::ld_global(row + of.gate), ptx::ld_global(row + of.up)};
}

/// Run `run` of the columns of a row, from `from` on, to d's element `to` and those behind it. What
/// a thread needs is on its way before it computes anything. finish(y) is what is stored.
template <class Finish>
BLOCKSCALE_DEVICE void transform_run(const TransformParams& p, const float* from, int64_t to,
                                     uint32_t run, const Finish& finish) {
  const uint32_t first = run * kTransformRun + ptx::tid_x();
  const auto column = [&](int i) { return first + static_cast<uint32_t>(i) * kTransformThreads; };
  Numbers of[kTransformElements];
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kTransformElements; ++i) {
    if (column(i) < p.columns) of[i] = load(p, from, column(i));
  }
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kTransformElements; ++i) {
    if (column(i) >= p.columns) continue;
    store_element(p.d, to + column(i), finish(p.of_result(of[i].x, of[i].up)));
  }
}

}  // namespace transform

BLOCKSCALE_DEVICE void transform_kernel(const TransformParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  for (uint32_t run = ptx::ctaid_x(); run < p.runs; run += ptx::nctaid_x()) {
    const uint32_t row = p.runs_of_row.quotient(run);
    const uint32_t matrix = p.rows_of_matrix.quotient(row);
    const int64_t to = matrix * p.d.batch_stride + p.rows_of_matrix.remainder(row) * p.d.row_stride;
    transform::transform_run(p, p.numbers + row * p.number_columns, to,
                             p.runs_of_row.remainder(run), [](float y) { return y; });
  }
}

}  // namespace blockscale
