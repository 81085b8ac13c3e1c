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

/// Gates and ups of kCount columns as they lie in x: a chunk of one and a chunk of the other, or,
/// where they alternate, two chunks of pairs.
template <Format kFormat, int kCount>
struct GatedChunk {
  Chunk<kFormat, kCount> part[2];
};

/// Where the parts of a GatedChunk begin, in bytes from the start of a row of x.
struct GatedOffsets {
  int64_t part[2];
};

template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE GatedOffsets gated_offsets(const QuantizeParams& p, uint32_t column) {
  constexpr int64_t kBytes = Chunk<kFormat, kCount>::kElementBytes;
  const TransformParams& t = p.transform;
  if (t.gate_group == 1) {
    const int64_t first = int64_t{column} * 2 * kBytes;
    return {{first, first + kCount * kBytes}};
  }
  // A chunk never crosses from one run to the next: runs are of 64 columns, or of all.
  const bool halves = t.gate_group == p.k;
  const GatedColumns start = halves ? gated_columns(t.gate_order, t.gate_group, 0)
                                    : gated_columns(t.gate_order, 64, column);
  const int64_t shift = halves ? column : 0;
  return {{(start.gate + shift) * kBytes, (start.up + shift) * kBytes}};
}

/// Elements that the columns from `left` on would need are 0.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_gated(GatedChunk<kFormat, kCount>& gated, const QuantizeParams& p,
                                  const uint8_t* row, const GatedOffsets& offsets, int32_t left,
                                  bool whole) {
  const bool pairs = p.transform.gate_group == 1;
  load_part(gated.part[0], row + offsets.part[0], pairs ? 2 * left : left, whole);
  load_part(gated.part[1], row + offsets.part[1], pairs ? 2 * left - kCount : left, whole);
}

/// kPairs: gates and ups alternate. Else the parts are gates, ups.
template <bool kPairs, Format kFormat, int kCount>
BLOCKSCALE_DEVICE void swiglu_of(Chunk<Format::f32, kCount>& values, const TransformParams& t,
                                 const GatedChunk<kFormat, kCount>& gated) {
  const auto swiglu = [](float gate, float up) {
    return math::swiglu<device::KernelMath>(gate, up);
  };
  if constexpr (kPairs) {
    const bool gate_first = t.gate_order == GateOrder::gate_first;
    fill_values(values, [&](int i) {
      const Chunk<kFormat, kCount>& pairs = gated.part[2 * i / kCount];
      const float first = value_at(pairs, 2 * i % kCount);
      const float second = value_at(pairs, 2 * i % kCount + 1);
      return gate_first ? swiglu(first, second) : swiglu(second, first);
    });
  } else {
    fill_values(values, [&](int i) {
      return swiglu(value_at(gated.part[0], i), value_at(gated.part[1], i));
    });
  }
}

/// swiglu at a column of a row of x.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_swiglu(Chunk<Format::f32, kCount>& values, const QuantizeParams& p,
                                   const uint8_t* row, uint32_t column, int32_t left, bool whole) {
  GatedChunk<kFormat, kCount> gated;
  load_gated(gated, p, row, gated_offsets<kFormat, kCount>(p, column), left, whole);
  if (p.transform.gate_group == 1) {
    swiglu_of<true>(values, p.transform, gated);
  } else {
    swiglu_of<false>(values, p.transform, gated);
  }
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

template <InputTransform kTransform>
BLOCKSCALE_DEVICE float gelu(float x) {
  static_assert(is_gelu(kTransform));
  if constexpr (kTransform == InputTransform::gelu_tanh) {
    return math::gelu_tanh<device::KernelMath>(x);
  } else {
    return math::gelu_erf<device::KernelMath>(x);
  }
}

template <InputTransform kTransform, Format kFormat, int kCount>
BLOCKSCALE_DEVICE void gelu_chunk(Chunk<Format::f32, kCount>& values,
                                  const Chunk<kFormat, kCount>& x) {
  fill_values(values, [&](int i) { return gelu<kTransform>(value_at(x, i)); });
}

}  // namespace blockscale::quantize_sm90
