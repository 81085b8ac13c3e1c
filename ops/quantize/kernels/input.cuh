// What is quantised at a place: elements of x, or what is fused with them (docs/numerics.md, "Fused
// inputs"). The functions are those of core/math-inl.h.
#pragma once

#include "core/math.h"
#include "device/encode/chunk.cuh"
#include "device/math.h"
#include "ops/quantize/kernels/tiles.cuh"

namespace blockscale::quantizer {

using encoding::Chunk;
using encoding::value_at;

/// Format of the chunks that are quantised.
template <QuantizeConfig kConfig>
inline constexpr Format kValueFormat = kConfig.fused == Fused::none ? kConfig.input : Format::f32;

template <QuantizeConfig kConfig>
using ValueChunk = Chunk<kValueFormat<kConfig>, kConfig.chunk>;

/// values[i] = function(i).
template <int kCount, class Function>
BLOCKSCALE_DEVICE void fill_values(Chunk<Format::f32, kCount>& values, const Function& function) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) values.word[i] = bit_cast<uint32_t>(function(i));
}

/// How much of a chunk there is: `left` columns from its first one on, maybe none. With `whole` all
/// of it exists and rows start at multiples of 16 bytes.
struct Extent {
  int32_t left;
  bool whole;
};

template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_operand_of(Chunk<Format::f32, kCount>& values, const uint8_t* row,
                                       uint32_t column, const Extent& extent) {
  Chunk<kFormat, kCount> chunk;
  const uint8_t* const from = row + int64_t{column} * Chunk<kFormat, kCount>::kElementBytes;
  encoding::load_part(chunk, from, extent.left, extent.whole);
  fill_values(values, [&](int i) { return value_at(chunk, i); });
}

/// Elements of an operand, whose type is a run-time value, in f32. Those that do not exist are 0.
template <int kCount>
BLOCKSCALE_DEVICE void load_operand(Chunk<Format::f32, kCount>& values, const DeviceMatrix& operand,
                                    uint32_t row, uint32_t column, const Extent& extent) {
  const uint8_t* const from = operand.data + row * operand.row_stride;
  if (operand.dtype == Format::bf16) {
    load_operand_of<Format::bf16>(values, from, column, extent);
  } else if (operand.dtype == Format::f16) {
    load_operand_of<Format::f16>(values, from, column, extent);
  } else {
    load_operand_of<Format::f32>(values, from, column, extent);
  }
}

/// Where the gates and ups of a chunk of columns begin, in columns of x, and how many of each kind
/// of half of a GatedChunk exist.
struct GatedColumnsOfChunk {
  int64_t part[2];
  int32_t left[2];
};

BLOCKSCALE_DEVICE GatedColumnsOfChunk gated_columns_of(const QuantizeParams& p, uint32_t column,
                                                       int32_t left, int chunk) {
  const FusedParams& f = p.fused;
  if (f.gate_group == 1) {  // pairs, in two halves
    const int64_t first = int64_t{column} * 2;
    return {{first, first + chunk}, {2 * left, 2 * left - chunk}};
  }
  // A chunk never crosses from one run to the next: runs are of 64 columns, or of all.
  const bool halves = f.gate_group == p.k;
  const GatedColumns start = halves ? gated_columns(f.gate_order, f.gate_group, 0)
                                    : gated_columns(f.gate_order, 64, column);
  const int64_t shift = halves ? column : 0;
  return {{start.gate + shift, start.up + shift}, {left, left}};
}

/// Loads gates and ups of kCount columns of a row of x, and computes swiglu of them.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void load_swiglu(Chunk<Format::f32, kCount>& values, const QuantizeParams& p,
                                   const uint8_t* row, uint32_t column, const Extent& extent) {
  constexpr int64_t kBytes = Chunk<kFormat, kCount>::kElementBytes;
  const GatedColumnsOfChunk from = gated_columns_of(p, column, extent.left, kCount);
  Chunk<kFormat, kCount> part[2];
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    encoding::load_part(part[i], row + from.part[i] * kBytes, from.left[i], extent.whole);
  }
  const auto swiglu = [](float gate, float up) {
    return math::swiglu<device::KernelMath>(gate, up);
  };
  if (p.fused.gate_group == 1) {
    const bool gate_first = p.fused.gate_order == GateOrder::gate_first;
    fill_values(values, [&](int i) {
      const Chunk<kFormat, kCount>& pairs = part[2 * i / kCount];
      const float first = value_at(pairs, 2 * i % kCount);
      const float second = value_at(pairs, 2 * i % kCount + 1);
      return gate_first ? swiglu(first, second) : swiglu(second, first);
    });
  } else {
    fill_values(values, [&](int i) { return swiglu(value_at(part[0], i), value_at(part[1], i)); });
  }
}

