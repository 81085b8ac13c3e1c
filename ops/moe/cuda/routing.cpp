#include "ops/moe/cuda/routing.h"

#include "core/config.h"
#include "ops/moe/cuda/shapes.h"
#include "ops/moe/cuda/specs.h"
#include "ops/moe/validate_routing.h"

namespace blockscale::moe_detail {
namespace {

std::string text_of(const LaunchShape& shape) {
  return "; " + std::to_string(shape.grid.x) + " x " + std::to_string(shape.block.x) +
         " threads, " + std::to_string(shape.dynamic_shared_bytes) + " bytes shared\n";
}

/// Without padding: what pads sorted entries says where these go.
SortStep sort_step(const MoeSortArguments& x, const RowWeights& weights) {
  SortParams p;
  p.ids = x.ids;
  p.entries = static_cast<std::uint32_t>(entries_of(x));
  p.top_k = Divisor(static_cast<std::uint32_t>(x.top_k));
  p.experts = static_cast<std::uint32_t>(x.experts);
  p.first_expert = static_cast<std::uint32_t>(x.first_expert);
  p.expert_map = x.expert_map;
  p.mapped_ids = static_cast<std::uint32_t>(x.mapped_ids);
  p.offsets = x.offsets;
  p.row_of_entry = x.row_of_entry;
  p.entry_of_row = x.entry_of_row;
  p.token_of_row = x.token_of_row;
  p.rows = x.padded_rows;
  p.weights = weights.weights;
  p.weight_of_row = weights.of_rows;
  return {kSortKernel, shape_of(p.experts + 1, kSortThreads, kSortSharedBytes), p};
}

SortStep pad_step(const MoeSortArguments& x, const SortParams& sorted, const cuda::Chip& chip) {
  PadParams p;
  p.sorted_offsets = sorted.offsets;
  p.sorted_entries = sorted.entry_of_row;
  p.experts = sorted.experts;
  p.tile = Divisor(static_cast<std::uint32_t>(x.tile));
  p.top_k = sorted.top_k;
  p.rows = static_cast<std::uint32_t>(rows_of(x));
  p.offsets = x.offsets;
  p.row_of_entry = x.row_of_entry;
  p.entry_of_row = x.entry_of_row;
  p.token_of_row = x.token_of_row;
  p.expert_of_tile = x.expert_of_tile;
  p.row_limit_of_tile = x.row_limit_of_tile;
  p.padded_rows = x.padded_rows;
  p.tiles = x.tiles;
  constexpr int kBlocksOfMultiprocessor = 4;
  const std::uint32_t blocks =
      blocks_for(ceil_div(p.rows, kPadThreads), kBlocksOfMultiprocessor, chip);
  return {kPadKernel, shape_of(blocks, kPadThreads, p.shared_bytes()), p};
}

bool makes_anything(const MoeSortArguments& x) {
  return x.offsets != nullptr || x.row_of_entry != nullptr || x.entry_of_row != nullptr ||
         x.token_of_row != nullptr || x.expert_of_tile != nullptr ||
         x.row_limit_of_tile != nullptr || x.padded_rows != nullptr || x.tiles != nullptr;
}

std::string text_of(const SortParams& p) {
  return std::to_string(p.entries) + " entries, a block for each of " + std::to_string(p.experts) +
         " experts and one for what is dropped";
}
std::string text_of(const PadParams& p) {
  return "at most " + std::to_string(p.rows) + " rows in tiles of " +
         std::to_string(p.tile.divisor) + ", from those without padding in the workspace";
}

}  // namespace

RoutePlan plan_route(const RouteArguments& x, const cuda::Chip& chip) {
  RoutePlan plan;
  plan.architecture = chip.architecture;
  RouteParams& p = plan.params;
  p.logits = x.logits.data;
  p.dtype = x.logits.dtype;
  p.row_stride = x.logits.row_stride;
  p.correction_bias = x.correction_bias;
  p.tokens = static_cast<std::uint32_t>(x.logits.rows);
  p.experts = static_cast<std::uint32_t>(x.logits.columns);
  p.top_k = x.top_k;
  p.is_sigmoid = x.score == RouterScore::sigmoid;
  p.renormalize = x.renormalize;
  p.groups = x.groups;
  p.experts_of_group = Divisor(static_cast<std::uint32_t>(experts_of_group(x)));
  p.top_groups = x.top_groups;
  p.best_of_group = x.best_of_group;
  p.scale = x.scale;
  p.shared_experts = x.shared_experts;
  p.ids = x.ids;
  p.weights = x.weights;
  constexpr int kBlocksOfMultiprocessor = 16;
  plan.shape = shape_of(blocks_for(ceil_div(p.tokens, kRouteWarps), kBlocksOfMultiprocessor, chip),
                        kRouteThreads, p.shared_bytes());
  return plan;
}

SortPlan plan_sort(const MoeSortArguments& x, const cuda::Chip& chip, void* workspace,
                   const RowWeights& weights) {
  SortPlan plan;
  plan.architecture = chip.architecture;
  if (!makes_anything(x)) return plan;
  if (x.tile == 1) {
    plan.steps.push_back(sort_step(x, weights));
    return plan;
  }
  const auto take = [&](std::int64_t numbers) {
    // Where a null workspace is asked how much it must be, addresses are of no use.
    const auto at = reinterpret_cast<std::uintptr_t>(workspace) +
                    static_cast<std::uintptr_t>(plan.workspace_bytes);
    plan.workspace_bytes += ceil_div(numbers * 4, 16) * 16;
    return reinterpret_cast<std::int32_t*>(at);
  };
  MoeSortArguments sorted = x;
  sorted.offsets = take(x.experts + 1);
  sorted.entry_of_row = take(entries_of(x));
  sorted.token_of_row = nullptr;
  sorted.padded_rows = nullptr;
  plan.steps.push_back(sort_step(sorted, {}));
  const SortParams params = std::get<SortParams>(plan.steps.front().params);
  plan.steps.push_back(pad_step(x, params, chip));
  return plan;
}

std::string RoutePlan::str() const {
  if (!is_needed()) return "nothing to do: there is no token\n";
  return kernel_name(kRouteKernel) + ": " + std::to_string(params.tokens) + " tokens, " +
         std::to_string(params.experts) + " experts, a warp for each token" + text_of(shape);
}

std::string SortStep::str() const {
  return kernel_name(kernel) + ": " + std::visit([](const auto& p) { return text_of(p); }, params) +
         text_of(shape);
}

std::string SortPlan::str() const {
  if (steps.empty()) return "nothing to do: no result is asked for\n";
  std::string text;
  for (const SortStep& step : steps) text += step.str();
  return text;
}

}  // namespace blockscale::moe_detail
