// The memory of a layer's call, named once: what checks, launches and benchmarks go through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "blockscale/moe.h"
#include "ops/common/overlap.h"
#include "ops/gemm/call_memory.h"

namespace blockscale::moe_detail {

using gemm_detail::Access;

/// visit(argument, access, pointer, lines) for all memory of `x`, validated, as
/// gemm_detail::for_each_memory does: what is written first. The residual may be y.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, MoeArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum Access;
  const auto operand = [&](const char* values, const char* scales, const char* tensor_scale,
                           auto& view) {
    visit(values, reads, view.values, [&view] { return values_of(view); });
    visit(scales, reads, view.scales, [&view] { return scales_of(view); });
    visit(tensor_scale, reads, view.tensor_scale, [&view] { return tensor_scales_of(view); });
  };
  const auto numbers = [&](const char* name, auto& data, std::int64_t count, Format dtype) {
    visit(name, reads, data,
          [&data, count, dtype] { return line_of(data, count * (format_traits(dtype).bits / 8)); });
  };
  visit("y.data", writes, x.y.data, [&x] { return lines_of(MatrixView(x.y)); });
  operand("x.values", "x.scales", "x.tensor_scale", x.x);
  operand("w13.values", "w13.scales", "w13.tensor_scale", x.w13);
  operand("w2.values", "w2.scales", "w2.tensor_scale", x.w2);
  const std::int64_t entries = x.x.rows * x.top_k, experts = x.w2.batch;
  numbers("ids", x.ids, entries, Format::f32);
  numbers("weights", x.weights, entries, Format::f32);
  numbers("w13_alphas", x.w13_alphas, experts, Format::f32);
  numbers("w2_alphas", x.w2_alphas, experts, Format::f32);
  numbers("w13_bias", x.w13_bias, x.w13.batch * x.w13.rows, x.bias_dtype);
  numbers("w2_bias", x.w2_bias, x.w2.batch * x.w2.rows, x.bias_dtype);
  if (x.residual.data == nullptr) return;
  visit("residual.data", reads, x.residual.data, [&x] { return lines_of(x.residual); });
}

/// visit(argument, pointer, lines) for all that validated arguments read.
template <class Visit>
void for_each_read(const MoeArguments& x, const Visit& visit) {
  for_each_memory(x, [&](const char* argument, Access access, const void* data, const auto& lines) {
    if (access == Access::reads) visit(argument, data, lines());
  });
}

}  // namespace blockscale::moe_detail
