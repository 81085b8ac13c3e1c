// A thread's chunk of one row and the blocks that it has a part in: where it lies, their largest
// magnitudes and scales, its codes. A warp takes the short way where all of its chunks allow it,
// else the exact one.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The blocks of one row that a thread has a part in: neighbouring lanes share one that is longer
/// than a chunk, and a chunk may hold several that are shorter.
template <QuantizeConfig kConfig>
struct Units {
  static constexpr int kCount =
      kConfig.block != 0 && kConfig.block < kConfig.chunk ? kConfig.chunk / kConfig.block : 1;
  static constexpr int kSize = kConfig.chunk / kCount;
  static constexpr int kLanes = kConfig.block == 0 ? 1 : kConfig.block / kSize;
  BlockScale scale[kCount];
};

/// Elements [i * kSize, i * kSize + kSize) of a chunk.
template <int kSize, Format kFormat, int kCount>
BLOCKSCALE_DEVICE Chunk<kFormat, kSize> part_of(const Chunk<kFormat, kCount>& chunk, int i) {
  Chunk<kFormat, kSize> part;
  constexpr int kWords = Chunk<kFormat, kSize>::kWords;
  BLOCKSCALE_UNROLL
  for (int j = 0; j < kWords; ++j) part.word[j] = chunk.word[i * kWords + j];
  return part;
}

/// The same the other way round: the codes of these elements.
template <Format kElement, int kCount, int kSize>
BLOCKSCALE_DEVICE void set_part(Codes<kElement, kCount>& codes, int i,
                                const Codes<kElement, kSize>& part) {
  constexpr int kWords = Codes<kElement, kSize>::kWords;
  BLOCKSCALE_UNROLL
  for (int j = 0; j < kWords; ++j) codes.word[i * kWords + j] = part.word[j];
}

/// Codes of a chunk with the scales of its units. kExact as in encode_chunk.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Codes<kConfig.element, kConfig.chunk> encode_units(
    const ValueChunk<kConfig>& chunk, const Units<kConfig>& units) {
  using U = Units<kConfig>;
  Codes<kConfig.element, kConfig.chunk> codes;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < U::kCount; ++i) {
    set_part(codes, i,
             encode_chunk<kConfig.element, kConfig.rule, kExact>(part_of<U::kSize>(chunk, i),
                                                                 units.scale[i]));
  }
  return codes;
}

/// Encodes and stores a chunk the exact way, as far as it exists.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_exactly(const QuantizeParams& p, const ChunkPlace& place,
                                     const ValueChunk<kConfig>& chunk,
                                     const Units<kConfig>& units) {
  const int32_t left = static_cast<int32_t>(p.k - place.column);
  if (place.row >= p.rows || left <= 0) return;
  const auto codes = encode_units<kConfig, true>(chunk, units);
  uint8_t* const to = codes_at<kConfig.element>(p, place);
  if (p.value_vectors && left >= kConfig.chunk) {
    store_codes(codes, to);
  } else {
    store_code_bytes(codes, left, to);
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_exactly(const QuantizeParams& p, const ChunkPlace& place,
                                     const ValueChunk<kConfig>& chunk, const BlockScale& scale) {
  static_assert(Units<kConfig>::kCount == 1);
  store_exactly<kConfig>(p, place, chunk, Units<kConfig>{{scale}});
}

/// The same the short way: the chunk exists, and vectors fit.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_shortly(const QuantizeParams& p, const ChunkPlace& place,
                                     const ValueChunk<kConfig>& chunk,
                                     const Units<kConfig>& units) {
  store_codes(encode_units<kConfig, false>(chunk, units), codes_at<kConfig.element>(p, place));
}

/// Whether a lane of the warp has an exceptional block.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool any_exceptional(const Units<kConfig>& units) {
  bool exceptional = false;
  BLOCKSCALE_UNROLL
  for (const BlockScale& scale : units.scale) exceptional |= scale.exceptional;
  return ptx::vote_sync_any(ptx::kFullMask, exceptional);
}

/// Whether NaN may stand for a value that a table lacks: a chunk with one is done the exact way.
template <QuantizeConfig kConfig, bool kExact>
inline constexpr bool kMayLack = kConfig.table && !kExact;

