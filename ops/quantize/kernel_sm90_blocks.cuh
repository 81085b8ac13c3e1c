// Kernels whose threads hold chunks of consecutive rows: scales for blocks of one row, codes with
// scales that are known, largest magnitudes.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_output.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Makes the maxima of `kCount` chunks those of their blocks, which kLanes neighbouring lanes
/// share.
template <int kLanes, int kCount, class AnyLargest>
BLOCKSCALE_DEVICE void share_maxima(AnyLargest (&largest)[kCount]) {
  BLOCKSCALE_UNROLL
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    BLOCKSCALE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      largest[u].fold_magnitudes(
          ptx::shfl_sync_bfly(ptx::kFullMask, largest[u].bits, static_cast<uint32_t>(lanes)));
    }
  }
}

/// The first of a thread's chunks in a tile: they lie below each other, in `chunks` rows.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ChunkPlace first_chunk(const TileGrid& grid, const TilePlace& tile) {
  const uint32_t thread = ptx::tid_x();
  const uint32_t down = thread >> grid.log2_chunks;
  const uint32_t across = thread & ((1u << grid.log2_chunks) - 1);
  const uint32_t chunk = (tile.across << grid.log2_chunks) + across;
  return {tile.matrix, tile.row + down * kConfig.chunks, chunk * kConfig.chunk};
}

/// How a warp takes its chunks: all of them at once, with whole vectors, where every lane has
/// either all of its chunks or none; else one after the other, in the exact way.
struct TileShape {
  bool inside;  // all of this thread's chunks exist
  bool whole;   // the same in all lanes
};

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE TileShape tile_shape(const QuantizeParams& p, const ChunkPlace& first) {
  const bool inside = first.row + kConfig.chunks <= p.rows && first.column + kConfig.chunk <= p.k;
  const bool outside = first.row >= p.rows || first.column >= p.k;
  const bool vectors = p.x.vectors && p.value_vectors;
  return {inside, vectors && ptx::vote_sync_all(ptx::kFullMask, inside || outside)};
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void load_tile(ValueChunk<kConfig> (&chunks)[kConfig.chunks],
                                 const QuantizeParams& p, const ChunkPlace& first, bool inside) {
  if (inside) {
    const Input<kConfig> input(p, first);
    BLOCKSCALE_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) input.load_whole(chunks[u], u);
  } else {
    BLOCKSCALE_UNROLL
    for (int u = 0; u < kConfig.chunks; ++u) clear(chunks[u]);
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_tile(const QuantizeParams& p, const ChunkPlace& first,
                                  const ValueChunk<kConfig> (&chunks)[kConfig.chunks],
                                  const BlockScale (&scales)[kConfig.chunks]) {
  uint8_t* const to = codes_at<kConfig.element>(p, first);
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kConfig.chunks; ++u) {
    store_codes(encode_chunk<kConfig.element, kConfig.rule, false>(chunks[u], scales[u]),
                to + u * p.value_row_stride);
  }
}

/// Whether a lane of the warp has an exceptional block.
template <int kCount>
BLOCKSCALE_DEVICE bool any_exceptional(const BlockScale (&scales)[kCount]) {
  bool exceptional = false;
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kCount; ++u) exceptional |= scales[u].exceptional;
  return ptx::vote_sync_any(ptx::kFullMask, exceptional);
}

/// Scales and codes of blocks of one row, for kCount chunks below each other: the scales from their
/// maxima, which become those of whole blocks.
template <QuantizeConfig kConfig, int kCount>
BLOCKSCALE_DEVICE void find_block_scales(BlockScale (&scales)[kCount], const QuantizeParams& p,
                                         float tensor_scale, const ChunkPlace& first,
                                         const ValueChunk<kConfig> (&chunks)[kCount]) {
  Largest<kValueFormat<kConfig>, kConfig.rule != ScaleRule::fp8> largest[kCount];
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kCount; ++u) largest[u].fold(chunks[u]);
  share_maxima<kConfig.block / kConfig.chunk>(largest);
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kCount; ++u)
    scales[u] = block_scale<kConfig>(p, tensor_scale, largest[u].f32_bits());
  if (first.column % kConfig.block == 0) store_row_scales<kConfig>(p, first, scales);
}

/// A chunk of a row whose blocks need no other row, the exact way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_exactly(const QuantizeParams& p, float tensor_scale,
                                        const ChunkPlace& place) {
  ValueChunk<kConfig> chunk[1];
  BlockScale scale[1];
  load_part_of<kConfig>(chunk[0], p, place);
  find_block_scales<kConfig>(scale, p, tensor_scale, place, chunk);
  store_exactly<kConfig>(p, place, chunk[0], scale[0]);
}

