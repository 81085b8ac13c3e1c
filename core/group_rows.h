// Which rows a group has, by numbers that nobody has checked.
#pragma once

#include "core/config.h"

namespace blockscale {

/// Rows [begin, end).
struct GroupRows {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The group that begins with row `first` and ends before row `behind`, as far as there are rows:
/// cut to [0, rows), so that nothing outside of a buffer has an index. None if it ends before it
/// begins.
BLOCKSCALE_HD constexpr GroupRows group_rows(int64_t first, int64_t behind, int64_t rows) {
  const int64_t begin = first < 0 ? 0 : first < rows ? first : rows;
  return {begin, behind < begin ? begin : behind < rows ? behind : rows};
}

}  // namespace blockscale
