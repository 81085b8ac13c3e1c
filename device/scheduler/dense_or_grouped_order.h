// Tiles of a batch of matrices, or of groups of rows: which of them a launch says, so that one
// kernel computes both.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#include "device/scheduler/dense_order.h"
#include "device/scheduler/grouped_order.h"
#include "device/scheduler/rows.h"
#include "device/scheduler/tile.h"

namespace blockscale {

struct DenseOrGroupedOrder {
  static constexpr bool kIsKnownAtLaunch = false;
  using RowMap = MappedRowsOfAny;

  DenseOrder dense;      // not looked at where there are groups
  GroupedOrder grouped;  // of no groups: tiles are those of `dense`

  BLOCKSCALE_HD constexpr bool has_groups() const { return grouped.groups.groups != 0; }
  /// In place of kGroupsAreMatrices.
  BLOCKSCALE_HD constexpr bool groups_are_matrices() const { return !has_groups(); }
  BLOCKSCALE_HD constexpr uint32_t matrix_of(const Tile& tile) const {
    return has_groups() ? grouped.matrix_of(tile) : DenseOrder::matrix_of(tile);
  }
  BLOCKSCALE_HD constexpr RowMap row_map() const { return {grouped.map}; }

  template <uint32_t kRows>
  BLOCKSCALE_DEVICE void begin(ptx::SharedAddress shared) const {
    if (has_groups()) grouped.begin<kRows>(shared);
  }
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE uint32_t count(ptx::SharedAddress shared) const {
    return has_groups() ? grouped.count<kRows>(shared) : dense.tiles;
  }
  template <uint32_t kRows>
  BLOCKSCALE_DEVICE Tile tile(ptx::SharedAddress shared, uint32_t index) const {
    return has_groups() ? grouped.tile<kRows>(shared, index) : dense.tile<kRows>(index);
  }
};

}  // namespace blockscale
