// The last step of a layer: rows of the second product come back to their tokens, weighted and
// added up in f32, in the order of a token's experts.
//
// A block takes runs of columns of a token (row_runs.cuh).
#pragma once

#include "core/divisor.h"
#include "device/epilogue/linear.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/moe/kernels/row_runs.cuh"
#include "ops/moe/routing.h"

namespace blockscale {

struct FinalizeParams {
  const uint16_t* rows = nullptr;  // bf16
  int64_t row_stride = 0;
  const int32_t* row_of_entry = nullptr;
  /// Not 0: row_of_entry are ids, and rows those of entries, as far as these are of so many
  /// experts.
  uint32_t experts = 0;
  uint32_t first_expert = 0;
  const float* weights = nullptr;  // null: 1
  uint32_t top_k = 1;
  uint32_t columns = 0;
  uint32_t runs = 0;  // of all tokens
  Divisor runs_of_token;
  EpilogueMatrix shared;  // bf16, a matrix for each shared expert
  uint32_t shared_experts = 0;
  EpilogueMatrix residual;  // none without data
  EpilogueMatrix y;         // of the residual's dtype
  bool vectors = false;     // rows of all begin at multiples of 16 bytes and have whole eights
};

namespace finalize {

/// Run `run` of a token's columns. The rows of kAhead experts are asked for together: first all of
/// their numbers, because a branch waits for what it looks at.
template <class Elements>
BLOCKSCALE_DEVICE void add_run(const FinalizeParams& p, uint32_t token, uint32_t run) {
  constexpr uint32_t kAhead = 8;
  const Elements elements(run);
  if (!elements.has_any(p.columns)) return;
  float sums[kRowRunElements] = {};
  if (p.residual.data != nullptr) elements.load(p.residual, token, p.columns, sums);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t s = 0; s < p.shared_experts; ++s) {
    const auto* const first = reinterpret_cast<const uint16_t*>(p.shared.data);
    const typename Elements::Row row = elements.load_row(
        first + s * p.shared.batch_stride + token * p.shared.row_stride, p.columns);
    BLOCKSCALE_UNROLL
    for (int e = 0; e < kRowRunElements; ++e) {
      sums[e] = ptx::add_rn(sums[e], Elements::element(row, e));
    }
  }
  const uint32_t entry = token * p.top_k;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t j = 0; j < p.top_k; j += kAhead) {
    int32_t numbers[kAhead];
    float weights[kAhead];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const bool exists = j + i < p.top_k;
      numbers[i] = exists ? ptx::ld_global(p.row_of_entry + entry + j + i) : -1;
      weights[i] =
          exists && p.weights != nullptr ? ptx::ld_global(p.weights + entry + j + i) : 1.0f;
    }
    if (p.experts != 0) {
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        const bool is_here = j + i < p.top_k &&
                             routing::class_of(numbers[i], p.first_expert, p.experts) != p.experts;
        numbers[i] = is_here ? static_cast<int32_t>(entry + j + i) : -1;
      }
    }
    typename Elements::Row rows[kAhead];
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (numbers[i] < 0) continue;
      rows[i] = elements.load_row(p.rows + numbers[i] * p.row_stride, p.columns);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (numbers[i] < 0) continue;
      BLOCKSCALE_UNROLL
      for (int e = 0; e < kRowRunElements; ++e) {
        sums[e] = ptx::add_rn(sums[e], ptx::mul_rn(weights[i], Elements::element(rows[i], e)));
      }
    }
  }
  elements.store(p.y, token, p.columns, sums);
}

}  // namespace finalize

BLOCKSCALE_DEVICE void moe_finalize_kernel(const FinalizeParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < p.runs; i += ptx::nctaid_x()) {
    const uint32_t token = p.runs_of_token.quotient(i), run = p.runs_of_token.remainder(i);
    if (p.vectors) {
      finalize::add_run<row_runs::Neighbours>(p, token, run);
    } else {
      finalize::add_run<row_runs::Apart>(p, token, run);
    }
  }
}

}  // namespace blockscale