/// The largest magnitudes (f32 bits) of a chunk's units.
template <QuantizeConfig kConfig>
struct UnitMaxima {
  uint32_t bits[Units<kConfig>::kCount];
};

/// All lanes of a warp call it. kExact as in encode_chunk.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE UnitMaxima<kConfig> unit_maxima(const ValueChunk<kConfig>& chunk) {
  using U = Units<kConfig>;
  constexpr bool kPoison = kMayLack<kConfig, kExact> || kConfig.rule != ScaleRule::fp8;
  UnitMaxima<kConfig> maxima;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < U::kCount; ++i) {
    Largest<kValueFormat<kConfig>, kPoison> largest;
    largest.fold(part_of<U::kSize>(chunk, i));
    BLOCKSCALE_UNROLL
    for (uint32_t lanes = 1; lanes < U::kLanes; lanes *= 2) {
      largest.fold_magnitudes(ptx::shfl_sync_bfly(ptx::kFullMask, largest.bits, lanes));
    }
    maxima.bits[i] = largest.f32_bits();
  }
  return maxima;
}

/// The scales of blocks with these largest magnitudes. kExact as in encode_chunk.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Units<kConfig> block_scales(const QuantizeParams& p, float tensor_scale,
                                              const UnitMaxima<kConfig>& maxima) {
  Units<kConfig> units;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Units<kConfig>::kCount; ++i) {
    units.scale[i] = block_scale<kConfig, kExact>(p, tensor_scale, maxima.bits[i]);
    // Of nvfp4 these are exceptional anyway.
    if (kMayLack<kConfig, kExact> && kConfig.rule != ScaleRule::nvfp4) {
      units.scale[i].exceptional |= maxima.bits[i] >= kInfinityBits;
    }
  }
  return units;
}

/// Stores the scales of the blocks that begin in a chunk that exists as a whole.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_whole_block_scales(const QuantizeParams& p, const ChunkPlace& place,
                                                const Units<kConfig>& units) {
  if (kConfig.block > kConfig.chunk && place.column % kConfig.block != 0) return;
  uint32_t stored[Units<kConfig>::kCount];
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Units<kConfig>::kCount; ++i) stored[i] = units.scale[i].stored;
  store_scales_at<kConfig>(p, place.matrix, place.row, place.column / kConfig.block, stored);
}

/// The same as far as they or their padding exist. `inside`: the chunk is known to exist, which
/// saves instructions where they count, and costs registers.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_block_scales(const QuantizeParams& p, const ChunkPlace& place,
                                          const Units<kConfig>& units, bool inside) {
  if (kConfig.rule == ScaleRule::nvfp4 && inside) {
    store_whole_block_scales<kConfig>(p, place, units);
  } else if (place.column % kConfig.block == 0) {
    store_scales_of_blocks<kConfig>(p, place, units.scale);
  }
}

/// A thread's chunk of a tile.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ChunkPlace chunk_place(const TileGrid& grid, const TilePlace& tile) {
  const uint32_t thread = ptx::tid_x();
  const uint32_t down = thread >> grid.log2_chunks;
  const uint32_t across = thread & ((1u << grid.log2_chunks) - 1);
  const uint32_t chunk = (tile.across << grid.log2_chunks) + across;
  return {tile.matrix, tile.row + down * tile_rows_of_thread(kConfig), chunk * kConfig.chunk};
}

/// Whether a thread's chunk exists, and whether its warp can take the short way: with whole
/// vectors, where each lane's chunk exists or is beyond the matrix.
struct ChunkState {
  bool inside;
  bool whole;
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ChunkState chunk_state(const QuantizeParams& p, const ChunkPlace& place) {
  const bool inside = place.row < p.rows && place.column + kConfig.chunk <= p.k;
  const bool outside = place.row >= p.rows || place.column >= p.k;
  const bool vectors = p.x.vectors && p.value_vectors;
  return {inside, vectors && ptx::vote_sync_all(ptx::kFullMask, inside || outside)};
}

/// The chunk of a thread whose warp takes the short way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_chunk(HeldChunk<kConfig>& chunk, const QuantizeParams& p,
                                  const ChunkPlace& place, const ChunkState& state) {
  if (state.inside) {
    Input<with_held(kConfig)>(p, place).load_whole(chunk);
  } else {
    clear(chunk);
  }
}

