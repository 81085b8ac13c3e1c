// What is quantized at a place: elements of x, or what is fused with them (docs/numerics.md, "Fused
// inputs"). The functions are those of core/math-inl.h.
#pragma once

#include "core/math.h"
#include "device/encode/chunk.cuh"
#include "device/math.h"
#include "ops/quantize/kernels/tiles.cuh"

namespace blockscale::quantizer {

using encoding::Chunk;
using encoding::value_at;

/// Format of the chunks that are quantized.
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

/// kCount elements of 16 bits from `first` on, in f32, of a chunk that was loaded as bf16 but is of
/// `dtype`.
template <int kCount, int kChunk>
BLOCKSCALE_DEVICE void find_halves(Chunk<Format::f32, kCount>& values,
                                   const Chunk<Format::bf16, kChunk>& loaded, int first,
                                   Format dtype) {
  if (dtype == Format::bf16) {
    fill_values(values, [&](int i) { return value_at(loaded, first + i); });
  } else {
    Chunk<Format::f16, kChunk> halves;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kChunk / 2; ++i) halves.word[i] = loaded.word[i];
    fill_values(values, [&](int i) { return value_at(halves, first + i); });
  }
}

/// What is read from memory for a chunk of values, before anything is computed of it: a thread
/// loads all its chunks before it uses one. Operands are loaded where they are used, since there
/// are few registers for them, and most of them come from L1; but for loads_weights_early.
template <QuantizeConfig kConfig>
struct RawChunk {
  static constexpr int kParts = kConfig.fused == Fused::swiglu ? 2 : 1;
  Chunk<kConfig.input, kConfig.chunk> x[kParts];  // swiglu: as gated_columns_of says
  Chunk<Format::bf16, kConfig.chunk> weight;      // loads_weights_early: bf16 or f16
};

/// Where the two parts of x for a chunk of swiglu begin, in columns of x, and how many elements of
/// each exist; of silu there is the first.
struct GatedColumnsOfChunk {
  int64_t part[2];
  int32_t left[2];
};

BLOCKSCALE_DEVICE GatedColumnsOfChunk gated_columns_of(const QuantizeParams& p, uint32_t column,
                                                       int32_t left, int chunk) {
  const FusedParams& f = p.fused;
  if (f.gate_group == 0) return {{column, column}, {left, left}};
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

template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void set_to_one(Chunk<kFormat, kCount>& values) {
  constexpr uint32_t kOnes = kFormat == Format::f32    ? 0x3f800000u
                             : kFormat == Format::bf16 ? 0x3f803f80u
                                                       : 0x3c003c00u;
  BLOCKSCALE_UNROLL
  for (uint32_t& word : values.word) word = kOnes;
}

/// swiglu of gates and ups as they were loaded.
template <Format kFormat, int kCount>
BLOCKSCALE_DEVICE void swiglu(Chunk<Format::f32, kCount>& values, const FusedParams& f,
                              const Chunk<kFormat, kCount> (&loaded)[2]) {
  Chunk<kFormat, kCount> part[2] = {loaded[0], loaded[1]};
  if (f.gate_group == 1) {
    encoding::separate_pairs(part);
    if (f.gate_order == GateOrder::up_first) {
      const Chunk<kFormat, kCount> ups = part[0];
      part[0] = part[1];
      part[1] = ups;
    }
  }
  fill_values(values, [&](int i) {
    return math::swiglu<device::KernelMath>(value_at(part[0], i), value_at(part[1], i));
  });
}

BLOCKSCALE_DEVICE float gelu(const FusedParams& f, float x) {
  return math::gelu<device::KernelMath>(x, f.gelu);
}

/// Where the row of x for a place begins.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE const uint8_t* x_row_at(const QuantizeParams& p, const ChunkPlace& place) {
  int64_t row = place.row;
  if constexpr (kConfig.kernel == QuantizeKernel::gathered) row = ptx::ld_global(p.row_index + row);
  return p.x.data + place.matrix * p.x.batch_stride + row * p.x.row_stride;
}

/// How much of a chunk there is at a place.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE Extent extent_at(const QuantizeParams& p, const ChunkPlace& place) {
  const int32_t left = place.row < p.rows ? static_cast<int32_t>(p.k - place.column) : 0;
  return {left, p.x.vectors && left >= kConfig.chunk};
}

