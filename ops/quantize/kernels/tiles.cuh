// Where a CTA and a thread work, and when they start.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernels/config.h"

namespace blockscale::quantizer {

/// Waits for what comes before in the stream, unless that is left for later, and lets what comes
/// next start. One that waits later reads only what was complete before the kernel ahead came
/// back from its own wait. No document promises that it sees that; it does because the writer has
/// ended before this one can start.
BLOCKSCALE_DEVICE void wait_for_turn(const QuantizeParams& p, bool waits_later = false) {
  if (!waits_later) ptx::griddepcontrol_wait();
  if (p.lets_next_start) ptx::griddepcontrol_launch_dependents();
}

/// Place of a tile: the matrix, its first row, and its number along k.
struct TilePlace {
  uint32_t matrix;
  uint32_t row;
  uint32_t across;
};

BLOCKSCALE_DEVICE TilePlace tile_place(const TileGrid& grid, uint32_t tile) {
  const uint32_t matrix = grid.per_matrix.quotient(tile);
  const uint32_t in_matrix = tile - matrix * grid.per_matrix.divisor;
  const uint32_t down = grid.across.quotient(in_matrix);
  return {matrix, down * grid.rows, in_matrix - down * grid.across.divisor};
}

/// The tile of a CTA that has one.
BLOCKSCALE_DEVICE TilePlace tile_of_cta(const QuantizeParams& p) {
  const uint32_t turn = ptx::ctaid_x();
  return tile_place(p.grid, p.backwards ? p.grid.tiles - 1 - turn : turn);
}

/// First element of a chunk in a batch of matrices.
struct ChunkPlace {
  uint32_t matrix;
  uint32_t row;
  uint32_t column;
};

BLOCKSCALE_DEVICE ChunkPlace below(const ChunkPlace& first, uint32_t rows) {
  return {first.matrix, first.row + rows, first.column};
}
BLOCKSCALE_DEVICE ChunkPlace right_of(const ChunkPlace& first, uint32_t columns) {
  return {first.matrix, first.row, first.column + columns};
}

/// A thread's chunk of a tile.
BLOCKSCALE_DEVICE ChunkPlace chunk_place(const TileGrid& grid, const TilePlace& tile, int chunk) {
  const uint32_t thread = ptx::tid_x();
  const uint32_t down = thread >> grid.log2_chunks;
  const uint32_t across = thread & ((1u << grid.log2_chunks) - 1);
  return {tile.matrix, tile.row + down,
          ((tile.across << grid.log2_chunks) + across) * static_cast<uint32_t>(chunk)};
}

/// The chunk of a thread whose CTA has one tile. Of an index that names no row of x it lies beyond
/// the matrix and its scales.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE ChunkPlace chunk_of_thread(const QuantizeParams& p) {
  constexpr uint32_t kBeyond = 1u << 31;
  ChunkPlace place = chunk_place(p.grid, tile_of_cta(p), kConfig.chunk);
  if constexpr (kConfig.kernel == QuantizeKernel::gathered) {
    if (place.row < p.rows && ptx::ld_global(p.row_index + place.row) < 0) place.row = kBeyond;
  }
  return place;
}

/// Where the codes of a place go.
template <Format kElement>
BLOCKSCALE_DEVICE uint8_t* codes_at(const QuantizeParams& p, const ChunkPlace& place) {
  return p.values + place.matrix * p.value_batch_stride + place.row * p.value_row_stride +
         int64_t{place.column} * format_traits(kElement).bits / 8;
}

}  // namespace blockscale::quantizer
