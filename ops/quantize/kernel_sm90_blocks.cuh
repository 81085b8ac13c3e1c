// Kernels whose threads hold one chunk, in many small thread blocks: scales for blocks of one row,
// codes with scales that are known; and largest magnitudes.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_gelu_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_queue.cuh"
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

/// Codes of a chunk with the scales of its units. kExact as in encode_chunk.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Codes<kConfig.element, kConfig.chunk> encode_units(
    const ValueChunk<kConfig>& chunk, const Units<kConfig>& units) {
  using U = Units<kConfig>;
  Codes<kConfig.element, kConfig.chunk> codes;
  constexpr int kWords = Codes<kConfig.element, U::kSize>::kWords;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < U::kCount; ++i) {
    const auto part = encode_chunk<kConfig.element, kConfig.rule, kExact>(
        part_of<U::kSize>(chunk, i), units.scale[i]);
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kWords; ++j) codes.word[i * kWords + j] = part.word[j];
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

/// The same from approximate values of GELU of a chunk of x (encode_gelu), in a block with the
/// largest magnitude `amax` (bits). Returns the set of its pieces of 8 elements that must be stored
/// again.
template <QuantizeConfig kConfig, class GeluAt>
BLOCKSCALE_DEVICE uint32_t store_likely(const QuantizeParams& p, const ChunkPlace& place,
                                        const HeldChunk<kConfig>& x, const GeluAt& gelu_at,
                                        const BlockScale& scale, uint32_t amax) {
  const auto likely = encode_gelu<kConfig.element, kConfig.rule>(x, gelu_at, scale, amax);
  store_codes(likely.codes, codes_at<kConfig.element>(p, place));
  return likely.doubtful;
}

/// Stores a set of pieces of 8 elements again, the exact way: piece i is the one at place_of(i), of
/// unit i * 8 / kSize.
template <QuantizeConfig kConfig, class PlaceOf>
BLOCKSCALE_DEVICE void store_again(const QuantizeParams& p, uint32_t pieces,
                                   const Units<kConfig>& units, const PlaceOf& place_of) {
  constexpr QuantizeConfig kPiece = with_chunk(kConfig, 8);
  constexpr uint32_t kPieces = Units<kConfig>::kSize / 8;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = 0; pieces >> i != 0; ++i) {
    if ((pieces >> i & 1) == 0) continue;
    const ChunkPlace place = place_of(i);
    ValueChunk<kPiece> piece;
    load_part_of<kPiece>(piece, p, place);
    BlockScale scale = units.scale[0];
    if constexpr (Units<kConfig>::kCount == 2) {
      if (i >= kPieces) scale = units.scale[1];
    }
    store_exactly<kPiece>(p, place, piece, scale);
  }
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
    if (kMayLack<kConfig, kExact>) units.scale[i].exceptional |= maxima.bits[i] >= kInfinityBits;
  }
  return units;
}

/// Stores the scales of the blocks that begin in a chunk, as far as they or their padding exist.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_block_scales(const QuantizeParams& p, const ChunkPlace& place,
                                          const Units<kConfig>& units) {
  if (place.column % kConfig.block == 0) store_row_scales<kConfig>(p, place, units.scale);
}

/// The same for a chunk that exists as a whole.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_whole_block_scales(const QuantizeParams& p, const ChunkPlace& place,
                                                const Units<kConfig>& units) {
  if (kConfig.block > kConfig.chunk && place.column % kConfig.block != 0) return;
  uint32_t stored[Units<kConfig>::kCount];
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Units<kConfig>::kCount; ++i) stored[i] = units.scale[i].stored;
  store_scales_at<kConfig>(p, place.matrix, place.row, place.column / kConfig.block, stored);
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
    Input<with_held(kConfig)>(p, place).load_whole(chunk, 0);
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
/// encode_chunk.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE Units<kConfig> scales_of(const QuantizeParams& p, float tensor_scale,
                                           const ChunkPlace& place,
                                           const UnitMaxima<kConfig>& maxima) {
  if constexpr (kConfig.kernel == QuantizeKernel::scaled) {
    return known_scale<kConfig>(p, tensor_scale, place, maxima.bits[0]);
  } else {
    const Units<kConfig> units = block_scales<kConfig, kExact>(p, tensor_scale, maxima);
    store_block_scales<kConfig>(p, place, units);
    return units;
  }
}

