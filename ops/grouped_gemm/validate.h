// Every check of a grouped product's arguments, shared by all implementations.
#pragma once

#include <cstdint>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "core/group_rows.h"

namespace blockscale::grouped_gemm_detail {

/// `arguments` with strides and `rows` filled in; with `quantized`, d is an f32 matrix without
/// memory. Throws invalid_argument, or unsupported for a pair of recipes that gemm does not
/// compute, naming the argument, its value and what is allowed. Reads no data, offsets neither.
GroupedGemmArguments validated(const GroupedGemmArguments& arguments);
/// The same of rows that may be entries, which `validated` refuses.
GroupedGemmArguments validated_of_moe(const GroupedGemmArguments& arguments);
KGroupedGemmArguments validated(const KGroupedGemmArguments& arguments);

/// Of validated arguments.
inline bool has_entries(const GroupedGemmArguments& x) {
  return x.entries.ids != nullptr;
}
/// How many rows of the product each row of A has: those of its entries.
inline std::int64_t repeats_of(const GroupedGemmArguments& x) {
  return has_entries(x) ? x.entries.top_k : 1;
}
inline bool is_masked(const GroupedGemmArguments& x) {
  return x.offsets == nullptr && !has_entries(x);
}
inline std::int64_t groups_of(const GroupedGemmArguments& x) {
  return x.b.batch;
}
bool is_transformed(const GroupedGemmArguments& x);

/// Rows that a group may have on average where FP8 products on a GPU take the kernel of few rows,
/// whose sums are in another order than those of tiles.
inline constexpr std::int64_t kFewRowsOnAverage = 1;

/// The product of all rows of validated arguments with one group's B, as far as shapes, recipes,
/// transform and result go: what gemm_detail says of those holds for groups.
GemmArguments product_of_rows(const GroupedGemmArguments& x);

/// The rows of group `g` of validated arguments whose offsets and lengths the host can read.
GroupRows rows_of_group(const GroupedGemmArguments& x, std::int64_t g);

/// A group that has rows.
struct FilledGroup {
  std::int64_t group = 0;
  GroupRows rows;
};
/// Those of validated arguments whose offsets and lengths the host can read: in the order of their
/// first rows, and in that of groups where these are masked.
std::vector<FilledGroup> filled_groups(const GroupedGemmArguments& x);

/// Of filled_groups that are not masked: one that shares rows with the group before it, or null.
const FilledGroup* find_shared(const std::vector<FilledGroup>& groups);

}  // namespace blockscale::grouped_gemm_detail
