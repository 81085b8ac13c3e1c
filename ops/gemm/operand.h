// One matrix of an operand of a GEMM: where its values and scales lie.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

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
  const std::uint8_t* scales = nullptr;
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

namespace detail {
/// Values of the 256 codes of a 1-byte scale format.
template <Format F>
constexpr std::array<float, 256> scale_values() {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) values[code] = decode<F>(code);
  return values;
}
inline constexpr std::array<float, 256> kUe8m0Values = scale_values<Format::ue8m0>();
inline constexpr std::array<float, 256> kUe4m3Values = scale_values<Format::ue4m3>();
}  // namespace detail

/// Smallest block of k that shares a scale, in any recipe.
inline constexpr std::int64_t kMinBlock = 16;

/// Scales of k blocks [first, first + count) of row `row` of a matrix that is not plain.
inline void load_scales(const OperandMatrix& x, std::int64_t row, std::int64_t first,
                        std::int64_t count, float* out) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  const std::int64_t i = t.block_rows == 0 ? 0 : row / t.block_rows;
  visit_scale_layout(x.layout, [&](auto tag) {
    const auto offset = [&](std::int64_t j) {
      return scale_offset<decltype(tag)::value>(i, first + j, x.scale_leading_stride);
    };
    if (t.scale == Format::f32) {
      for (std::int64_t j = 0; j < count; ++j) {
        std::memcpy(out + j, x.scales + offset(j) * std::int64_t{sizeof(float)}, sizeof(float));
      }
    } else {
      const auto& values = t.scale == Format::ue8m0 ? detail::kUe8m0Values : detail::kUe4m3Values;
      for (std::int64_t j = 0; j < count; ++j) out[j] = values[x.scales[offset(j)]];
    }
  });
}

}  // namespace blockscale::gemm_detail
