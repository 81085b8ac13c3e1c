// Fused inputs: what is quantised as a function of one or two chunks of x and of operands
// (docs/numerics.md, "Fused inputs"). The functions are those of core/math-inl.h.
#pragma once

#include "core/input_transform.h"
#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"
#include "device/ptx/global_memory.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Elements of an operand, whose type is a run-time value, in f32. With `whole` all of them exist
/// and rows start at multiples of 16 bytes; else those from `left` on are 0.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_operand_of(Chunk<Format::f32, kCount>& values, const uint8_t* row,
                                       uint32_t column, int32_t left, bool whole) {
  Chunk<kFormat, kCount> chunk;
  const uint8_t* const from = row + int64_t{column} * Chunk<kFormat, kCount>::kElementBytes;
  load_part(chunk, from, left, whole);
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) values.word[i] = bit_cast<uint32_t>(value_at(chunk, i));
}

template <int kCount>
BLOCKSCALE_DEVICE void load_operand(Chunk<Format::f32, kCount>& values, const DeviceMatrix& operand,
                                    uint32_t row, uint32_t column, int32_t left, bool whole) {
  const uint8_t* const from = operand.data + row * operand.row_stride;
  if (operand.dtype == Format::bf16) {
    load_operand_of<Format::bf16>(values, from, column, left, whole);
  } else if (operand.dtype == Format::f16) {
    load_operand_of<Format::f16>(values, from, column, left, whole);
  } else {
    load_operand_of<Format::f32>(values, from, column, left, whole);
  }
}

/// values[i] = function(i).
template <int kCount, class Function>
BLOCKSCALE_DEVICE void fill_values(Chunk<Format::f32, kCount>& values, const Function& function) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) values.word[i] = bit_cast<uint32_t>(function(i));
}

/// swiglu of kCount columns whose gate and up lie in runs of their own.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void swiglu_of_runs(Chunk<Format::f32, kCount>& values, const uint8_t* gate_from,
                                      const uint8_t* up_from, int32_t left, bool whole) {
  Chunk<kFormat, kCount> gate, up;
  load_part(gate, gate_from, left, whole);
  load_part(up, up_from, left, whole);
  fill_values(values, [&](int i) {
    return math::swiglu<device::KernelMath>(value_at(gate, i), value_at(up, i));
  });
}

/// swiglu of kCount columns whose gates and ups alternate.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void swiglu_of_pairs(Chunk<Format::f32, kCount>& values, const uint8_t* from,
                                       bool gate_first, int32_t left, bool whole) {
  Chunk<kFormat, kCount> both[2];
  load_part(both[0], from, 2 * left, whole);
  load_part(both[1], from + kCount * Chunk<kFormat, kCount>::kElementBytes, 2 * left - kCount,
            whole);
  fill_values(values, [&](int i) {
    const float first = value_at(both[2 * i / kCount], 2 * i % kCount);
    const float second = value_at(both[2 * i / kCount], 2 * i % kCount + 1);
    return math::swiglu<device::KernelMath>(gate_first ? first : second,
                                            gate_first ? second : first);
  });
}

/// swiglu at a column of a row of x.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_swiglu(Chunk<Format::f32, kCount>& values, const QuantizeParams& p,
                                   const uint8_t* row, uint32_t column, int32_t left, bool whole) {
  constexpr int64_t kBytes = Chunk<kFormat, kCount>::kElementBytes;
  const TransformParams& t = p.transform;
  if (t.gate_group == 1) {
    swiglu_of_pairs<kFormat>(values, row + 2 * column * kBytes,
                             t.gate_order == GateOrder::gate_first, left, whole);
    return;
  }
  // A chunk never crosses from one run to the next: runs are of 64 columns, or of all.
  const bool halves = t.gate_group == p.k;
  const GatedColumns start = halves ? gated_columns(t.gate_order, t.gate_group, 0)
                                    : gated_columns(t.gate_order, 64, column);
  const int64_t shift = halves ? column : 0;
  swiglu_of_runs<kFormat>(values, row + (start.gate + shift) * kBytes,
                          row + (start.up + shift) * kBytes, left, whole);
}

/// modulate, of a row counted through all matrices.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void modulate_chunk(Chunk<Format::f32, kCount>& values, const TransformParams& t,
                                      const Chunk<kFormat, kCount>& x, uint32_t row,
                                      uint32_t column, int32_t left, bool whole) {
  Chunk<Format::f32, kCount> scale, shift;
  const uint32_t group = t.rows_per_group.quotient(row);
  load_operand(scale, t.scale, group, column, left, whole);
  load_operand(shift, t.shift, group, column, left, whole);
  fill_values(values, [&](int i) {
    return math::modulate<device::KernelMath>(value_at(x, i), value_at(scale, i),
                                              value_at(shift, i));
  });
}

/// rms_norm, with the factor of the row.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void normalize_chunk(Chunk<Format::f32, kCount>& values, const TransformParams& t,
                                       const Chunk<kFormat, kCount>& x, float factor,
                                       uint32_t column, int32_t left, bool whole) {
  Chunk<Format::f32, kCount> weight;
  load_operand(weight, t.weight, 0, column, left, whole);
  fill_values(values, [&](int i) {
    return math::rms_norm<device::KernelMath>(value_at(x, i), factor, value_at(weight, i));
  });
}

template <InputTransform kTransform, Format kFormat, int kCount>
BLOCKSCALE_DEVICE void gelu_chunk(Chunk<Format::f32, kCount>& values,
                                  const Chunk<kFormat, kCount>& x) {
  fill_values(values, [&](int i) {
    if constexpr (kTransform == InputTransform::gelu_tanh) {
      return math::gelu_tanh<device::KernelMath>(value_at(x, i));
    } else {
      return math::gelu_erf<device::KernelMath>(value_at(x, i));
    }
  });
}

}  // namespace blockscale::quantize_sm90
