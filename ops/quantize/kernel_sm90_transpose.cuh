// The kernels of quantize_rows_and_columns: scales for 1 x 128 blocks along the rows of x and along
// its columns, and both sets of codes, the second one transposed, from one read of x.
//
// A tile of 128 x 128 is what threads work on at once (kernel_sm90_transpose_tile.cuh). A tile
// takes turns with the memory and with the multiprocessor, and waits for barriers, so neither is
// busy unless there are many: kernels differ in how they come to many tiles.
//
// - Small inputs, and those whose rows cannot be copied by vectors: a thread block has one tile,
// and
//   loads it to registers.
// - Large ones: while a thread block works on a tile, the x of its next one is copied to shared
//   memory (kernel_sm90_transpose_slot.cuh). So twice as many tiles are on their way as registers
//   hold.
// - With a table (kernel_sm90_table.cuh) a thread block fills a multiprocessor, and groups of its
//   threads go through many tiles.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_table.cuh"
#include "ops/quantize/kernel_sm90_transpose_slot.cuh"
#include "ops/quantize/kernel_sm90_transpose_tile.cuh"
#include "ops/quantize/rows_and_columns_sm90.h"

namespace blockscale::quantize_sm90 {

/// Place of the tile with a number, in a row that may be beyond the matrix. Behind the kernel that
/// finds factors of rows the last one comes first: it is still in the level-2 cache.
BLOCKSCALE_DEVICE TilePlace transpose_place(const RowsAndColumnsParams& p, uint32_t number) {
  const TileGrid& grid = p.rows.grid;
  if (p.rows.backwards) number = grid.tiles - 1 - number;
  const uint32_t matrix = grid.per_matrix.quotient(number);
  const uint32_t in_matrix = number - matrix * grid.per_matrix.divisor;
  const uint32_t band = p.band_tiles.quotient(in_matrix);
  const uint32_t in_band = in_matrix - band * p.band_tiles.divisor;
  const uint32_t across = p.band_rows.quotient(in_band);
  const uint32_t in_column = in_band - across * p.band_rows.divisor;
  return {matrix, (band * p.band_rows.divisor + in_column) * kTransposeTile, across};
}

/// The first tile of a thread block that exists, from a number on that it may have.
BLOCKSCALE_DEVICE uint32_t next_tile(const RowsAndColumnsParams& p, uint32_t number) {
  while (number < p.rows.grid.tiles && transpose_place(p, number).row >= p.down) {
    number += ptx::nctaid_x();
  }
  return number;
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_tile(const RowsAndColumnsParams& p, uint32_t number) {
  if (number >= p.rows.grid.tiles) return;
  const TilePlace place = transpose_place(p, number);
  if (place.row < p.down) TransposeTile<kConfig>(p, place).quantize([&] {});
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_tiles_with_table(const RowsAndColumnsParams& p) {
  const TransposeGroup<kConfig> group;
  const uint32_t step = ptx::nctaid_x() * group.kGroups;
  FunctionTable<kConfig.transform, kConfig.input>::template fill<kConfig.threads>();
  ptx::griddepcontrol_wait();
  ptx::barrier_sync_all();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = ptx::ctaid_x() + group.index * ptx::nctaid_x(); tile < p.rows.grid.tiles;
       tile += step) {
    quantize_tile<kConfig>(p, tile);
  }
}

/// Tiles whose x is copied to shared memory while the one before is worked on.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_copied_tiles(const RowsAndColumnsParams& p) {
  uint32_t tile = next_tile(p, ptx::ctaid_x());
  if (tile < p.rows.grid.tiles) TransposeSlot<kConfig>(p.rows).begin(transpose_place(p, tile));
  BLOCKSCALE_NO_UNROLL
  while (tile < p.rows.grid.tiles) {
    const TilePlace place = transpose_place(p, tile);
    tile = next_tile(p, tile + ptx::nctaid_x());
    TransposeTile<kConfig>(p, place).quantize([&] {
      if (tile < p.rows.grid.tiles) TransposeSlot<kConfig>(p.rows).begin(transpose_place(p, tile));
    });
  }
}

}  // namespace blockscale::quantize_sm90

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_transpose_tile(const RowsAndColumnsParams& params) {
  if constexpr (!kConfig.table) ptx::griddepcontrol_wait();
  if (params.rows.lets_next_start) ptx::griddepcontrol_launch_dependents();
  if constexpr (kConfig.table) {
    quantize_sm90::quantize_tiles_with_table<kConfig>(params);
  } else if constexpr (kConfig.persistent) {
    quantize_sm90::quantize_copied_tiles<kConfig>(params);
  } else {
    quantize_sm90::quantize_tile<kConfig>(params, ptx::ctaid_x());
  }
}

}  // namespace blockscale
