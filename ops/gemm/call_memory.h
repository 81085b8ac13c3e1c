// The memory of a product's call, named once: what checks, launches and benchmarks go through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "blockscale/gemm.h"
#include "ops/common/overlap.h"

namespace blockscale::gemm_detail {

/// What a call does with an argument's memory.
enum class Access : std::uint8_t { reads, writes };

/// What for_each_memory says of D or of what it is quantized into.
template <class Arguments, class Visit>
void visit_result(Arguments& x, const Visit& visit) {
  using enum Access;
  if (!x.quantized) {
    visit("d.data", writes, x.d.data, [&] { return lines_of(MatrixView(x.d)); });
    return;
  }
  auto& out = x.quantized->out;
  const auto view = [&out] { return ScaledTensorView(out); };
  visit("quantized.out.values", writes, out.values, [&] { return values_of(view()); });
  visit("quantized.out.scales", writes, out.scales, [&] { return scales_of(view()); });
  visit("quantized.out.tensor_scale", reads, out.tensor_scale,
        [&] { return tensor_scales_of(view()); });
}

/// The same of A and B.
template <class Arguments, class Visit>
void visit_operands(Arguments& x, const Visit& visit) {
  using enum Access;
  visit("a.values", reads, x.a.values, [&] { return values_of(x.a); });
  visit("a.scales", reads, x.a.scales, [&] { return scales_of(x.a); });
  visit("a.tensor_scale", reads, x.a.tensor_scale, [&] { return tensor_scales_of(x.a); });
  visit("b.values", reads, x.b.values, [&] { return values_of(x.b); });
  visit("b.scales", reads, x.b.scales, [&] { return scales_of(x.b); });
  visit("b.tensor_scale", reads, x.b.tensor_scale, [&] { return tensor_scales_of(x.b); });
}

/// visit(argument, access, pointer, lines) for all memory of `x`, validated: what is written first.
/// `pointer` is the argument's own, which a visitor of arguments that are not const may change;
/// lines() are the bytes that it stands for. C may be D; nothing else that is written may overlap.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, GemmArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum Access;
  visit_result(x, visit);
  visit_operands(x, visit);
  visit("bias", reads, x.bias,
        [&] { return line_of(x.bias, x.b.rows * (format_traits(x.bias_dtype).bits / 8)); });
  visit("gate", reads, x.gate,
        [&] { return line_of(x.gate, x.b.rows * (format_traits(x.gate_dtype).bits / 8)); });
  visit("alpha_factor", reads, x.alpha_factor,
        [&] { return line_of(x.alpha_factor, sizeof(float)); });
  if (x.beta != 0) visit("c.data", reads, x.c.data, [&] { return lines_of(x.c); });
}

}  // namespace blockscale::gemm_detail
