// The memory of a layer's call, named once: what checks and launches go through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "blockscale/moe.h"
#include "ops/common/overlap.h"
#include "ops/gemm/call_memory.h"

namespace blockscale::moe_detail {

/// visit(argument, access, pointer, lines) for all memory of `x`, validated, as
/// gemm_detail::for_each_memory does: y first. The residual may be y; nothing else may overlap it.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, MoeArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum gemm_detail::Access;
  visit("y.data", writes, x.y.data, [&] { return lines_of(MatrixView(x.y)); });
  const auto operand = [&](const char* values, const char* scales, const char* tensor_scale,
                           auto& view) {
    visit(values, reads, view.values, [&view] { return values_of(view); });
    visit(scales, reads, view.scales, [&view] { return scales_of(view); });
    visit(tensor_scale, reads, view.tensor_scale, [&view] { return tensor_scales_of(view); });
  };
  operand("x.values", "x.scales", "x.tensor_scale", x.x);
  operand("w13.values", "w13.scales", "w13.tensor_scale", x.w13);
  operand("w2.values", "w2.scales", "w2.tensor_scale", x.w2);
  if (x.shared) {
    operand("shared.w13.values", "shared.w13.scales", "shared.w13.tensor_scale", x.shared->w13);
    operand("shared.w2.values", "shared.w2.scales", "shared.w2.tensor_scale", x.shared->w2);
  }
  const auto numbers = [&](const char* name, auto& data, std::int64_t count, std::int64_t size) {
    visit(name, reads, data, [&data, count, size] { return line_of(data, count * size); });
  };
  const std::int64_t entries = x.x.rows * x.top_k, experts = x.w2.batch;
  const std::int64_t of_bias = format_traits(x.bias_dtype).bits / 8;
  numbers("ids", x.ids, entries, 4);
  numbers("expert_map", x.expert_map, x.mapped_ids, 4);
  numbers("weights", x.weights, entries, 4);
  numbers("w13_alphas", x.w13_alphas, experts, 4);
  numbers("w2_alphas", x.w2_alphas, experts, 4);
  numbers("w13_bias", x.w13_bias, x.w13.batch * x.w13.rows, of_bias);
  numbers("w2_bias", x.w2_bias, x.w2.batch * x.w2.rows, of_bias);
  if (x.residual.data != nullptr) {
    visit("residual.data", reads, x.residual.data, [&] { return lines_of(x.residual); });
  }
}

}  // namespace blockscale::moe_detail