/// modulate, of a row counted through all matrices.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void modulate(Chunk<Format::f32, kCount>& values, const FusedParams& f,
                                const Chunk<kFormat, kCount>& x, uint32_t row, uint32_t column,
                                const Extent& extent) {
  Chunk<Format::f32, kCount> scale, shift;
  const uint32_t group = f.rows_per_group.quotient(row);
  load_operand(scale, f.scale, group, column, extent);
  load_operand(shift, f.shift, group, column, extent);
  fill_values(values, [&](int i) {
    return math::modulate<device::KernelMath>(value_at(x, i), value_at(scale, i),
                                              value_at(shift, i));
  });
}

/// rms_norm, with the rstd of the row.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void normalize(Chunk<Format::f32, kCount>& values, const FusedParams& f,
                                 const Chunk<kFormat, kCount>& x, float rstd, uint32_t column,
                                 const Extent& extent) {
  Chunk<Format::f32, kCount> weight;
  load_operand(weight, f.weight, 0, column, extent);
  fill_values(values, [&](int i) {
    return math::rms_norm<device::KernelMath>(value_at(x, i), rstd, value_at(weight, i));
  });
}

BLOCKSCALE_DEVICE float gelu(const FusedParams& f, float x) {
  return math::gelu<device::KernelMath>(x, f.gelu);
}

/// Where a row of x begins.
BLOCKSCALE_DEVICE const uint8_t* x_row_at(const QuantizeParams& p, const ChunkPlace& place) {
  return p.x.data + place.matrix * p.x.batch_stride + place.row * p.x.row_stride;
}

/// How much of a chunk there is at a place.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE Extent extent_at(const QuantizeParams& p, const ChunkPlace& place) {
  const int32_t left = place.row < p.rows ? static_cast<int32_t>(p.k - place.column) : 0;
  return {left, p.x.vectors && left >= kConfig.chunk};
}

/// Elements of x at a place. Those that do not exist are 0.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_x(Chunk<kConfig.input, kConfig.chunk>& x, const QuantizeParams& p,
                              const ChunkPlace& place, const Extent& extent) {
  constexpr int64_t kBytes = Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
  encoding::load_part(x, x_row_at(p, place) + place.column * kBytes, extent.left, extent.whole);
}

/// The rstd of a row, which a kernel before has found; that one has not been waited for yet.
BLOCKSCALE_DEVICE float await_rstd(const QuantizeParams& p, const ChunkPlace& place) {
  ptx::griddepcontrol_wait();
  if (place.row >= p.rows) return 0;
  return ptx::ld_global(p.fused.rstd + uint64_t{place.matrix} * p.rows + place.row);
}

/// What is quantised at a place, everything beyond the matrix being 0. x is loaded before rstd is
/// waited for.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_values(ValueChunk<kConfig>& values, const QuantizeParams& p,
                                   const ChunkPlace& place, const Extent& extent) {
  if (extent.left <= 0) {
    encoding::clear(values);
  } else if constexpr (kConfig.fused == Fused::none) {
    load_x<kConfig>(values, p, place, extent);
  } else if constexpr (kConfig.fused == Fused::swiglu) {
    load_swiglu<kConfig.input>(values, p, x_row_at(p, place), place.column, extent);
  } else {
    Chunk<kConfig.input, kConfig.chunk> x;
    load_x<kConfig>(x, p, place, extent);
    if constexpr (kConfig.fused == Fused::modulate) {
      const uint32_t row = place.matrix * p.rows + place.row;
      modulate(values, p.fused, x, row, place.column, extent);
    } else if constexpr (kConfig.fused == Fused::rms_norm) {
      normalize(values, p.fused, x, await_rstd(p, place), place.column, extent);
    } else {
      fill_values(values, [&](int i) { return gelu(p.fused, value_at(x, i)); });
    }
  }
}

}  // namespace blockscale::quantizer
