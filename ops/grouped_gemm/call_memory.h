// The memory of a grouped product's call, named once: what checks, launches and benchmarks go
// through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "blockscale/grouped_gemm.h"
#include "ops/common/overlap.h"
#include "ops/gemm/call_memory.h"

namespace blockscale::grouped_gemm_detail {

using gemm_detail::Access;

namespace memory_detail {

template <class View, class Visit>
void visit_operand(const char* const (&names)[3], View& x, const Visit& visit) {
  visit(names[0], Access::reads, x.values, [&] { return values_of(x); });
  visit(names[1], Access::reads, x.scales, [&] { return scales_of(x); });
  visit(names[2], Access::reads, x.tensor_scale, [&] { return tensor_scales_of(x); });
}

template <class Arguments, class Visit>
void visit_operands(Arguments& x, const Visit& visit) {
  visit_operand({"a.values", "a.scales", "a.tensor_scale"}, x.a, visit);
  visit_operand({"b.values", "b.scales", "b.tensor_scale"}, x.b, visit);
}

}  // namespace memory_detail

/// visit(argument, access, pointer, lines) for all memory of `x`, validated, as
/// gemm_detail::for_each_memory does: what is written first, and nothing else may overlap it.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, GroupedGemmArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum Access;
  if (x.quantized) {
    auto& out = x.quantized->out;
    const auto view = [&out] { return ScaledTensorView(out); };
    visit("quantized.out.values", writes, out.values, [&] { return values_of(view()); });
    visit("quantized.out.scales", writes, out.scales, [&] { return scales_of(view()); });
    visit("quantized.out.tensor_scale", reads, out.tensor_scale,
          [&] { return tensor_scales_of(view()); });
  } else {
    visit("d.data", writes, x.d.data, [&] { return lines_of(MatrixView(x.d)); });
  }
  memory_detail::visit_operands(x, visit);
  const auto numbers = [&](const char* name, auto& pointer, std::int64_t count) {
    visit(name, reads, pointer, [&pointer, count] {
      return line_of(pointer, count * static_cast<std::int64_t>(sizeof(*pointer)));
    });
  };
  const std::int64_t groups = x.b.batch;
  numbers("offsets", x.offsets, x.lengths == nullptr ? groups + 1 : groups);
  numbers("lengths", x.lengths, groups);
  numbers("alpha_factors", x.alpha_factors, groups);
  visit("bias", reads, x.bias, [&] {
    return line_of(x.bias, groups * x.b.rows * (format_traits(x.bias_dtype).bits / 8));
  });
  numbers("index", x.index, x.rows);
  numbers("destinations", x.destinations, x.rows);
  numbers("weights", x.weights, x.rows);
}

template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, KGroupedGemmArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  visit("d.data", Access::writes, x.d.data, [&] { return lines_of(MatrixView(x.d)); });
  memory_detail::visit_operands(x, visit);
  visit("offsets", Access::reads, x.offsets, [&] {
    return line_of(x.offsets, (x.d.batch + 1) * static_cast<std::int64_t>(sizeof(*x.offsets)));
  });
}

}  // namespace blockscale::grouped_gemm_detail
