#include "ops/moe/validate_routing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/checks.h"
#include "ops/common/regions.h"
#include "ops/moe/routing.h"
#include "ops/moe/routing_memory.h"

namespace blockscale {
namespace moe_detail {
namespace {

using checks::check_numbers;
using checks::fail;

void check_range(const char* argument, std::int64_t value, std::int64_t least, std::int64_t most,
                 const char* meaning) {
  if (least <= value && value <= most) return;
  fail(argument, checks::is_but(value, std::string(meaning) + "in " + std::to_string(least) + ".." +
                                           std::to_string(most)));
}

/// Nothing that is written may share a byte with other memory of the call.
template <class Arguments>
void check_aliasing(const Arguments& x) {
  call_regions([&](const auto& visit) { for_each_memory(x, visit); }).check_apart();
}

void check_logits(const RouteArguments& x) {
  if (x.logits.dtype != Format::f32 && x.logits.dtype != Format::f16 &&
      x.logits.dtype != Format::bf16) {
    fail("logits.dtype",
         std::string("is ") + format_traits(x.logits.dtype).name + ", must be f32, f16 or bf16");
  }
  check_range("logits.rows", x.logits.rows, 0, kMaxTokens, "the tokens, ");
  check_range("logits.columns", x.logits.columns, 1, kMaxExperts, "the experts, ");
  checks::check_equal("logits.batch", x.logits.batch, 1, "one matrix");
}

void check_groups(const RouteArguments& x) {
  check_range("groups", x.groups, 1, kMaxRouterGroups, "");
  if (x.logits.columns % x.groups != 0) {
    fail("groups", checks::is_but(x.groups, "a divisor of the " + std::to_string(x.logits.columns) +
                                                " experts"));
  }
  check_range("top_groups", x.top_groups, 1, x.groups, "");
  check_range("best_of_group", x.best_of_group, 1, 2, "");
  // Without groups nothing is counted of them.
  if (x.groups > 1 && x.best_of_group > experts_of_group(x)) {
    fail("best_of_group", checks::is_but(x.best_of_group, "1, as groups have one expert each"));
  }
}

/// What does not depend on memory.
void check_sizes(std::int64_t tokens, int top_k, std::int64_t experts, int tile) {
  check_range("tokens", tokens, 0, kMaxTokens, "");
  check_range("top_k", top_k, 1, kMaxTopK, "");
  check_range("experts", experts, 1, kMaxExperts, "");
  if (tile != 1 && (tile < 8 || tile > kMaxSortTile)) {
    fail("tile", checks::is_but(tile, "1 or in 8.." + std::to_string(kMaxSortTile)));
  }
}

std::int64_t sort_rows(std::int64_t tokens, int top_k, std::int64_t experts, int tile) {
  const std::int64_t entries = tokens * top_k;
  // An expert that has entries needs tile - 1 rows of padding at most.
  const std::int64_t rows = entries + std::min(experts, entries) * (tile - 1);
  return rows / tile * tile;
}

void check_no_tiles(const char* argument, const void* pointer) {
  if (pointer != nullptr) fail(argument, "is given, must not be without tiles (tile is 1)");
}

}  // namespace

void check_expert_map(const std::int32_t* expert_map, std::int64_t mapped_ids) {
  check_range("mapped_ids", mapped_ids, 0, kMaxMappedIds, "");
  check_numbers("expert_map", expert_map, mapped_ids > 0);
}

std::int64_t rows_of(const MoeSortArguments& x) {
  return sort_rows(x.tokens, x.top_k, x.experts, x.tile);
}

RouteArguments validated(const RouteArguments& arguments) {
  RouteArguments x = arguments;
  check_logits(x);
  x.logits = resolved(arguments.logits, "logits");
  check_groups(x);
  const std::int64_t candidates = x.top_groups * experts_of_group(x);
  check_range("top_k", x.top_k, 1, std::min<std::int64_t>(kMaxTopK, candidates),
              candidates < kMaxTopK ? "at most the experts of top_groups groups, " : "");
  if (x.score != RouterScore::softmax && x.score != RouterScore::sigmoid) {
    fail("score", checks::is_but(static_cast<int>(x.score), "softmax or sigmoid"));
  }
  check_range("shared_experts", x.shared_experts, 0, kMaxTopK - x.top_k, "beside top_k, ");
  if (!std::isfinite(x.scale)) fail("scale", "is not finite");
  check_numbers("correction_bias", x.correction_bias);
  check_numbers("ids", x.ids, x.logits.rows > 0);
  check_numbers("weights", x.weights, x.logits.rows > 0);
  check_aliasing(x);
  return x;
}

MoeSortArguments validated(const MoeSortArguments& x) {
  check_sizes(x.tokens, x.top_k, x.experts, x.tile);
  check_range("first_expert", x.first_expert, 0,
              std::numeric_limits<std::int32_t>::max() - x.experts, "");
  check_expert_map(x.expert_map, x.mapped_ids);
  check_numbers("ids", x.ids, x.tokens > 0);
  check_numbers("offsets", x.offsets);
  check_numbers("row_of_entry", x.row_of_entry);
  check_numbers("entry_of_row", x.entry_of_row);
  check_numbers("token_of_row", x.token_of_row);
  check_numbers("expert_of_tile", x.expert_of_tile);
  check_numbers("row_limit_of_tile", x.row_limit_of_tile);
  check_numbers("padded_rows", x.padded_rows);
  check_numbers("tiles", x.tiles);
  if (x.tile == 1) {
    check_no_tiles("expert_of_tile", x.expert_of_tile);
    check_no_tiles("row_limit_of_tile", x.row_limit_of_tile);
    check_no_tiles("tiles", x.tiles);
  }
  check_aliasing(x);
  return x;
}

}  // namespace moe_detail

std::int64_t moe_sort_rows(std::int64_t tokens, int top_k, std::int64_t experts, int tile) {
  moe_detail::check_sizes(tokens, top_k, experts, tile);
  return moe_detail::sort_rows(tokens, top_k, experts, tile);
}

}  // namespace blockscale
