// Resolution of views (defaults filled in, everything checked) and the owning tensor.
#include "blockscale/tensor.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "blockscale/error.h"
#include "ops/common/checks.h"

namespace blockscale {
namespace {

using checks::check_pointer;
using checks::check_size;
using checks::fail;
using checks::is_but;
using checks::product;
using checks::resolve_stride;

void check_recipe(const char* argument, Recipe recipe) {
  const int value = static_cast<int>(recipe);
  if (value >= kRecipeCount) {
    fail(argument, "recipe", is_but(value, "in 0.." + std::to_string(kRecipeCount - 1)));
  }
}

/// Rules that a recipe and a layout put on a shape.
void check_recipe_shape(const char* argument, Recipe recipe, ScaleLayout layout, std::int64_t rows,
                        std::int64_t k, std::int64_t batch) {
  check_recipe(argument, recipe);
  const RecipeTraits& t = recipe_traits(recipe);
  check_size(argument, "rows", rows);
  check_size(argument, "k", k);
  check_size(argument, "batch", batch);
  if (!t.ragged && k % t.block_k != 0) {
    fail(argument, "k", is_but(k, "a multiple of " + std::to_string(t.block_k) + " for " + t.name));
  }
  checks::check_scale_layout(argument, "layout", layout);
  if (is_swizzled(layout) && !has_swizzled_scales(t)) {
    fail(argument, "layout",
         std::string("is ") + scale_layout_traits(layout).name + ", which holds 1-byte scales of " +
             "one row each; " + t.name + " has none, use row_major or mn_major");
  }
}

template <bool Mutable>
BasicMatrixView<Mutable> resolve_matrix(const BasicMatrixView<Mutable>& view,
                                        const char* argument) {
  BasicMatrixView<Mutable> result = view;
  if (view.dtype != Format::f32 && view.dtype != Format::f16 && view.dtype != Format::bf16) {
    const int value = static_cast<int>(view.dtype);
    fail(argument, "dtype",
         value < kFormatCount
             ? std::string("is ") + format_traits(view.dtype).name + ", must be f32, f16 or bf16"
             : is_but(value, "f32, f16 or bf16"));
  }
  check_size(argument, "rows", view.rows);
  check_size(argument, "columns", view.columns);
  check_size(argument, "batch", view.batch);
  result.row_stride =
      resolve_stride(argument, "row_stride", view.row_stride, view.columns, view.rows);
  const std::int64_t matrix = product(argument, "rows", view.rows, result.row_stride);
  result.batch_stride =
      resolve_stride(argument, "batch_stride", view.batch_stride, matrix, view.batch);
  const std::int64_t elements = product(argument, "batch", view.batch, result.batch_stride);
  const std::int64_t size = storage_bytes(view.dtype);
  product(argument, "batch", elements, size);
  const bool has_elements = view.rows > 0 && view.columns > 0 && view.batch > 0;
  check_pointer(argument, "data", view.data, has_elements, static_cast<std::size_t>(size));
  return result;
}

template <bool Mutable>
BasicScaledTensorView<Mutable> resolve_scaled(const BasicScaledTensorView<Mutable>& view,
                                              const char* argument) {
  BasicScaledTensorView<Mutable> result = view;
  check_recipe_shape(argument, view.recipe, view.layout, view.rows, view.k, view.batch);
  const RecipeTraits& t = recipe_traits(view.recipe);

  const std::int64_t row = row_bytes(view.recipe, view.k);
  const std::int64_t element_bytes = storage_bytes(t.element);
  result.value_row_stride =
      resolve_stride(argument, "value_row_stride", view.value_row_stride, row, view.rows);
  const std::int64_t matrix = product(argument, "rows", view.rows, result.value_row_stride);
  result.value_batch_stride =
      resolve_stride(argument, "value_batch_stride", view.value_batch_stride, matrix, view.batch);
  product(argument, "batch", view.batch, result.value_batch_stride);
  if (result.value_row_stride % element_bytes != 0) {
    fail(argument, "value_row_stride",
         is_but(result.value_row_stride, "a multiple of " + std::to_string(element_bytes)));
  }
  if (result.value_batch_stride % element_bytes != 0) {
    fail(argument, "value_batch_stride",
         is_but(result.value_batch_stride, "a multiple of " + std::to_string(element_bytes)));
  }
  const bool has_elements = view.rows > 0 && view.k > 0 && view.batch > 0;
  check_pointer(argument, "values", view.values, has_elements,
                static_cast<std::size_t>(element_bytes));

  const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
  result.scale_leading_stride =
      checks::resolve_leading_stride(argument, "scale_leading_stride", view.layout, grid.rows,
                                     grid.columns, view.scale_leading_stride);
  const std::int64_t scales =
      checks::packed_batch_stride(argument, "scale_leading_stride", view.layout, grid.rows,
                                  grid.columns, result.scale_leading_stride);
  result.scale_batch_stride =
      resolve_stride(argument, "scale_batch_stride", view.scale_batch_stride, scales, view.batch);
  product(argument, "batch", view.batch, result.scale_batch_stride);
  check_pointer(argument, "scales", view.scales, has_elements && t.family != Family::plain,
                static_cast<std::size_t>(storage_bytes(t.scale)));

  check_pointer(argument, "tensor_scale", view.tensor_scale, false, alignof(float));
  if (view.tensor_scale != nullptr && !t.tensor_scale) {
    fail(argument, "tensor_scale", std::string("is given, but ") + t.name + " has none");
  }
  if (view.tensor_scale_batch_stride != 0 && view.tensor_scale_batch_stride != 1) {
    fail(argument, "tensor_scale_batch_stride", is_but(view.tensor_scale_batch_stride, "0 or 1"));
  }
  return result;
}

}  // namespace

ScaledTensorView as_scaled(const MatrixView& matrix) {
  const MatrixView m = resolved(matrix, "matrix");
  const std::int64_t size = storage_bytes(m.dtype);
  ScaledTensorView view;
  view.recipe = plain_recipe(m.dtype);
  view.rows = m.rows;
  view.k = m.columns;
  view.batch = m.batch;
  view.values = m.data;
  view.value_row_stride = m.row_stride * size;
  view.value_batch_stride = m.batch_stride * size;
  return view;
}

MatrixView resolved(const MatrixView& view, const char* argument) {
  return resolve_matrix(view, argument);
}
MutableMatrixView resolved(const MutableMatrixView& view, const char* argument) {
  return resolve_matrix(view, argument);
}
ScaledTensorView resolved(const ScaledTensorView& view, const char* argument) {
  return resolve_scaled(view, argument);
}
MutableScaledTensorView resolved(const MutableScaledTensorView& view, const char* argument) {
  return resolve_scaled(view, argument);
}

std::int64_t value_bytes(Recipe recipe, std::int64_t rows, std::int64_t k, std::int64_t batch) {
  check_recipe_shape("values", recipe, ScaleLayout::row_major, rows, k, batch);
  const std::int64_t matrix = product("values", "rows", rows, row_bytes(recipe, k));
  return product("values", "batch", batch, matrix);
}

std::int64_t scale_bytes(Recipe recipe, ScaleLayout layout, std::int64_t rows, std::int64_t k,
                         std::int64_t batch) {
  check_recipe_shape("scales", recipe, layout, rows, k, batch);
  const ScaleGrid grid = scale_grid(recipe, rows, k);
  const std::int64_t leading = default_leading_stride(layout, grid.rows, grid.columns);
  const std::int64_t count =
      checks::packed_batch_stride("scales", "rows", layout, grid.rows, grid.columns, leading);
  const std::int64_t size = storage_bytes(recipe_traits(recipe).scale);
  return product("scales", "batch", batch, product("scales", "rows", count, size));
}

namespace {

/// `bytes` zeros at a multiple of `alignment`, or null; what to free stands in front of them. From
/// 4 MiB on in huge pages where the kernel has them: faults of 4 KiB each take as long as
/// quantizing into them, and readers of weights pay for them again in translations of addresses.
/// New memory is zero, and calloc knows when it is new: it is not touched here.
std::byte* allocate_zeros(std::size_t alignment, std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const bool huge = bytes >= 2 * kHugePage;
  const std::size_t unit = huge ? kHugePage : alignment;
  void* const whole = std::calloc(1, bytes + unit + sizeof(void*));
  if (whole == nullptr) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(whole) + sizeof(void*);
  std::byte* const storage =
      static_cast<std::byte*>(whole) + sizeof(void*) + (unit - begin % unit) % unit;
#if defined(MADV_HUGEPAGE)
  // Advice: what the kernel answers changes nothing but time.
  if (huge) (void)::madvise(storage, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  std::memcpy(storage - sizeof(void*), &whole, sizeof(void*));
  return storage;
}

}  // namespace

void ScaledTensor::FreeAligned::operator()(std::byte* p) const noexcept {
  void* whole = nullptr;
  std::memcpy(&whole, p - sizeof(void*), sizeof(void*));
  std::free(whole);
}

ScaledTensor::ScaledTensor(Recipe recipe, std::int64_t rows, std::int64_t k, ScaleLayout layout,
                           std::int64_t batch, TensorScaleSense sense) {
  constexpr std::int64_t kAlignment = 64;
  const auto aligned = [](std::int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; };
  const std::int64_t values = value_bytes(recipe, rows, k, batch);
  const std::int64_t scales = scale_bytes(recipe, layout, rows, k, batch);
  const bool has_tensor_scale = recipe_traits(recipe).tensor_scale;
  const std::int64_t factors =
      has_tensor_scale ? product("tensor", "batch", batch, std::int64_t{sizeof(float)}) : 0;
  const std::size_t total =
      static_cast<std::size_t>(aligned(values) + aligned(scales) + aligned(factors) + kAlignment);
  storage_.reset(allocate_zeros(static_cast<std::size_t>(kAlignment), total));
  if (storage_ == nullptr) throw std::bad_alloc();

  view_.recipe = recipe;
  view_.rows = rows;
  view_.k = k;
  view_.batch = batch;
  view_.layout = layout;
  view_.sense = sense;
  view_.values = storage_.get();
  if (!is_plain(recipe)) view_.scales = storage_.get() + aligned(values);
  if (has_tensor_scale) {
    view_.tensor_scale =
        reinterpret_cast<float*>(storage_.get() + aligned(values) + aligned(scales));
    for (std::int64_t i = 0; i < batch; ++i) view_.tensor_scale[i] = 1.0f;
    view_.tensor_scale_batch_stride = 1;
  }
  view_ = resolved(view_, "tensor");
}

}  // namespace blockscale
