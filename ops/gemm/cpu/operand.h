// One matrix of an operand of a GEMM: where its values and scales lie.
#pragma once

#include <cstdint>

#include "blockscale/tensor.h"

namespace blockscale::gemm_detail {

/// Matrix `index` of a resolved operand. An operand of batch 1 is shared by every matrix of D.
///
/// An element's value, as the GEMM reads it, is the f32 product `code * scale` (one rounding, exact
/// for all recipes but FP8 with f32 scales). The tensor scale is no part of it: the epilogue
/// applies it to the sum.
struct OperandMatrix {
  Recipe recipe = Recipe::f32;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  const std::uint8_t* values = nullptr;
  std::int64_t value_row_stride = 0;  // bytes
  const void* scales = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  std::int64_t scale_leading_stride = 0;  // scale elements
  double tensor_scale = 1.0;
  TensorScaleSense sense = TensorScaleSense::multiplier;

  OperandMatrix(const ScaledTensorView& view, std::int64_t index)
      : recipe(view.recipe),
        rows(view.rows),
        k(view.k),
        value_row_stride(view.value_row_stride),
        layout(view.layout),
        scale_leading_stride(view.scale_leading_stride),
        sense(view.sense) {
    const std::int64_t i = view.batch == 1 ? 0 : index;
    const std::int64_t scale_size = format_traits(recipe_traits(recipe).scale).bits / 8;
    values = static_cast<const std::uint8_t*>(view.values) + i * view.value_batch_stride;
    if (!is_plain(recipe)) {
      scales =
          static_cast<const std::uint8_t*>(view.scales) + i * view.scale_batch_stride * scale_size;
    }
    if (view.tensor_scale != nullptr) {
      tensor_scale = double{view.tensor_scale[i * view.tensor_scale_batch_stride]};
    }
  }
};

}  // namespace blockscale::gemm_detail
