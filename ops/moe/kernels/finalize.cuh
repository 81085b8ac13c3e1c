// The last step of a layer: rows of the second product come back to their tokens, weighted and
// added up in f32, in the order of a token's experts.
//
// A block takes runs of kFinalizeRun columns of a token; a thread eight neighbours of one, or,
// where rows begin anywhere, eight that lie kFinalizeThreads apart.
#pragma once

#include "core/divisor.h"
#include "device/epilogue/elements.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"

namespace blockscale {

inline constexpr uint32_t kFinalizeThreads = 128;
inline constexpr int kFinalizeElements = 8;  // of a thread, in a run
inline constexpr uint32_t kFinalizeRun = kFinalizeThreads * kFinalizeElements;

struct FinalizeParams {
  const uint16_t* rows = nullptr;  // bf16
  int64_t row_stride = 0;
  const int32_t* row_of_entry = nullptr;
  const float* weights = nullptr;  // null: 1
  uint32_t top_k = 1;
  uint32_t columns = 0;
  uint32_t runs = 0;  // of all tokens
  Divisor runs_of_token;
  EpilogueMatrix residual;  // none without data
  EpilogueMatrix y;         // of the residual's dtype
  bool vectors = false;  // rows of all three begin at multiples of 16 bytes and have whole eights
};

namespace finalize {

/// Eight codes of 16 bits, or half as many of 32.
struct alignas(16) Words {
  uint32_t at[4];
};

/// Neighbouring elements as f32, of two bytes each.
BLOCKSCALE_DEVICE void decode(const Words& words, Format dtype, float (&to)[kFinalizeElements]) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kFinalizeElements; ++i) {
    const auto code = static_cast<uint16_t>(words.at[i / 2] >> (i % 2 * 16));
    to[i] = decode_element(dtype, code);
  }
}

/// A thread's elements of a run, which are neighbours.
struct Neighbours {
  uint32_t first;

  BLOCKSCALE_DEVICE explicit Neighbours(uint32_t run)
      : first(run * kFinalizeRun + ptx::tid_x() * kFinalizeElements) {}

  BLOCKSCALE_DEVICE bool has_any(uint32_t columns) const { return first < columns; }

  using Row = Words;
  BLOCKSCALE_DEVICE Row load_row(const uint16_t* row, uint32_t) const {
    return ptx::ld_global(reinterpret_cast<const Words*>(row + first));
  }
  BLOCKSCALE_DEVICE static float element(const Row& row, int i) {
    return ptx::cvt_f32_bf16(static_cast<uint16_t>(row.at[i / 2] >> (i % 2 * 16)));
  }
  BLOCKSCALE_DEVICE void load(const EpilogueMatrix& x, int64_t row, uint32_t,
                              float (&to)[kFinalizeElements]) const {
    const int64_t at = row * x.row_stride + first;
    if (x.dtype != Format::f32) {
      decode(ptx::ld_global(reinterpret_cast<const Words*>(x.data + at * 2)), x.dtype, to);
      return;
    }
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Words words =
          ptx::ld_global(reinterpret_cast<const Words*>(x.data + at * 4 + half * 16));
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) to[half * 4 + i] = bit_cast<float>(words.at[i]);
    }
  }
  BLOCKSCALE_DEVICE void store(const EpilogueMatrix& x, int64_t row, uint32_t,
                               const float (&sums)[kFinalizeElements]) const {
    const int64_t at = row * x.row_stride + first;
    Words words;
    if (x.dtype != Format::f32) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float low = sums[2 * i], high = sums[2 * i + 1];
        words.at[i] = x.dtype == Format::f16 ? ptx::cvt_rn_f16x2_f32(high, low)
                                             : ptx::cvt_rn_bf16x2_f32(high, low);
      }
      ptx::st_global(reinterpret_cast<Words*>(x.data + at * 2), words);
      return;
    }
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) words.at[i] = bit_cast<uint32_t>(sums[half * 4 + i]);
      ptx::st_global(reinterpret_cast<Words*>(x.data + at * 4 + half * 16), words);
    }
  }
};

/// The same a block's threads apart.
struct Apart {
  uint32_t first;

  BLOCKSCALE_DEVICE explicit Apart(uint32_t run) : first(run * kFinalizeRun + ptx::tid_x()) {}

  BLOCKSCALE_DEVICE uint32_t column(int i) const {
    return first + static_cast<uint32_t>(i) * kFinalizeThreads;
  }
  BLOCKSCALE_DEVICE bool has_any(uint32_t columns) const { return first < columns; }

  struct Row {
    uint16_t at[kFinalizeElements];
  };
  BLOCKSCALE_DEVICE Row load_row(const uint16_t* row, uint32_t columns) const {
    Row to;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kFinalizeElements; ++i) {
      to.at[i] = column(i) < columns ? ptx::ld_global(row + column(i)) : uint16_t{0};
    }
    return to;
  }
  BLOCKSCALE_DEVICE static float element(const Row& row, int i) {
    return ptx::cvt_f32_bf16(row.at[i]);
  }
  BLOCKSCALE_DEVICE void load(const EpilogueMatrix& x, int64_t row, uint32_t columns,
                              float (&to)[kFinalizeElements]) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kFinalizeElements; ++i) {
      to[i] = column(i) < columns ? load_element(x, row * x.row_stride + column(i)) : 0.0f;
    }
  }
  BLOCKSCALE_DEVICE void store(const EpilogueMatrix& x, int64_t row, uint32_t columns,
                               const float (&sums)[kFinalizeElements]) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kFinalizeElements; ++i) {
      if (column(i) < columns) store_element(x, row * x.row_stride + column(i), sums[i]);
    }
  }
};

/// Run `run` of a token's columns. The rows of kAhead experts are asked for together: first all of
/// their numbers, because a branch waits for what it looks at.
template <class Elements>
BLOCKSCALE_DEVICE void add_run(const FinalizeParams& p, uint32_t token, uint32_t run) {
  constexpr uint32_t kAhead = 8;
  const Elements elements(run);
  if (!elements.has_any(p.columns)) return;
  float sums[kFinalizeElements] = {};
  if (p.residual.data != nullptr) elements.load(p.residual, token, p.columns, sums);
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
      for (int e = 0; e < kFinalizeElements; ++e) {
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
      finalize::add_run<finalize::Neighbours>(p, token, run);
    } else {
      finalize::add_run<finalize::Apart>(p, token, run);
    }
  }
}

}  // namespace blockscale
