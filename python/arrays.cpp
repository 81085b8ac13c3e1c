#include "arrays.h"

#include <algorithm>
#include <string>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::python {
namespace {

[[noreturn]] void fail(const ArrayName& name, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name.str(), message);
}

std::string shape_text(const Array& array) {
  std::string text = "(";
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(array.shape(i));
  }
  return text + ")";
}

/// Whether strides say something: those of an array without elements are arbitrary.
bool has_steps(const Array& array, std::size_t axis) {
  return array.shape(axis) > 1 && array.size() > 0;
}

/// Elements between consecutive indices of dimension `axis`; 0 where there is only one.
std::int64_t stride_of(const ArrayName& name, const Array& array, std::size_t axis) {
  const auto stride = array.stride(axis);
  if (!has_steps(array, axis)) return 0;
  if (stride <= 0) {
    fail(name, "stride of dimension " + std::to_string(axis) + " is " + std::to_string(stride) +
                   " elements, must be positive; copy it first");
  }
  return stride;
}

Array array_of(const ArrayName& name, nb::handle object, Access access, const Place& place) {
  return access == Access::write ? output_array(name, object, place)
                                 : input_array(name, object, place);
}

/// Names of a ScaledTensor's attributes, made once.
struct ScaledTensorNames {
  nb::object recipe = interned("_recipe");
  nb::object layout = interned("_layout");
  nb::object sense = interned("_sense");
  nb::object k = interned("_k");
  nb::object values = interned("_values");
  nb::object scales = interned("_scales");
  nb::object tensor_scale = interned("_tensor_scale");
};
const ScaledTensorNames& scaled_tensor_names() {
  static const auto* const names = new ScaledTensorNames();
  return *names;
}

/// Values are bytes, [rows, row bytes] or [batch, rows, row bytes]; `view.k` is known.
void set_values(const ArrayName& name, const Array& values, MutableScaledTensorView& view) {
  if (values.ndim() != 2 && values.ndim() != 3) {
    fail(name, "shape is " + shape_text(values) + ", must have 2 or 3 dimensions");
  }
  const std::size_t last = values.ndim() - 1;
  if (values.itemsize() != 1 || (has_steps(values, last) && values.stride(last) != 1)) {
    fail(name, "must be bytes whose last dimension is contiguous");
  }
  if (values.shape(last) != row_bytes(view.recipe, view.k)) {
    fail(name, "shape is " + shape_text(values) + ", rows must have " +
                   std::to_string(row_bytes(view.recipe, view.k)) + " bytes");
  }
  view.rows = values.shape(last - 1);
  view.values = values.data();
  view.value_row_stride = stride_of(name, values, last - 1);
  if (values.ndim() == 3) {
    view.batch = values.shape(0);
    view.value_batch_stride = stride_of(name, values, 0);
  }
}

/// The scales' strides: their last dimension is contiguous; the one before gives the leading
/// stride of a strided layout and is packed in a swizzled one, the first of three gives the batch
/// stride.
void set_scale_strides(const ArrayName& name, const Array& scales, MutableScaledTensorView& view) {
  if (scales.ndim() != 2 && scales.ndim() != 3) {
    fail(name, "shape is " + shape_text(scales) + ", must have 2 or 3 dimensions");
  }
  const std::size_t last = scales.ndim() - 1;
  if (has_steps(scales, last) && scales.stride(last) != 1) {
    fail(name, "its last dimension must be contiguous");
  }
  const std::int64_t rows = stride_of(name, scales, last - 1);
  const auto columns = scales.shape(last);
  if (!is_swizzled(view.layout)) {
    view.scale_leading_stride = rows;
  } else if (rows != 0 && rows != columns) {
    fail(name, "stride of its rows is " + std::to_string(rows) + " elements, must be " +
                   std::to_string(columns) + " in " + scale_layout_traits(view.layout).name +
                   "; copy it first");
  }
  if (scales.ndim() == 3) view.scale_batch_stride = stride_of(name, scales, 0);
}

}  // namespace

std::array<std::int64_t, 2> scale_array_shape(Recipe recipe, ScaleLayout layout, std::int64_t rows,
                                              std::int64_t k) {
  const RecipeTraits& blocks_of = recipe_traits(recipe);
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  const auto blocks = [](std::int64_t size, std::int64_t block) {
    return ceil_div(size, block == 0 ? std::max<std::int64_t>(size, 1) : block);
  };
  const bool plain = is_plain(recipe);
  const std::int64_t grid_rows = plain ? 0 : blocks(rows, blocks_of.block_rows);
  const std::int64_t grid_columns = plain ? 0 : blocks(k, blocks_of.block_k);
  const std::int64_t whole_rows = ceil_div(grid_rows, std::int64_t{t.tile_rows}) * t.tile_rows;
  const std::int64_t whole_columns = ceil_div(grid_columns, std::int64_t{t.tile_k}) * t.tile_k;
  if (layout == ScaleLayout::mn_major) return {whole_columns, whole_rows};
  return {whole_rows, whole_columns};
}

