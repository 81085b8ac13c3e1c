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

/// visit(argument, access, pointer, lines) for all memory of `x`, validated, as
/// gemm_detail::for_each_memory does: what is written first, and nothing else may overlap it.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, GroupedGemmArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum Access;
  gemm_detail::visit_result(x, visit);
  gemm_detail::visit_operands(x, visit);
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
  numbers("entries.ids", x.entries.ids, x.rows);
  numbers("destinations", x.destinations, x.rows);
  numbers("weights", x.weights, x.rows);
}

template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, KGroupedGemmArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  visit("d.data", Access::writes, x.d.data, [&] { return lines_of(MatrixView(x.d)); });
  gemm_detail::visit_operands(x, visit);
  visit("offsets", Access::reads, x.offsets, [&] {
    return line_of(x.offsets, (x.d.batch + 1) * static_cast<std::int64_t>(sizeof(*x.offsets)));
  });
}

}  // namespace blockscale::grouped_gemm_detail