/// A warp's chunks the short way. False, if they must be done (again) the exact way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_chunk(const QuantizeParams& p, float tensor_scale,
                                      const ChunkPlace& place, const ChunkState& state,
                                      const ValueChunk<kConfig>& chunk,
                                      const UnitMaxima<kConfig>& maxima) {
  const Units<kConfig> units = scales_of<kConfig, false>(p, tensor_scale, place, maxima);
  if (any_exceptional(units)) return false;
  if (state.inside) store_shortly<kConfig>(p, place, chunk, units);
  return true;
}

/// The largest magnitude (bits) of GELU of the blocks of chunks of x, which is no larger than the
/// exact one, and the scale, which is that of the exact one unless it is exceptional. All lanes of
/// a warp call it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t find_gelu_scale(BlockScale& scale, const QuantizeParams& p,
                                           const HeldChunk<kConfig> (&x)[1]) {
  constexpr InputTransform kTransform = kConfig.transform;
  constexpr uint32_t kLanes = Units<kConfig>::kLanes;
  if constexpr (kConfig.rule == ScaleRule::fp8) {
    const auto value_of = [](float y) { return gelu<kTransform>(y); };
    const uint32_t amax = largest_gelu_of_lanes<kTransform, false, kLanes>(x, value_of).bits;
    scale = block_scale<kConfig, false>(p, 1.0f, amax);
    return amax;
  } else {
    const auto value_of = [](float y) { return approximate_gelu<kTransform>(y).value(); };
    const auto largest = largest_gelu_of_lanes<kTransform, true, kLanes>(x, value_of);
    const Bounds bounds(bit_cast<float>(largest.bits), largest.ordered);
    const uint32_t amax = bit_cast<uint32_t>(bounds.low);
    scale = block_scale<kConfig, false>(p, 1.0f, amax);
    const BlockScale of_high =
        block_scale<kConfig, false>(p, 1.0f, bit_cast<uint32_t>(bounds.high));
    scale.exceptional |= scale.stored != of_high.stored;
    return amax;
  }
}

/// The same of GELU from approximate values of chunks of x.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_gelu_chunk(const QuantizeParams& p, const ChunkPlace& place,
                                           const ChunkState& state,
                                           const HeldChunk<kConfig> (&x)[1]) {
  static_assert(Units<kConfig>::kCount == 1);
  constexpr bool kHasSureCodes = format_traits(kConfig.element).bits < 8;
  Units<kConfig> units;
  BlockScale& scale = units.scale[0];
  const uint32_t amax = find_gelu_scale<kConfig>(scale, p, x);
  store_block_scales<kConfig>(p, place, units);
  if (kHasSureCodes) scale.exceptional |= !has_sure_codes<kConfig.element>(amax);
  if (any_exceptional(units)) return false;
  if (!state.inside) return true;
  const auto gelu_at = [&](int i) {
    return approximate_gelu<kConfig.transform>(value_at(x[0], i)).value();
  };
  const uint32_t doubtful = store_likely<kConfig>(p, place, x[0], gelu_at, scale, amax);
  store_again<kConfig>(p, doubtful, units, [&](uint32_t i) {
    return ChunkPlace{place.matrix, place.row, place.column + 8 * i};
  });
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
                           scales_of<kConfig, true>(p, tensor_scale, place, maxima));
  } else if (state.inside) {
    store_whole_block_scales<kConfig>(p, place, units);
    store_shortly<kConfig>(p, place, chunk, units);
  } else {
    store_block_scales<kConfig>(p, place, units);
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

/// A warp's chunks the exact way: one unit after the other, which keeps few registers busy.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_chunk_exactly(const QuantizeParams& p, float tensor_scale,
                                              const ChunkPlace& place) {
  constexpr QuantizeConfig kUnit = with_chunk(kConfig, Units<kConfig>::kSize);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = 0; i < Units<kConfig>::kCount; ++i) {
    const ChunkPlace at = {place.matrix, place.row, place.column + i * kUnit.chunk};
    ValueChunk<kUnit> unit;
    load_part_of<kUnit>(unit, p, at);
    const auto maxima = unit_maxima<kUnit, true>(unit);
    store_exactly<kUnit>(p, at, unit, scales_of<kUnit, true>(p, tensor_scale, at, maxima));
  }
}

