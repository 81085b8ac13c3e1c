// The native half of the Python package. Each function checks, crosses into views, releases the GIL
// and calls the library; everything that a user sees is in python/blockscale/*.py.
#include "module.h"

#include <array>
#include <cstdio>
#include <string>

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

/// "4 bits (2 of exponent, 1 of mantissa), largest value 6".
std::string describe(const FormatTraits& t) {
  std::array<char, 32> largest;
  std::snprintf(largest.data(), largest.size(), "%.7g", static_cast<double>(t.max));
  return std::to_string(t.bits) + " bits (" + (t.is_signed ? "" : "no sign, ") +
         std::to_string(t.exponent_bits) + " of exponent, " + std::to_string(t.mantissa_bits) +
         " of mantissa), largest value " + largest.data();
}

/// "e2m1 elements, a ue4m3 scale for 1 x 16 of them, and one f32 for all".
std::string describe(const RecipeTraits& t) {
  const std::string element = format_traits(t.element).name;
  if (t.family == Family::plain) return element + " without scales";
  const auto side = [](int size, const char* all) {
    return size == 0 ? all : std::to_string(size);
  };
  return element + " elements, a " + (t.power_of_two ? "power-of-two " : "") +
         format_traits(t.scale).name + " scale for " + side(t.block_rows, "all rows") + " x " +
         side(t.block_k, "all k") + (t.tensor_scale ? ", and one f32 for all" : "");
}

/// "tiles of 128 rows x 4 blocks of k, ...".
std::string describe(const ScaleLayoutTraits& t) {
  if (t.layout == ScaleLayout::row_major) return "[rows, k blocks], k blocks contiguous";
  if (t.layout == ScaleLayout::mn_major) return "[k blocks, rows], rows contiguous";
  return "tiles of " + std::to_string(t.tile_rows) + " rows x " + std::to_string(t.tile_k) +
         " k blocks, as tensor cores read them";
}

/// An enum whose members are the rows of one of core's tables.
template <class Enum, class Table>
void bind_table(nb::module_& module, const char* name, const char* doc, const Table& table) {
  nb::enum_<Enum> binding(module, name, doc);
  int index = 0;
  for (const auto& row : table) {
    binding.value(row.name, static_cast<Enum>(index++), describe(row).c_str());
  }
}

void bind_enums(nb::module_& module) {
  bind_table<Format>(module, "Format", "How one number is stored.", kFormatTraits);
  bind_table<Recipe>(module, "Recipe",
                     "Element format + scale format + block shape + optional tensor scale.",
                     kRecipes);
  bind_table<ScaleLayout>(module, "ScaleLayout",
                          "Where the scale of (row, k block) lies in memory.", kScaleLayouts);
  nb::enum_<MxScaleMode>(module, "MxScaleMode", "How an MX block's shared exponent is chosen.")
      .value("floor", MxScaleMode::floor,
             "Of the largest magnitude, less the element's (OCP MX): large values may saturate.")
      .value("ceil", MxScaleMode::ceil, "The smallest one with which nothing saturates.")
      .value("even", MxScaleMode::even,
             "As floor, of the largest magnitude rounded to the element's mantissa.")
      .value("even_e2m1", MxScaleMode::even_e2m1,
             "As even, to e2m1's mantissa whatever the element (compressed-tensors' MXFP8).");
  nb::enum_<Activations>(module, "Activations", "How inputs of quantized layers are quantized.")
      .value("none", Activations::none, "Not at all.")
      .value("dynamic", Activations::dynamic, "By the engine, as they come.")
      .value("calibrated", Activations::calibrated, "With stored scales; \"static\" in names.");
  nb::enum_<ScaleChoice>(module, "ScaleChoice",
                         "Which scale a block takes: from its largest magnitude, or that of the "
                         "least squared error, weighted by input channel or not.")
      .value("amax", ScaleChoice::amax, "From the block's largest magnitude.")
      .value("mse", ScaleChoice::mse, "That of the least squared error.")
      .value("weighted", ScaleChoice::weighted,
             "That of the least squared error, each weighted by its input channel.");
  nb::enum_<TensorScaleSense>(module, "TensorScaleSense",
                              "How a stored tensor scale enters a value.")
      .value("multiplier", TensorScaleSense::multiplier, "value = code x scale x tensor scale.")
      .value("divisor", TensorScaleSense::divisor, "value = code x scale / tensor scale.");
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

nb::tuple scale_tile(ScaleLayout layout) {
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  return nb::make_tuple(t.tile_rows, t.tile_k);
}

/// Shapes of the values and of the scales of (rows, k) or (batch, rows, k).
nb::tuple part_shapes(Recipe recipe, ScaleLayout layout, const nb::tuple& shape) {
  const std::size_t last = shape.size() - 1;
  const auto rows = nb::cast<std::int64_t>(shape[last - 1]);
  const auto k = nb::cast<std::int64_t>(shape[last]);
  const nb::tuple values = nb::make_tuple(rows, value_bytes(recipe, 1, k));  // checks k
  (void)scale_bytes(recipe, layout, rows, k);  // checks the combination
  const auto [first, second] = scale_array_shape(recipe, layout, rows, k);
  const nb::tuple scales = nb::make_tuple(first, second);
  if (last == 1) return nb::make_tuple(values, scales);
  const nb::tuple batch = nb::make_tuple(shape[0]);
  return nb::make_tuple(batch + values, batch + scales);
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
  module.def("scale_tile", &scale_tile, nb::arg("layout"));
  module.def("part_shapes", &part_shapes, nb::arg("recipe"), nb::arg("layout"), nb::arg("shape"));
  bind_dlpack(module);
  bind_quantizers(module);
  bind_products(module);
  bind_linear(module);
  bind_threads(module);
  bind_grouped_products(module);
  bind_moe(module);
  bind_checkpoints(module);
}
