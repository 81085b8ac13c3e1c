// The native half of the Python package. Each function checks, crosses into views, releases the GIL
// and calls the library; everything that a user sees is in python/blockscale/*.py.
#include "module.h"

#include "blockscale/convert.h"
#include "blockscale/error.h"
#include "blockscale/system.h"

namespace blockscale::python {
namespace {

/// Python's kind of exception for a library error; the text is the library's.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyObject* kind = PyExc_ValueError;
    switch (error.code()) {
      case ErrorCode::invalid_argument:
      case ErrorCode::unsupported:
      case ErrorCode::corrupt_file:
      case ErrorCode::nonfinite: kind = PyExc_ValueError; break;
      case ErrorCode::not_found: kind = PyExc_FileNotFoundError; break;
      case ErrorCode::already_exists: kind = PyExc_FileExistsError; break;
      case ErrorCode::io: kind = PyExc_OSError; break;
      case ErrorCode::interrupted: kind = PyExc_KeyboardInterrupt; break;
      case ErrorCode::device:
      case ErrorCode::compile_failed: kind = PyExc_RuntimeError; break;
    }
    PyErr_SetString(kind, error.what());
  }
}

/// An enum whose members are the rows of one of core's tables.
template <class Enum, class Table>
void bind_table(nb::module_& module, const char* name, const char* doc, const Table& table) {
  nb::enum_<Enum> binding(module, name, doc);
  int index = 0;
  for (const auto& row : table) binding.value(row.name, static_cast<Enum>(index++));
}

void bind_enums(nb::module_& module) {
  bind_table<Format>(module, "Format", "How one number is stored.", kFormatTraits);
  bind_table<Recipe>(module, "Recipe",
                     "Element format + scale format + block shape + optional tensor scale.",
                     kRecipes);
  bind_table<ScaleLayout>(module, "ScaleLayout",
                          "Where the scale of (row, k block) lies in memory.", kScaleLayouts);
  nb::enum_<MxScaleMode>(module, "MxScaleMode", "How an MX block's shared exponent is chosen.")
      .value("floor", MxScaleMode::floor)
      .value("ceil", MxScaleMode::ceil)
      .value("even", MxScaleMode::even)
      .value("even_e2m1", MxScaleMode::even_e2m1);
  nb::enum_<Activations>(module, "Activations", "How inputs of quantized layers are quantized.")
      .value("none", Activations::none, "Not at all.")
      .value("dynamic", Activations::dynamic, "By the engine, as they come.")
      .value("calibrated", Activations::calibrated, "With stored scales; \"static\" in names.");
  nb::enum_<ScaleChoice>(module, "ScaleChoice",
                         "Which scale a block takes: from its largest magnitude, or that of the "
                         "least squared error, weighted by input channel or not.")
      .value("amax", ScaleChoice::amax)
      .value("mse", ScaleChoice::mse)
      .value("weighted", ScaleChoice::weighted);
  nb::enum_<TensorScaleSense>(module, "TensorScaleSense",
                              "How a stored tensor scale enters a value.")
      .value("multiplier", TensorScaleSense::multiplier)
      .value("divisor", TensorScaleSense::divisor);
}

nb::dict recipe_dict(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  nb::dict row;
  row["element"] = t.element;
  row["element_bits"] = format_traits(t.element).bits;
  row["scale"] = t.scale;
  row["block_rows"] = t.block_rows;
  row["block_k"] = t.block_k;
  row["plain"] = is_plain(recipe);
  row["tensor_scale"] = t.tensor_scale;
  return row;
}

nb::tuple scale_shape(Recipe recipe, ScaleLayout layout, std::int64_t rows, std::int64_t k) {
  (void)scale_bytes(recipe, layout, rows, k);  // checks the combination
  const ScaleGrid grid = scale_grid(recipe, rows, k);
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  const std::int64_t grid_rows = ceil_div(grid.rows, t.tile_rows) * t.tile_rows;
  const std::int64_t columns = ceil_div(grid.columns, t.tile_k) * t.tile_k;
  return layout == ScaleLayout::mn_major ? nb::make_tuple(columns, grid_rows)
                                         : nb::make_tuple(grid_rows, columns);
}

nb::tuple scale_tile(ScaleLayout layout) {
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  return nb::make_tuple(t.tile_rows, t.tile_k);
}

std::int64_t packed_row_bytes(Recipe recipe, std::int64_t k) {
  return value_bytes(recipe, 1, k);  // checks k
}

}  // namespace
}  // namespace blockscale::python

NB_MODULE(_native, module) {
  using namespace blockscale::python;
  module.doc() = "Native half of blockscale; use the package's public names instead.";
  module.attr("version") = blockscale::library_version();
  nb::register_exception_translator(translate_error);
  bind_enums(module);
  module.def("recipe_traits", &recipe_dict, nb::arg("recipe"));
  module.def("scale_shape", &scale_shape, nb::arg("recipe"), nb::arg("layout"), nb::arg("rows"),
             nb::arg("k"));
  module.def("scale_tile", &scale_tile, nb::arg("layout"));
  module.def("row_bytes", &packed_row_bytes, nb::arg("recipe"), nb::arg("k"));
  bind_dlpack(module);
  bind_operations(module);
  bind_cuda_operations(module);
  bind_checkpoints(module);
}