/// Approximate values of GELU of a warp's chunks, and the largest ones of their units. False, if
/// they must be done the exact way.
///
/// This is done before a tensor scale is waited for, and after all elements have come. Left to
/// itself the compiler puts off what nobody uses yet, and loads until they are used.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool approximate_chunk(ValueChunk<kConfig>& values, UnitMaxima<kConfig>& maxima,
                                         const HeldChunk<kConfig>& x) {
  LargestX<kConfig.input, true> largest;
  largest.fold(x);
  if (!ptx::vote_sync_all(ptx::kFullMask, largest.value() <= kLargestFinite)) return false;
  fill_values(values, [&](int i) {
    return ptx::in_register(approximate_gelu<kConfig.transform>(value_at(x, i)).value());
  });
  maxima = unit_maxima<kConfig, false>(values);
  BLOCKSCALE_UNROLL
  for (uint32_t& bits : maxima.bits) {
    bits = bit_cast<uint32_t>(ptx::in_register(bit_cast<float>(bits)));
  }
  return true;
}

/// The scales of units with approximate maxima. Those that are not exceptional are right.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE Units<kConfig> scales_of_approximate(const QuantizeParams& p, float tensor_scale,
                                                       const ChunkPlace& place,
                                                       const UnitMaxima<kConfig>& maxima) {
  if constexpr (kConfig.kernel == QuantizeKernel::scaled) {
    return known_scale<kConfig>(p, tensor_scale, place, maxima.bits[0]);
  } else {
    Units<kConfig> units;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < Units<kConfig>::kCount; ++i) {
      const Bounds bounds(bit_cast<float>(maxima.bits[i]), false);
      units.scale[i] = block_scale<kConfig, false>(p, tensor_scale, bit_cast<uint32_t>(bounds.low));
      const BlockScale of_high =
          block_scale<kConfig, false>(p, tensor_scale, bit_cast<uint32_t>(bounds.high));
      units.scale[i].exceptional |= units.scale[i].stored != of_high.stored;
    }
    store_block_scales<kConfig>(p, place, units);
    return units;
  }
}

/// As store_shortly, from approximate values. Returns what store_likely does.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t store_approximate(const QuantizeParams& p, const ChunkPlace& place,
                                             const ValueChunk<kConfig>& values,
                                             const Units<kConfig>& units) {
  using U = Units<kConfig>;
  LikelyCodes<kConfig.element, kConfig.chunk> likely;
  constexpr int kWords = Codes<kConfig.element, U::kSize>::kWords;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < U::kCount; ++i) {
    const auto unit = part_of<U::kSize>(values, i);
    LikelyCodes<kConfig.element, U::kSize> part;
    if constexpr (kConfig.rule == ScaleRule::nvfp4) {
      part = encode_likely_products(unit, units.scale[i]);
    } else {  // nothing is known of the tensor's largest magnitude
      part = encode_gelu<kConfig.element, kConfig.rule>(
          unit, [&](int j) { return value_at(unit, j); }, units.scale[i], 0);
    }
    likely.doubtful |= part.doubtful << (i * U::kSize / 8);
    BLOCKSCALE_UNROLL
    for (int j = 0; j < kWords; ++j) likely.codes.word[i * kWords + j] = part.codes.word[j];
  }
  store_codes(likely.codes, codes_at<kConfig.element>(p, place));
  return likely.doubtful;
}

/// As quantize_chunk, from approximate values of GELU.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_approximate_chunk(const QuantizeParams& p, float tensor_scale,
                                                  const ChunkPlace& place, const ChunkState& state,
                                                  const ValueChunk<kConfig>& values,
                                                  const UnitMaxima<kConfig>& maxima) {
  const auto units = scales_of_approximate<kConfig>(p, tensor_scale, place, maxima);
  if (any_exceptional(units)) return false;
  if (!state.inside) return true;
  const uint32_t doubtful = store_approximate<kConfig>(p, place, values, units);
  store_again<kConfig>(p, doubtful, units, [&](uint32_t i) {
    return ChunkPlace{place.matrix, place.row, place.column + 8 * i};
  });
  return true;
}

