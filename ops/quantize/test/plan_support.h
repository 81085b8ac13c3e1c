// Plans of problems whose memory is never read.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/test/inputs.h"

namespace blockscale::test {

struct Problem {
  Recipe recipe = Recipe::mxfp4;
  Format dtype = Format::bf16;
  std::int64_t rows = 1024, k = 4096, batch = 1;
  ScaleLayout layout = ScaleLayout::row_major;
  QuantizeOptions options = {};
  std::int64_t x_row_stride = 0;
  std::uintptr_t x_address = 0x10000000;
};

/// Views of memory that is never read.
inline quantize_detail::QuantizeArguments arguments_of(const Problem& p) {
  const bool gated = is_gated(p.options.input);
  MatrixView x{reinterpret_cast<const void*>(p.x_address), p.dtype, p.rows, gated ? 2 * p.k : p.k};
  x.row_stride = p.x_row_stride;
  x.batch = p.batch;
  MutableScaledTensorView out;
  out.recipe = p.recipe;
  out.rows = p.rows;
  out.k = p.k;
  out.batch = p.batch;
  out.values = reinterpret_cast<void*>(std::uintptr_t{1} << 50);
  out.scales = reinterpret_cast<void*>(std::uintptr_t{1} << 51);
  out.layout = p.layout;
  if (recipe_traits(p.recipe).tensor_scale) {
    out.tensor_scale = reinterpret_cast<float*>(std::uintptr_t{1} << 52);
  }
  return quantize_detail::validated(x, out, p.options);
}

inline quantize_detail::QuantizePlan plan_of(const Problem& p) {
  return quantize_detail::plan_quantize(arguments_of(p), p.options, {}, nullptr);
}

inline std::vector<QuantizeKernel> kinds_of(const quantize_detail::QuantizePlan& plan) {
  std::vector<QuantizeKernel> kinds;
  for (int i = 0; i < plan.count; ++i) {
    kinds.push_back(kQuantizeKernels[plan.steps[static_cast<std::size_t>(i)].kernel].kernel);
  }
  return kinds;
}

/// Operands that are of no other use than to be there.
inline QuantizeOptions with_operands(InputTransform transform, Format dtype, std::int64_t groups,
                                     std::int64_t k) {
  QuantizeOptions options;
  const MatrixView operand{reinterpret_cast<const void*>(std::uintptr_t{1} << 48), dtype, groups,
                           k};
  options.input = input_of(transform, operand, operand, operand);
  return options;
}

}  // namespace blockscale::test