/// Loads what the values at a place are computed from. What does not exist is 0.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_raw(RawChunk<kConfig>& raw, const QuantizeParams& p,
                                const ChunkPlace& place, const Extent& extent) {
  constexpr int64_t kBytes = Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
  if (extent.left <= 0) {
    BLOCKSCALE_UNROLL
    for (auto& part : raw.x) encoding::clear(part);
    return;
  }
  const uint8_t* const row = x_row_at<kConfig>(p, place);
  if constexpr (kConfig.fused == Fused::swiglu) {
    const GatedColumnsOfChunk from = gated_columns_of(p, place.column, extent.left, kConfig.chunk);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && p.fused.gate_group == 0) {
        set_to_one(raw.x[i]);
      } else {
        encoding::load_part(raw.x[i], row + from.part[i] * kBytes, from.left[i], extent.whole);
      }
    }
  } else {
    encoding::load_part(raw.x[0], row + place.column * kBytes, extent.left, extent.whole);
  }
  if constexpr (loads_weights_early(kConfig)) {
    const DeviceMatrix& weight = p.fused.weight;
    if (weight.dtype == Format::f32) return;
    encoding::load_part(raw.weight, weight.data + int64_t{place.column} * 2, extent.left,
                        extent.whole);
  }
}

/// What is quantized at a place, everything beyond the matrix being 0. `rstd` is that of the row,
/// of rms_norm.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_values(ValueChunk<kConfig>& values, const RawChunk<kConfig>& raw,
                                   const QuantizeParams& p, const ChunkPlace& place,
                                   const Extent& extent, [[maybe_unused]] float rstd) {
  using M = device::KernelMath;
  const auto x = [&](int i) { return value_at(raw.x[0], i); };
  if constexpr (kConfig.fused == Fused::none) {
    values = raw.x[0];
  } else if constexpr (kConfig.fused == Fused::gelu) {
    fill_values(values, [&](int i) { return gelu(p.fused, x(i)); });  // of 0: 0
  } else if constexpr (kConfig.fused == Fused::swiglu) {
    swiglu(values, p.fused, raw.x);  // likewise
  } else if (extent.left <= 0) {
    encoding::clear(values);
  } else {
    // modulate counts rows through all matrices.
    const uint32_t group = p.fused.rows_per_group.quotient(place.matrix * p.rows + place.row);
    constexpr int kPart = 8;  // operands in f32 take few registers at a time
    BLOCKSCALE_UNROLL
    for (int first = 0; first < kConfig.chunk; first += kPart) {
      const Extent part = {extent.left - first, extent.whole};
      const uint32_t column = place.column + static_cast<uint32_t>(first);
      [[maybe_unused]] Chunk<Format::f32, kPart> scale, shift, weight;
      if constexpr (kConfig.fused == Fused::modulate) {
        load_operand(scale, p.fused.scale, group, column, part);
        load_operand(shift, p.fused.shift, group, column, part);
      } else if (loads_weights_early(kConfig) && p.fused.weight.dtype != Format::f32) {
        find_halves(weight, raw.weight, first, p.fused.weight.dtype);
      } else {
        load_operand(weight, p.fused.weight, 0, column, part);
      }
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kPart; ++i) {
        float value;
        if constexpr (kConfig.fused == Fused::modulate) {
          value = math::modulate<M>(x(first + i), value_at(scale, i), value_at(shift, i));
        } else {
          value = math::rms_norm<M>(x(first + i), rstd, value_at(weight, i));
        }
        values.word[first + i] = bit_cast<uint32_t>(value);
      }
    }
  }
}

/// The rstd of a row as an `rstd` or `amax` kernel has left it, which has been waited for; 1 where
/// nothing needs it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float stored_rstd(const QuantizeParams& p, const ChunkPlace& place) {
  if constexpr (kConfig.fused != Fused::rms_norm) return 1;
  if (place.row >= p.rows) return 0;
  return ptx::ld_global(p.fused.rstd + uint64_t{place.matrix} * p.rows + place.row);
}

/// Loads and finds the values at a place.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_values(ValueChunk<kConfig>& values, const QuantizeParams& p,
                                   const ChunkPlace& place, const Extent& extent, float rstd) {
  RawChunk<kConfig> raw;
  load_raw(raw, p, place, extent);
  find_values(values, raw, p, place, extent, rstd);
}

}  // namespace blockscale::quantizer
