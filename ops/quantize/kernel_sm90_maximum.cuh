// QuantizeKernel::maximum, but for rms_norm: the largest magnitudes of parts of a tensor.
#pragma once

#include "device/kernel.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// How a `maximum` kernel finds what it looks for: kLoaded says what its chunks are loaded with, x
/// where that has the order of the values, else these, and Maximum folds them.
template <QuantizeConfig kConfig, bool kOrdersGelu = orders_gelu(kConfig)>
struct MaximumFold {
  static constexpr QuantizeConfig kLoaded = kConfig;
  using Maximum = Largest<kValueFormat<kConfig>, false>;
};
template <QuantizeConfig kConfig>
struct MaximumFold<kConfig, true> {
  static constexpr QuantizeConfig kLoaded = without_transform(kConfig);
  using Maximum = LargestGelu<kConfig.transform, kConfig.input>;
};

/// A thread's chunk of a tile, and how much there is of it: of this one, where ChunkState speaks of
/// all of the warp's.
struct PlacedChunk {
  ChunkPlace place;
  bool exists;  // in part
  bool whole;   // vectors fit
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE PlacedChunk placed_chunk(const QuantizeParams& p, const ChunkPlace& place,
                                           bool tile_exists) {
  const bool exists = tile_exists && place.row < p.rows && place.column < p.k;
  return {place, exists, exists && p.x.vectors && place.column + kConfig.chunk <= p.k};
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE PlacedChunk placed_chunk_of_tile(const QuantizeParams& p, uint32_t tile,
                                                   bool tile_exists) {
  return placed_chunk<kConfig>(p, chunk_place<kConfig>(p.grid, tile_place(p.grid, tile)),
                               tile_exists);
}

/// What is computed from a row of a tile into the level-2 cache: one thread does, whose chunk
/// begins it.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void prefetch_row(const QuantizeParams& p, const ChunkPlace& place) {
  constexpr uint32_t kElementBytes = Chunk<kConfig.input, kConfig.chunk>::kElementBytes;
  const uint32_t chunks = 1u << p.grid.log2_chunks;
  const uint32_t column = place.column;
  const uint8_t* const row = x_row_at(p, place.matrix, place.row);
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
    const PlacedChunk at = placed_chunk<kConfig>(p, below(first, u), tile < p.grid.tiles);
    if (at.whole) prefetch_row<kConfig>(p, at.place);
  }
}

/// The tiles of a thread block of a `maximum` kernel: of those that a scale is for every
/// maxima.count-th from `part` on.
struct TilesOfScale {
  uint32_t scale;  // its number: the matrix's, 0 where one scale is for all matrices
  uint32_t part;
  uint32_t tiles;  // that the scale is for
};

BLOCKSCALE_DEVICE TilesOfScale tiles_of_scale(const QuantizeParams& p) {
  const uint32_t scale = p.maxima.parts.quotient(ptx::ctaid_x());
  const uint32_t part = ptx::ctaid_x() - scale * p.maxima.count;
  return {scale, part, p.maxima.stride == 0 ? p.grid.tiles : p.grid.per_matrix.divisor};
}

/// The same, of thread blocks that do not hold rows: the first ones are on their way to L2, and the
/// thread block has waited for its turn.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE TilesOfScale prefetch_and_await_tiles(const QuantizeParams& p) {
  const TilesOfScale run = tiles_of_scale(p);
  const uint32_t ahead = orders_gelu(kConfig) && p.prefetches ? 2 * kConfig.chunks : 1;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t u = 0; u < ahead; ++u) {
    const uint32_t tile = run.part + u * p.maxima.count;
    if (u == 0 || tile < run.tiles) prefetch_tile<kConfig>(p, run.scale * run.tiles + tile);
  }
  await_turn(p);
  return run;
}

/// The thread block's tile into the level-2 cache, before it waits for whoever may still be writing
/// it.
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
  const auto [scale, part, tiles] = prefetch_and_await_tiles<kConfig>(p);
  using Fold = MaximumFold<kConfig>;
  constexpr QuantizeConfig kLoaded = Fold::kLoaded;
  typename Fold::Maximum largest;
  for (uint32_t first = part; first < tiles; first += kConfig.chunks * maxima.count) {
    const auto place_of = [&](uint32_t u) {
      const uint32_t tile = first + u * maxima.count;
      return placed_chunk_of_tile<kConfig>(p, scale * tiles + tile, tile < tiles);
    };
    ValueChunk<kLoaded> chunks[kConfig.chunks];
    bool all_whole = true;
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      clear(chunks[u]);
      if (u > 0 && first + maxima.count >= tiles) continue;  // small tensors go no further
      const PlacedChunk at = place_of(u);
      if (at.whole) Input<kLoaded>(p, at.place).load_whole(chunks[u]);
      all_whole &= at.whole || !at.exists;
    }
    if constexpr (orders_gelu(kConfig)) {
      largest.fold_of_warp(chunks);
    } else {
      largest.fold(chunks);
    }
    if (all_whole) continue;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const PlacedChunk at = place_of(u);
      if (at.whole || !at.exists) continue;
      ValueChunk<kLoaded> chunk[1];
      load_part_of<kLoaded>(chunk[0], p, at.place);
      largest.fold(chunk);
    }
  }
  leave_maximum(maxima, scale, part, largest.f32_bits());
}

}  // namespace blockscale::quantize_sm90
