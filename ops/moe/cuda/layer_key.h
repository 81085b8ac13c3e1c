// What the plan of a layer is a function of, but for its device and workspace.
#pragma once

#include "blockscale/moe.h"
#include "ops/common/cuda/kept_plans.h"

namespace blockscale::moe_detail {

class LayerKey : public cuda::CallKey<144> {
 public:
  LayerKey(const MoeArguments& x, const MoeOptions& options) {
    const auto& [input, w13, w2, ids, weights, top_k, weights_on_input, first_expert, expert_map,
                 mapped_ids, shared, transform, activations, w13_alphas, w2_alphas, w13_bias,
                 w2_bias, bias_dtype, all_experts, batch_invariant, deterministic, residual, y] = x;
    add(input, w13, w2, ids, weights, top_k, weights_on_input, first_expert, expert_map, mapped_ids,
        shared.has_value(), transform, activations, w13_alphas, w2_alphas, w13_bias, w2_bias,
        bias_dtype, all_experts, batch_invariant, deterministic, residual, MatrixView(y));
    if (shared) add(shared->w13, shared->w2);
    const auto& [threads, workspace_limit] = options;
    add(threads, workspace_limit);
  }
};

}  // namespace blockscale::moe_detail
