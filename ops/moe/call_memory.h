// The memory of a layer's call, named once: what checks and launches go through.
#pragma once

#include <cstdint>

#include "blockscale/moe.h"
#include "ops/common/overlap.h"

namespace blockscale::moe_detail {

/// visit(argument, pointer, lines) for all that validated arguments read.
template <class Visit>
void for_each_read(const MoeArguments& x, const Visit& visit) {
  const auto operand = [&](const char* values, const char* scales, const char* tensor_scale,
                           const ScaledTensorView& view) {
    visit(values, view.values, values_of(view));
    visit(scales, view.scales, scales_of(view));
    visit(tensor_scale, view.tensor_scale, tensor_scales_of(view));
  };
  const auto numbers = [&](const char* name, const void* data, std::int64_t count, Format dtype) {
    visit(name, data, line_of(data, count * (format_traits(dtype).bits / 8)));
  };
  operand("x.values", "x.scales", "x.tensor_scale", x.x);
  operand("w13.values", "w13.scales", "w13.tensor_scale", x.w13);
  operand("w2.values", "w2.scales", "w2.tensor_scale", x.w2);
  const std::int64_t entries = x.x.rows * x.top_k, experts = x.w2.batch;
  numbers("ids", x.ids, entries, Format::f32);
  numbers("expert_map", x.expert_map, x.mapped_ids, Format::f32);
  numbers("weights", x.weights, entries, Format::f32);
  numbers("w13_alphas", x.w13_alphas, experts, Format::f32);
  numbers("w2_alphas", x.w2_alphas, experts, Format::f32);
  numbers("w13_bias", x.w13_bias, x.w13.batch * x.w13.rows, x.bias_dtype);
  numbers("w2_bias", x.w2_bias, x.w2.batch * x.w2.rows, x.bias_dtype);
  if (x.residual.data != nullptr) visit("residual.data", x.residual.data, lines_of(x.residual));
}

}  // namespace blockscale::moe_detail