namespace {

/// Each array must hold what the recipe and the layout ask for.
void check_scale_shape(const ArrayName& name, const Array& scales,
                       const MutableScaledTensorView& view) {
  const auto [rows, columns] = scale_array_shape(view.recipe, view.layout, view.rows, view.k);
  const std::size_t last = scales.ndim() - 1;
  const std::int64_t batch = scales.ndim() == 3 ? scales.shape(0) : 1;
  if (scales.shape(last - 1) != rows || scales.shape(last) != columns || batch != view.batch) {
    fail(name, "shape is " + shape_text(scales) + ", must be (" +
                   (view.batch > 1 ? std::to_string(view.batch) + ", " : "") +
                   std::to_string(rows) + ", " + std::to_string(columns) + ") for " +
                   recipe_traits(view.recipe).name + " in " +
                   scale_layout_traits(view.layout).name);
  }
  const std::int64_t bytes = format_traits(recipe_traits(view.recipe).scale).bits / 8;
  if (scales.itemsize() != bytes) {
    fail(name, "has " + std::to_string(scales.itemsize()) + "-byte elements, must have " +
                   std::to_string(bytes));
  }
}

void set_tensor_scale(const ArrayName& name, const Array& factors, MutableScaledTensorView& view) {
  const auto count = factors.size();
  if (factors.itemsize() != sizeof(float) || (count != 1 && count != view.batch)) {
    fail(name, "must hold one f32, or one for each matrix of the batch");
  }
  if (factors.ndim() > 1 || (count > 1 && factors.stride(0) != 1)) {
    fail(name, "its elements must be contiguous; copy it first");
  }
  view.tensor_scale = static_cast<float*>(factors.data());
  view.tensor_scale_batch_stride = count == 1 ? 0 : 1;
}

}  // namespace

MutableMatrixView matrix_view(const char* argument, const Array& array, Format dtype) {
  if (array.ndim() != 2 && array.ndim() != 3) {
    fail(argument, "shape is " + shape_text(array) +
                       ", must be (rows, columns) or "
                       "(batch, rows, columns)");
  }
  const std::int64_t bytes = format_traits(dtype).bits / 8;
  if (array.itemsize() != bytes) {
    fail(argument, "has " + std::to_string(array.itemsize()) + "-byte elements, must have " +
                       std::to_string(bytes) + " for " + format_traits(dtype).name);
  }
  const std::size_t last = array.ndim() - 1;
  if (has_steps(array, last) && array.stride(last) != 1) {
    fail(argument, "stride of its last dimension is " + std::to_string(array.stride(last)) +
                       " elements, must be 1; copy it first");
  }
  MutableMatrixView view;
  view.data = array.data();
  view.dtype = dtype;
  view.rows = array.shape(last - 1);
  view.columns = array.shape(last);
  view.row_stride = stride_of(argument, array, last - 1);
  if (array.ndim() == 3) {
    view.batch = array.shape(0);
    view.batch_stride = stride_of(argument, array, 0);
  }
  return resolved(view, argument);
}

ScaledArgument scaled_argument(const char* argument, nb::handle tensor, Access access,
                               const Place& place) {
  ScaledArgument result;
  MutableScaledTensorView& view = result.view;
  const ScaledTensorNames& names = scaled_tensor_names();
  view.recipe = nb::cast<Recipe>(tensor.attr(names.recipe));
  view.layout = nb::cast<ScaleLayout>(tensor.attr(names.layout));
  view.sense = nb::cast<TensorScaleSense>(tensor.attr(names.sense));
  view.k = nb::cast<std::int64_t>(tensor.attr(names.k));

  const ArrayName values_name(argument, "values");
  result.values = array_of(values_name, tensor.attr(names.values), access, place);
  set_values(values_name, result.values, view);
  const ArrayName scales_name(argument, "scales");
  result.scales = array_of(scales_name, tensor.attr(names.scales), access, place);
  set_scale_strides(scales_name, result.scales, view);
  check_scale_shape(scales_name, result.scales, view);
  view.scales = result.scales.data();
  if (recipe_traits(view.recipe).tensor_scale) {
    const ArrayName factor_name(argument, "tensor_scale");
    result.tensor_scale = array_of(factor_name, tensor.attr(names.tensor_scale), access, place);
    set_tensor_scale(factor_name, result.tensor_scale, view);
  }
  view = resolved(view, argument == nullptr ? "values" : argument);
  return result;
}

Operand operand_argument(const char* argument, nb::handle object, const Place& place) {
  const bool is_pair = nb::isinstance<nb::tuple>(object);
  Operand operand{
      .plain = is_pair ? input_array(argument, object[0], place) : Array(),
      .scaled = is_pair ? ScaledArgument() : scaled_argument(argument, object, Access::read, place),
      .view = {}};
  operand.view = is_pair
                     ? as_scaled(matrix_view(argument, operand.plain, nb::cast<Format>(object[1])))
                     : ScaledTensorView(operand.scaled.view);
  return operand;
}

}  // namespace blockscale::python