/// A warp's chunks, which nobody has loaded, the way that they allow.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_row_block(const QuantizeParams& p, const ChunkPlace& place) {
  const ChunkState state = chunk_state<kConfig>(p, place);
  HeldChunk<kConfig> held[1];
  if (state.whole) load_chunk<kConfig>(held[0], p, place, state);
  if constexpr (!approximates_gelu(kConfig)) {
    const float tensor_scale = await_tensor_scale<kConfig>(p, place);
    if (state.whole) {
      const auto maxima = unit_maxima<kConfig, false>(held[0]);
      if (quantize_chunk<kConfig>(p, tensor_scale, place, state, held[0], maxima)) return;
    }
    quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
  } else if constexpr (!follows_maximum(kConfig)) {
    if (state.whole && quantize_gelu_chunk<kConfig>(p, place, state, held)) return;
    quantize_chunk_exactly<kConfig>(p, 1.0f, place);
  } else {
    ValueChunk<kConfig> values;
    UnitMaxima<kConfig> maxima;
    const bool ready = state.whole && approximate_chunk<kConfig>(values, maxima, held[0]);
    const float tensor_scale = await_tensor_scale<kConfig>(p, place);
    if (ready &&
        quantize_approximate_chunk<kConfig>(p, tensor_scale, place, state, values, maxima)) {
      return;
    }
    quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
  }
}

/// The same for chunks of x that a kernel with a table has.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_raw_chunk(const QuantizeParams& p, float tensor_scale,
                                          const ChunkPlace& place, const RawChunk<kConfig>& raw) {
  const ChunkState state = chunk_state<kConfig>(p, place);
  if (state.whole) {
    const ValueChunk<kConfig> chunk = look_up<kConfig>(raw, p.transform);
    const auto maxima = unit_maxima<kConfig, false>(chunk);
    if (quantize_chunk<kConfig>(p, tensor_scale, place, state, chunk, maxima)) return;
  }
  quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
}

/// QuantizeKernel::blocks and QuantizeKernel::scaled.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_chunks(const QuantizeParams& p) {
  if constexpr (kConfig.table) {
    KeptTensorScale<kConfig> tensor_scale;
    each_queued_tile<kConfig>(p, [&](uint32_t tile, const RawChunk<kConfig>& raw) {
      const ChunkPlace place = chunk_place<kConfig>(p.grid, tile_place(p.grid, tile));
      quantize_raw_chunk<kConfig>(p, tensor_scale.await(p, place), place, raw);
    });
  } else {
    each_tile<kConfig>(p, [&](uint32_t tile) {
      quantize_row_block<kConfig>(p, chunk_place<kConfig>(p.grid, tile_place(p.grid, tile)));
    });
  }
}

/// What a `maximum` kernel folds: chunks of x where their order is that of the values, else values.
template <QuantizeConfig kConfig, bool kOrdersGelu = orders_gelu(kConfig)>
struct Folded {
  static constexpr QuantizeConfig kChunks = kConfig;
  using Maximum = Largest<kValueFormat<kConfig>, false>;
};
template <QuantizeConfig kConfig>
struct Folded<kConfig, true> {
  static constexpr QuantizeConfig kChunks = without_transform(kConfig);
  using Maximum = LargestGelu<kConfig.transform, kConfig.input>;
};

