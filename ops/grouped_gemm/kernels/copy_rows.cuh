// Rows that groups have of a tensor, from one of all rows, or from those that an index names: where
// quantizers follow a product, which know no groups, and where tensor copies are to bring rows of A
// that lie anywhere. A block copies a row at a time.
#pragma once

#include "device/encode/scale_matrix.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/scheduler/block_tiles.h"
#include "device/scheduler/grouped_order.h"
#include "device/scheduler/rows.h"
#include "device/vector.h"

namespace blockscale {

inline constexpr int kCopyRowsThreads = 128;

struct TensorRows {
  uint8_t* values = nullptr;
  int64_t row_stride = 0;  // bytes
  int64_t batch_stride = 0;
  ScaleMatrix scales;  // of no columns, where there are none
};

struct CopyRowsParams {
  TensorRows from, to;  // scales of one layout and type, and of single rows
  SourceRows source;    // which rows of `from`
  uint32_t row_bytes = 0;
  bool vectors = false;  // rows of both begin at multiples of 16 bytes and have whole ones
  GroupedOrder order;    // of tiles of one row
};

namespace copy_rows {

/// Of a row `bytes` bytes, or zeros in their place.
template <class T>
BLOCKSCALE_DEVICE void copy_values(const uint8_t* from, uint8_t* to, uint32_t bytes, bool exists) {
  BLOCKSCALE_NO_UNROLL
  for (uint32_t at = ptx::tid_x() * sizeof(T); at < bytes; at += kCopyRowsThreads * sizeof(T)) {
    T value = {};
    if (exists) value = ptx::ld_global(reinterpret_cast<const T*>(from + at));
    ptx::st_global(reinterpret_cast<T*>(to + at), value);
  }
}

template <class T>
BLOCKSCALE_DEVICE void copy_scale(const CopyRowsParams& p, int64_t from, int64_t to, bool exists) {
  T scale = 0;
  if (exists) scale = ptx::ld_global(reinterpret_cast<const T*>(p.from.scales.data) + from);
  ptx::st_global(reinterpret_cast<T*>(p.to.scales.data) + to, scale);
}

}  // namespace copy_rows

BLOCKSCALE_DEVICE void copy_rows_kernel(const CopyRowsParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  BlockTiles<GroupedOrder, 1> tiles(p.order, device::shared_base());
  tiles.begin();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < tiles.count(); i += ptx::nctaid_x()) {
    const Tile tile = tiles.tile(i);
    const uint32_t row = tile.first_row, matrix = p.order.matrix_of(tile);
    uint32_t source = 0;
    const bool exists = p.source.find(row, source);
    const uint8_t* const from =
        p.from.values + matrix * p.from.batch_stride + (exists ? source : 0) * p.from.row_stride;
    uint8_t* const to = p.to.values + matrix * p.to.batch_stride + row * p.to.row_stride;
    if (p.vectors) {
      copy_rows::copy_values<device::Vector<uint32_t, 4>>(from, to, p.row_bytes, exists);
    } else {
      copy_rows::copy_values<uint8_t>(from, to, p.row_bytes, exists);
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t column = ptx::tid_x(); column < p.to.scales.columns; column += kCopyRowsThreads) {
      const auto place_in = [&](const ScaleMatrix& m, uint32_t of) {
        return matrix * m.batch_stride + scale_offset(m.layout, of, column, m.leading_stride);
      };
      const int64_t of_from = place_in(p.from.scales, source), of_to = place_in(p.to.scales, row);
      if (p.to.scales.bytes) {
        copy_rows::copy_scale<uint8_t>(p, of_from, of_to, exists);
      } else {
        copy_rows::copy_scale<uint32_t>(p, of_from, of_to, exists);
      }
    }
  }
}

}  // namespace blockscale
