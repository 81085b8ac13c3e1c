#include "ops/gemm/cuda/tensor_maps.h"

#include "core/recipe.h"

namespace blockscale::gemm_detail {
namespace {

/// What a tensor copy of scales reads: rows of them along the contiguous dimension, and how far
/// apart they are.
struct ScaleRows {
  std::int64_t inner, outer, stride;
};

ScaleRows scale_rows_of(const ScaledTensorView& x) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const bool rows_inner = x.layout == ScaleLayout::mn_major;
  const std::int64_t outer = rows_inner ? grid.columns : grid.rows;
  // A stride that is never used may break TMA's rules.
  return {rows_inner ? grid.rows : grid.columns, outer,
          outer > 1 ? x.scale_leading_stride : std::int64_t{4}};
}

/// The swizzle whose span is so many bytes.
TensorMapSwizzle swizzle_of(std::uint32_t bytes) {
  return bytes == 128  ? TensorMapSwizzle::bytes_128
         : bytes == 64 ? TensorMapSwizzle::bytes_64
                       : TensorMapSwizzle::bytes_32;
}

}  // namespace

bool fits_tma(const ScaledTensorView& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.values);
  return address % 16 == 0 && (x.rows <= 1 || x.value_row_stride % 16 == 0) &&
         (x.batch <= 1 || x.value_batch_stride % 16 == 0);
}

TensorMapDescription map_of_values(const ScaledTensorView& x, std::uint32_t box_rows,
                                   std::uint32_t box_bytes) {
  const auto rows = static_cast<std::uint64_t>(x.rows);
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.values);
  d.rank = 3;
  const auto count = static_cast<std::uint64_t>(x.batch);
  // A stride that is never used may break TMA's rules.
  const auto bits = static_cast<std::uint64_t>(format_traits(recipe_traits(x.recipe).element).bits);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(x.k) * bits / 8;
  const std::uint64_t row_stride =
      x.rows > 1 ? static_cast<std::uint64_t>(x.value_row_stride) : (row_bytes + 15) / 16 * 16;
  d.sizes[0] = row_bytes;
  d.sizes[1] = rows;
  d.sizes[2] = count;
  d.strides[0] = row_stride;
  d.strides[1] = x.batch > 1 ? static_cast<std::uint64_t>(x.value_batch_stride) : rows * row_stride;
  d.box[0] = box_bytes;
  d.box[1] = box_rows;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  d.swizzle = swizzle_of(box_bytes);
  d.l2_promotion = TensorMapL2Promotion::bytes_128;
  return d;
}

TensorMapDescription map_of_values_with_gaps(const ScaledTensorView& x, std::uint32_t box_rows,
                                             std::uint32_t box_k) {
  TensorMapDescription d = map_of_values(x, box_rows, box_k);
  d.element = format_traits(recipe_traits(x.recipe).element).bits == 4
                  ? TensorMapElement::u4x16_align16b
                  : TensorMapElement::u6x16_align16b;
  d.sizes[0] = static_cast<std::uint64_t>(x.k);
  return d;
}

bool takes_copied_scales(const ScaledTensorView& x, int block_rows) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  if (t.block_rows != block_rows || t.block_k != kFp8BlockK || t.scale != Format::f32) return false;
  if (x.layout != ScaleLayout::mn_major && x.layout != ScaleLayout::row_major) return false;
  return reinterpret_cast<std::uintptr_t>(x.scales) % 16 == 0 && scale_rows_of(x).stride % 4 == 0 &&
         (x.batch <= 1 || x.scale_batch_stride % 4 == 0);
}

TensorMapDescription map_of_scales(const ScaledTensorView& x, std::uint32_t box_rows,
                                   std::uint32_t box_blocks) {
  const bool rows_inner = x.layout == ScaleLayout::mn_major;
  const ScaleRows rows = scale_rows_of(x);
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.scales);
  d.rank = 3;
  d.element = TensorMapElement::u32;
  d.sizes[0] = static_cast<std::uint64_t>(rows.inner);
  d.sizes[1] = static_cast<std::uint64_t>(rows.outer);
  d.sizes[2] = static_cast<std::uint64_t>(x.batch);
  d.strides[0] = static_cast<std::uint64_t>(rows.stride) * 4;
  d.strides[1] = x.batch > 1 ? static_cast<std::uint64_t>(x.scale_batch_stride) * 4
                             : d.sizes[1] * d.strides[0];
  d.box[0] = rows_inner ? box_rows : box_blocks;
  d.box[1] = rows_inner ? box_blocks : box_rows;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  return d;
}

TensorMapDescription map_of_results(const MutableMatrixView& x, std::uint32_t box_bytes) {
  const auto size = static_cast<std::uint64_t>(format_traits(x.dtype).bits / 8);
  const auto columns = static_cast<std::uint64_t>(x.columns);
  const auto rows = static_cast<std::uint64_t>(x.rows);
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.data);
  d.rank = 3;
  d.element = size == 4 ? TensorMapElement::u32 : TensorMapElement::u16;
  d.sizes[0] = columns;
  d.sizes[1] = rows;
  d.sizes[2] = static_cast<std::uint64_t>(x.batch);
  // Strides that are never used may break TMA's rules.
  d.strides[0] = (x.rows > 1 ? static_cast<std::uint64_t>(x.row_stride) : columns) * size;
  d.strides[1] =
      x.batch > 1 ? static_cast<std::uint64_t>(x.batch_stride) * size : rows * d.strides[0];
  d.box[0] = box_bytes / static_cast<std::uint32_t>(size);
  d.box[1] = 16;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  d.swizzle = swizzle_of(box_bytes);
  return d;
}

}  // namespace blockscale::gemm_detail