/// A thread's chunk of a tile that a `maximum` kernel may look at.
struct MaximumPlace {
  ChunkPlace place;
  bool exists;  // in part
  bool whole;   // vectors fit
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE MaximumPlace maximum_place(const QuantizeParams& p, const ChunkPlace& place,
                                             bool tile_exists) {
  const bool exists = tile_exists && place.row < p.rows && place.column < p.k;
  return {place, exists, exists && p.x.vectors && place.column + kConfig.chunk <= p.k};
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE MaximumPlace maximum_place(const QuantizeParams& p, uint32_t tile,
                                             bool tile_exists) {
  return maximum_place<kConfig>(p, chunk_place<kConfig>(p.grid, tile_place(p.grid, tile)),
                                tile_exists);
}

/// What is computed from a row of a tile into the level-2 cache: one thread does, whose chunk
/// begins it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_row(const QuantizeParams& p, const ChunkPlace& place) {
  constexpr uint32_t kElementBytes = Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
  const uint32_t chunks = 1u << p.grid.log2_chunks;
  const uint32_t column = place.column;
  const uint8_t* const row =
      p.x.data + place.matrix * p.x.batch_stride + place.row * p.x.row_stride;
  const auto prefetch = [&](int64_t offset, uint32_t columns, uint32_t left) {
    const uint32_t bytes = (columns < left ? columns : left) * kElementBytes / 16 * 16;
    ptx::cp_async_bulk_prefetch_l2(row + offset, bytes);
  };
  if constexpr (kConfig.transform == InputTransform::swiglu) {
    const GatedOffsets from = gated_offsets<kConfig.input, kConfig.chunk>(p, column);
    if (p.transform.gate_group == p.k) {
      prefetch(from.part[0], chunks * kConfig.chunk, p.k - column);
      prefetch(from.part[1], chunks * kConfig.chunk, p.k - column);
    } else {  // gates and ups alternate, one by one or in runs
      const int64_t first = from.part[0] < from.part[1] ? from.part[0] : from.part[1];
      const auto before = static_cast<uint32_t>(first / kElementBytes);
      prefetch(first, 2 * chunks * kConfig.chunk, 2 * p.k - before);
    }
  } else {
    prefetch(int64_t{column} * kElementBytes, chunks * kConfig.chunk, p.k - column);
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_tile(const QuantizeParams& p, uint32_t tile) {
  if ((ptx::tid_x() & ((1u << p.grid.log2_chunks) - 1)) != 0) return;
  const ChunkPlace first = chunk_place<kConfig>(p.grid, tile_place(p.grid, tile));
  BLOCKSCALE_UNROLL
  for (uint32_t u = 0; u < tile_rows_of_thread(kConfig); ++u) {
    const MaximumPlace at = maximum_place<kConfig>(p, below(first, u), tile < p.grid.tiles);
    if (at.whole) prefetch_row<kConfig>(p, at.place);
  }
}

/// The tiles of a thread block of a `maximum` kernel: every maxima.count-th from `part` on of those
/// that its scale is for.
struct MaximumRun {
  uint32_t matrix;
  uint32_t part;
  uint32_t tiles;  // for the scale
};

BLOCKSCALE_DEVICE MaximumRun maximum_run(const QuantizeParams& p) {
  const uint32_t matrix = p.maxima.parts.quotient(ptx::ctaid_x());
  const uint32_t part = ptx::ctaid_x() - matrix * p.maxima.count;
  return {matrix, part, p.maxima.stride == 0 ? p.grid.tiles : p.grid.per_matrix.divisor};
}

/// The same after what thread blocks that do not hold rows begin with.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE MaximumRun begin_maxima(const QuantizeParams& p) {
  const MaximumRun run = maximum_run(p);
  const uint32_t ahead = orders_gelu(kConfig) && p.prefetches ? 2 * kConfig.chunks : 1;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t u = 0; u < ahead; ++u) {
    const uint32_t tile = run.part + u * p.maxima.count;
    if (u == 0 || tile < run.tiles) prefetch_tile<kConfig>(p, run.matrix * run.tiles + tile);
  }
  await_turn(p);
  return run;
}

/// The same of the thread block's tile, before it waits for whoever may still be writing it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_tile_in_turn(const QuantizeParams& p) {
  if (ptx::ctaid_x() >= p.grid.tiles) return;
  prefetch_tile<kConfig>(p, tile_in_turn<kConfig>(p, ptx::ctaid_x()));
}

/// QuantizeKernel::maximum. Each thread block goes through some of the tiles that one scale is for,
/// `chunks` of them at once.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_maxima(const QuantizeParams& p) {
  const MaximaParams& maxima = p.maxima;
  const auto [matrix, part, tiles] = begin_maxima<kConfig>(p);
  constexpr QuantizeConfig kChunks = Folded<kConfig>::kChunks;
  typename Folded<kConfig>::Maximum largest;
  for (uint32_t first = part; first < tiles; first += kConfig.chunks * maxima.count) {
    const auto place_of = [&](uint32_t u) {
      const uint32_t tile = first + u * maxima.count;
      return maximum_place<kConfig>(p, matrix * tiles + tile, tile < tiles);
    };
    ValueChunk<kChunks> chunks[kConfig.chunks];
    bool all_whole = true;
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      clear(chunks[u]);
      if (u > 0 && first + maxima.count >= tiles) continue;  // small tensors go no further
      const MaximumPlace at = place_of(u);
      if (at.whole) Input<kChunks>(p, at.place).load_whole(chunks[u], 0);
      all_whole &= at.whole || !at.exists;
    }
    largest.fold(chunks);
    if (all_whole) continue;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const MaximumPlace at = place_of(u);
      if (at.whole || !at.exists) continue;
      ValueChunk<kChunks> chunk[1];
      load_part_of<kChunks>(chunk[0], p, at.place);
      largest.fold(chunk);
    }
  }
  leave_maximum(maxima, matrix, part, largest.f32_bits());
}

}  // namespace blockscale::quantize_sm90
