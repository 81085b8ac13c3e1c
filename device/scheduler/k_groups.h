// Tiles of products whose groups divide K: each group has a matrix of D, and its own k of one A and
// one B.
#pragma once

#include "core/group_rows.h"
#include "device/scheduler/dense_order.h"

namespace blockscale {

struct KRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// The tiles are those of a batch; what k they have is known on the device alone.
struct KGroupedOrder : DenseOrder {
  const int32_t* offsets = nullptr;  // of groups, and the end of the last
  uint32_t k = 0;                    // that there is

  BLOCKSCALE_DEVICE KRange k_of(uint32_t group) const {
    const GroupRows range =
        group_rows(ptx::ld_global(offsets + group), ptx::ld_global(offsets + group + 1), k);
    return {static_cast<uint32_t>(range.begin), static_cast<uint32_t>(range.end)};
  }
};

}  // namespace blockscale
