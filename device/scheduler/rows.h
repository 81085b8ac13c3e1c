// Which rows of A a product's are, which rows of D an epilogue may write, and where they go.
#pragma once

#include "core/divisor.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"

namespace blockscale {

/// Which row of A each row of a product is: one that an index on the device names, or its own,
/// which may be that of its neighbours too.
struct SourceRows {
  const int32_t* index = nullptr;
  uint32_t rows = 0;     // of A, with an index; a row that is none of them is zeros
  Divisor repeats = {};  // without: so many rows in turn are one of A

  /// False if `row` is none of A's.
  BLOCKSCALE_DEVICE bool find(uint32_t row, uint32_t& of_a) const {
    if (index == nullptr) {
      of_a = repeats.quotient(row);
      return true;
    }
    of_a = static_cast<uint32_t>(ptx::ld_global(index + row));
    return of_a < rows;
  }
};

/// The rows of a group: what is behind the last one is another group's, unless the group's rows are
/// a matrix, behind which there is nothing: a tensor copy does not write there.
struct RowSpan {
  uint32_t end = 0;
  bool ends_matrix = false;
  uint32_t matrix = 0;  // of A and D
  uint32_t group = 0;   // whose B, bias and factor of alpha the rows have

  /// Whether a box of 16 rows from `row` on writes no other group's.
  BLOCKSCALE_HD constexpr bool holds_box(uint32_t row) const {
    return ends_matrix || row + 16 <= end;
  }
};

/// A row map: the row of D that each row of a product goes to, and its weight there. This one
/// leaves rows where they are.
struct SameRows {
  static constexpr bool kGates = true;  // products of one B may have a gate
  BLOCKSCALE_HD static constexpr bool moves() { return false; }
  BLOCKSCALE_HD static constexpr bool adds() { return false; }
  BLOCKSCALE_HD static constexpr int64_t destination(uint32_t row) { return row; }
  BLOCKSCALE_HD static constexpr float weight(uint32_t) { return 1; }
};

/// Rows of D by a table on the device; a number that is no row: nowhere. Without a table rows stay
/// where they are.
struct MappedRows {
  static constexpr bool kGates = false;
  const int32_t* destinations = nullptr;
  const float* weights = nullptr;  // null: 1
  uint32_t rows = 0;               // of D
  bool adds_rows = false;          // to what is there

  BLOCKSCALE_HD constexpr bool moves() const { return destinations != nullptr; }
  BLOCKSCALE_HD constexpr bool adds() const { return adds_rows; }
  /// -1: nowhere.
  BLOCKSCALE_DEVICE int64_t destination(uint32_t row) const {
    if (destinations == nullptr) return row;
    const int32_t to = ptx::ld_global(destinations + row);
    return static_cast<uint32_t>(to) < rows ? to : -1;
  }
  BLOCKSCALE_DEVICE float weight(uint32_t row) const {
    return weights == nullptr ? 1.0f : ptx::ld_global(weights + row);
  }
};

/// The same of products that may have one B, and a gate then.
struct MappedRowsOfAny : MappedRows {
  static constexpr bool kGates = true;
};

}  // namespace blockscale
