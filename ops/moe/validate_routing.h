// Every check of the arguments of route and moe_sort, shared by CPU and CUDA.
#pragma once

#include <cstdint>

#include "blockscale/moe.h"

namespace blockscale::moe_detail {

/// `arguments` with strides filled in. Throws invalid_argument, naming the argument, its value and
/// what is allowed. Reads no data.
RouteArguments validated(const RouteArguments& arguments);
MoeSortArguments validated(const MoeSortArguments& arguments);

/// Of validated arguments.
inline std::int64_t entries_of(const MoeSortArguments& x) {
  return x.tokens * x.top_k;
}
std::int64_t rows_of(const MoeSortArguments& x);
/// Checks a map of experts, of moe_sort or of a layer.
void check_expert_map(const std::int32_t* expert_map, std::int64_t mapped_ids);
/// Ids of a token.
inline std::int64_t choices_of(const RouteArguments& x) {
  return x.top_k + x.shared_experts;
}
inline std::int64_t experts_of_group(const RouteArguments& x) {
  return x.logits.columns / x.groups;
}

}  // namespace blockscale::moe_detail
