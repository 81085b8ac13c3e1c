// What a block of threads computes at a time: some rows of one group, some columns. The order in
// which a kernel's blocks take tiles is a value of its parameters, of a type such as DenseOrder:
//
//   uint32_t tiles_n;                           // tile columns
//   static constexpr bool kGroupsAreMatrices;   // below
//   static constexpr bool kIsKnownAtLaunch;
//   static constexpr bool kGathersRows;         // a kernel's parameters may have an index of A's
//   rows uint32_t matrix_of(const Tile& tile) const;    // the number of A's and D's matrix using
//   RowMap; RowMap row_map() const;       // where rows go (rows.h)
//
// and, where tiles are known when the kernel is launched,
//
//   uint32_t tiles;                             // how many there are
//   template <uint32_t kRows>
//   Tile tile(uint32_t index) const;            // of kRows rows, for index < tiles
//
// else what GroupedOrder has. BlockTiles is one door to both.
//
// A group has one matrix B. Where groups are matrices, there is nothing behind a group's last row;
// where they are not, what lies there is another's. DenseOrGroupedOrder, which a launch makes one
// or the other, says so by a function, groups_are_matrices().
#pragma once

#include "core/config.h"

namespace blockscale {

struct Tile {
  uint32_t group;
  uint32_t n;  // tile column
  uint32_t first_row;
  uint32_t end_row;  // behind the last row that the tile may write: the end of its group
};

}  // namespace blockscale
