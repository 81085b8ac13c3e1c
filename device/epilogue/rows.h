// Which rows of D an epilogue may write, and where they go.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"

namespace blockscale {

/// The rows of a group: what is behind the last one is another group's, unless the group's rows are
/// a matrix, behind which there is nothing: a tensor copy does not write there.
struct RowSpan {
  uint32_t end;
  bool ends_matrix;

  /// Whether a box of 16 rows from `row` on writes no other group's.
  BLOCKSCALE_HD constexpr bool holds_box(uint32_t row) const {
    return ends_matrix || row + 16 <= end;
  }
};

/// A row map: the row of D that each row of a product goes to, and its weight there. This one
/// leaves rows where they are.
struct SameRows {
  static constexpr bool kMoves = false;
};

/// Rows of D by a table on the device; -1: nowhere. `weights` may be null: 1.
struct MappedRows {
  static constexpr bool kMoves = true;

  const int32_t* destinations = nullptr;
  const float* weights = nullptr;

  BLOCKSCALE_DEVICE int32_t destination(uint32_t row) const {
    return ptx::ld_global(destinations + row);
  }
  BLOCKSCALE_DEVICE float weight(uint32_t row) const {
    return weights == nullptr ? 1.0f : ptx::ld_global(weights + row);
  }
};

}  // namespace blockscale
