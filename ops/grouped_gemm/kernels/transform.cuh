// GELU, SiLU or SwiGLU of the rows that groups have, of D in f32: gemm's, run by run of a row.
#pragma once

#include "device/ptx/arithmetic.h"
#include "device/scheduler/block_tiles.h"
#include "device/scheduler/grouped_order.h"
#include "ops/gemm/kernels/transform.cuh"

namespace blockscale {

struct GroupedTransformParams {
  TransformParams transform;
  EntryOrder order;  // of tiles of a row and a run
  int64_t rows = 0;  // of numbers, of a matrix
};

BLOCKSCALE_DEVICE void grouped_transform_kernel(const GroupedTransformParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BlockTiles<EntryOrder, 1> tiles(p.order, device::shared_base());
  tiles.begin();
  const TransformParams& t = p.transform;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < tiles.count(); i += ptx::nctaid_x()) {
    const Tile tile = tiles.tile(i);
    const int64_t row = p.order.map.destination(tile.first_row);
    if (row < 0) continue;
    const uint32_t matrix = p.order.matrix_of(tile);
    const float weight = p.order.map.weight(tile.first_row);
    transform::transform_run(
        t, t.numbers + (matrix * p.rows + tile.first_row) * t.number_columns,
        matrix * t.d.batch_stride + row * t.d.row_stride, tile.n,
        [&](float y) { return p.order.map.moves() ? ptx::mul_rn(y, weight) : y; });
  }
}

}  // namespace blockscale
