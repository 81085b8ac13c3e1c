// Rows that groups have of a quantized tensor, from one of all rows: where quantizers follow a
// product, which know no groups. A block copies a row at a time.
#pragma once

#include "device/encode/scale_matrix.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/scheduler/block_tiles.h"
#include "device/scheduler/grouped_order.h"

namespace blockscale {

inline constexpr int kCopyRowsThreads = 128;

struct QuantizedRows {
  uint8_t* values = nullptr;
  int64_t row_stride = 0;  // bytes
  int64_t batch_stride = 0;
  ScaleMatrix scales;
};

struct CopyRowsParams {
  QuantizedRows from, to;  // scales of one layout and type, and of single rows
  uint32_t row_bytes = 0;
  GroupedOrder order;  // of tiles of one row
};

BLOCKSCALE_DEVICE void copy_rows_kernel(const CopyRowsParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BlockTiles<GroupedOrder, 1> tiles(p.order, device::shared_base());
  tiles.begin();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < tiles.count(); i += ptx::nctaid_x()) {
    const Tile tile = tiles.tile(i);
    const uint32_t row = tile.first_row, matrix = p.order.matrix_of(tile);
    const auto values_of = [&](const QuantizedRows& x) {
      return x.values + matrix * x.batch_stride + row * x.row_stride;
    };
    BLOCKSCALE_NO_UNROLL
    for (uint32_t at = ptx::tid_x(); at < p.row_bytes; at += kCopyRowsThreads) {
      ptx::st_global(values_of(p.to) + at, ptx::ld_global(values_of(p.from) + at));
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t column = ptx::tid_x(); column < p.to.scales.columns; column += kCopyRowsThreads) {
      const auto place_in = [&](const ScaleMatrix& m) {
        return matrix * m.batch_stride + scale_offset(m.layout, row, column, m.leading_stride);
      };
      const int64_t from = place_in(p.from.scales), to = place_in(p.to.scales);
      if (p.to.scales.bytes) {
        ptx::st_global(p.to.scales.data + to, ptx::ld_global(p.from.scales.data + from));
      } else {
        ptx::st_global(
            reinterpret_cast<uint32_t*>(p.to.scales.data) + to,
            ptx::ld_global(reinterpret_cast<const uint32_t*>(p.from.scales.data) + from));
      }
    }
  }
}

}  // namespace blockscale