/// The scale of the row or tensor of a chunk with this largest magnitude (bits).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE Units<kConfig> known_scale(const QuantizeParams& p, float tensor_scale,
                                             const ChunkPlace& place, uint32_t amax) {
  float scale = tensor_scale;
  if (p.given_scales && place.row < p.rows) {
    const int64_t at = place.matrix * p.scale_batch_stride +
                       scale_offset(p.layout, place.row, 0, p.scale_leading_stride);
    scale = ptx::ld_global(reinterpret_cast<const float*>(p.scales) + at);
  }
  return {{known_fp8_scale<kConfig.element>(scale, amax)}};
}

/// The scales of a chunk's blocks, which are stored, or the one of its row or tensor. kExact as in
/// encode_chunk, `inside` as in store_block_scales.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Units<kConfig> scales_of(const QuantizeParams& p, float tensor_scale,
                                           const ChunkPlace& place,
                                           const UnitMaxima<kConfig>& maxima, bool inside) {
  if constexpr (kConfig.kernel == QuantizeKernel::scaled) {
    return known_scale<kConfig>(p, tensor_scale, place, maxima.bits[0]);
  } else {
    const Units<kConfig> units = block_scales<kConfig, kExact>(p, tensor_scale, maxima);
    store_block_scales<kConfig>(p, place, units, inside);
    return units;
  }
}

/// A warp's chunks the short way. False, if they must be done (again) the exact way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_chunk(const QuantizeParams& p, float tensor_scale,
                                      const ChunkPlace& place, const ChunkState& state,
                                      const ValueChunk<kConfig>& chunk,
                                      const UnitMaxima<kConfig>& maxima) {
  const Units<kConfig> units =
      scales_of<kConfig, false>(p, tensor_scale, place, maxima, state.inside);
  if (any_exceptional(units)) return false;
  if (state.inside) store_shortly<kConfig>(p, place, chunk, units);
  return true;
}

/// A warp's chunks of values in registers, any of which may be done the exact way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_held_chunk(const QuantizeParams& p, float tensor_scale,
                                           const ChunkState& state, const ChunkPlace& place,
                                           const ValueChunk<kConfig>& chunk) {
  const auto units =
      block_scales<kConfig, false>(p, tensor_scale, unit_maxima<kConfig, false>(chunk));
  if (!state.whole || any_exceptional(units)) {
    const auto maxima = unit_maxima<kConfig, true>(chunk);
    store_exactly<kConfig>(p, place, chunk,
                           scales_of<kConfig, true>(p, tensor_scale, place, maxima, false));
  } else if (state.inside) {
    store_whole_block_scales<kConfig>(p, place, units);
    store_shortly<kConfig>(p, place, chunk, units);
  } else {
    store_block_scales<kConfig>(p, place, units, false);
  }
}

/// The same with the scale of their row, which is known.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_with_scale(const QuantizeParams& p, const ChunkState& state,
                                        const ChunkPlace& place, const ValueChunk<kConfig>& chunk,
                                        const BlockScale& scale) {
  if (!state.whole || scale.exceptional) {
    store_exactly<kConfig>(p, place, chunk, scale);
  } else if (state.inside) {
    store_shortly<kConfig>(p, place, chunk, {{scale}});
  }
}

/// A warp's chunks the exact way: where values must be computed one unit after the other, which
/// keeps few registers busy.
///
/// Not in a loop: what it would load of p each time ptxas loads before its branch, for all chunks.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_chunk_exactly(const QuantizeParams& p, float tensor_scale,
                                              const ChunkPlace& place) {
  constexpr bool kComputes = kConfig.transform != InputTransform::identity;
  constexpr QuantizeConfig kPart = kComputes ? with_chunk(kConfig, Units<kConfig>::kSize) : kConfig;
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kConfig.chunk / kPart.chunk; ++i) {
    const ChunkPlace at = {place.matrix, place.row, place.column + i * kPart.chunk};
    ValueChunk<kPart> part;
    load_part_of<kPart>(part, p, at);
    const auto maxima = unit_maxima<kPart, true>(part);
    store_exactly<kPart>(p, at, part, scales_of<kPart, true>(p, tensor_scale, at, maxima, false));
  }
}

}  // namespace blockscale::quantize_sm90
