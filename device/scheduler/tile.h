// What a block of threads computes at a time: some rows of one group, some columns. The order in
// which a kernel's blocks take tiles is a value of its parameters, of a type such as DenseOrder:
//
//   uint32_t tiles;                             // how many there are
//   uint32_t tiles_n;                           // tile columns
//   static constexpr bool kGroupsAreMatrices;   // below
//   template <uint32_t kRows>
//   Tile tile(uint32_t index) const;            // of kRows rows, for index < tiles
//
// A group has one matrix B. Where groups are matrices, each has its own A and D; where they are
// not, they are runs of rows of one A and one D, and what lies behind a group's last row is
// another's.
#pragma once

#include "core/config.h"

namespace blockscale {

struct Tile {
  uint32_t group;
  uint32_t n;  // tile column
  uint32_t first_row;
  uint32_t end_row;  // behind the last row that the tile may write: the end of its group

  /// The number of A's and D's matrix.
  template <class Order>
  BLOCKSCALE_HD constexpr uint32_t matrix() const {
    return Order::kGroupsAreMatrices ? group : 0;
  }
};

}  // namespace blockscale
