// How the rows of groups are divided on the CPU: a pure function of the groups and the shape, so
// that results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {

/// Rows of a group that are multiplied together.
struct Part {
  std::int64_t group = 0;
  std::int64_t group_rows = 0;  // of all of the group
  GroupRows rows;
  std::int64_t first = 0;  // rows of the wave before it
};

/// Parts that are multiplied together. No two have a row in common, unless groups are masked.
struct RowWave {
  std::vector<Part> parts;
  std::int64_t rows = 0;

  /// The part that has row `r` of the wave.
  const Part& part_of(std::int64_t r) const {
    const auto behind =
        std::upper_bound(parts.begin(), parts.end(), r,
                         [](std::int64_t row, const Part& part) { return row < part.first; });
    return *(behind - 1);
  }
};

/// Rows of all groups of validated arguments, in waves of at most `most_rows` rows, but that a part
/// is no less than a band of the dense product. Groups that share rows each have waves of their
/// own, in the order of groups; others come in the order of their rows.
std::vector<RowWave> row_waves(const GroupedGemmArguments& x, std::int64_t most_rows);

/// The last group that has it, of each row: where groups share rows. Else empty.
std::vector<std::int32_t> owners_of_shared_rows(const GroupedGemmArguments& x);

}  // namespace blockscale::grouped_gemm_detail