/// A warp's part of a tile the short way. False, if it must be done (again) the exact way.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_tile(const QuantizeParams& p, float tensor_scale,
                                     const ChunkPlace& first, bool inside) {
  ValueChunk<kConfig> chunks[kConfig.chunks];
  BlockScale scales[kConfig.chunks];
  load_tile<kConfig>(chunks, p, first, inside);
  find_block_scales<kConfig>(scales, p, tensor_scale, first, chunks);
  if (any_exceptional(scales)) return false;
  if (inside) store_tile<kConfig>(p, first, chunks, scales);
  return true;
}

/// QuantizeKernel::blocks.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_row_blocks(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) {
    const ChunkPlace first = first_chunk<kConfig>(p.grid, tile_place(p.grid, tile));
    const TileShape shape = tile_shape<kConfig>(p, first);
    const float tensor_scale = tensor_scale_of(p, first.matrix);
    if (shape.whole && quantize_tile<kConfig>(p, tensor_scale, first, shape.inside)) return;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      quantize_exactly<kConfig>(p, tensor_scale, below(first, u));
    }
  });
}

/// The scale of a chunk's row or tensor.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE BlockScale known_scale(const QuantizeParams& p, float tensor_scale,
                                         const ChunkPlace& place,
                                         const ValueChunk<kConfig>& chunk) {
  Largest<kValueFormat<kConfig>, false> largest;
  largest.fold(chunk);
  float scale = tensor_scale;
  if (p.given_scales && place.row < p.rows) {
    const int64_t at = place.matrix * p.scale_batch_stride +
                       scale_offset(p.layout, place.row, 0, p.scale_leading_stride);
    scale = ptx::ld_global(reinterpret_cast<const float*>(p.scales) + at);
  }
  return known_fp8_scale<kConfig.element>(scale, largest.f32_bits());
}

/// As quantize_tile, with scales that are known.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool quantize_scaled_tile(const QuantizeParams& p, float tensor_scale,
                                            const ChunkPlace& first, bool inside) {
  ValueChunk<kConfig> chunks[kConfig.chunks];
  BlockScale scales[kConfig.chunks];
  load_tile<kConfig>(chunks, p, first, inside);
  BLOCKSCALE_UNROLL
  for (uint32_t u = 0; u < kConfig.chunks; ++u) {
    scales[u] = known_scale<kConfig>(p, tensor_scale, below(first, u), chunks[u]);
  }
  if (any_exceptional(scales)) return false;
  if (inside) store_tile<kConfig>(p, first, chunks, scales);
  return true;
}

/// QuantizeKernel::scaled.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_scaled(const QuantizeParams& p) {
  each_tile<kConfig>(p, [&](uint32_t tile) {
    const ChunkPlace first = first_chunk<kConfig>(p.grid, tile_place(p.grid, tile));
    const TileShape shape = tile_shape<kConfig>(p, first);
    const float tensor_scale = tensor_scale_of(p, first.matrix);
    if (shape.whole && quantize_scaled_tile<kConfig>(p, tensor_scale, first, shape.inside)) return;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t u = 0; u < kConfig.chunks; ++u) {
      const ChunkPlace place = below(first, u);
      ValueChunk<kConfig> chunk;
      load_part_of<kConfig>(chunk, p, place);
      store_exactly<kConfig>(p, place, chunk, known_scale<kConfig>(p, tensor_scale, place, chunk));
    }
  });
}

/// QuantizeKernel::maximum. Each thread block goes through some of the tiles of one matrix.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void find_maxima(const QuantizeParams& p) {
  const uint32_t matrix = ptx::ctaid_x() / p.maxima_count;
  const uint32_t part = ptx::ctaid_x() % p.maxima_count;
  const uint32_t tiles = p.batch == 0 ? 0 : p.grid.tiles / p.batch;
  Largest<kValueFormat<kConfig>, false> largest;
  for (uint32_t i = part; i < tiles; i += p.maxima_count) {
    const TilePlace tile = tile_place(p.grid, matrix * tiles + i);
    const ChunkPlace first = first_chunk<kConfig>(p.grid, tile);
    const bool inside = first.row + kConfig.chunks <= p.rows && first.column + kConfig.chunk <= p.k;
    if (inside && p.x.vectors) {
      ValueChunk<kConfig> chunks[kConfig.chunks];
      load_tile<kConfig>(chunks, p, first, true);
      BLOCKSCALE_UNROLL
      for (int u = 0; u < kConfig.chunks; ++u) largest.fold(chunks[u]);
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t u = 0; u < kConfig.chunks; ++u) {
        ValueChunk<kConfig> chunk;
        load_part_of<kConfig>(chunk, p, below(first, u));
        largest.fold(chunk);
      }
    }
  }
  const uint32_t amax = block_maximum<kConfig.threads>(largest.f32_bits());
  if (ptx::tid_x() == 0) ptx::st_global(p.maxima + ptx::ctaid_x(), amax);
}

}  // namespace blockscale::quantize_sm90
