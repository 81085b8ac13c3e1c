// quantize and dequantize: one door each for every array, on the CPU or a CUDA device.
//
// A door takes its options as one tuple (quantize_call.h) and, last, where its work is done
// (work.h). None there says that nothing was looked at yet: the door then takes the call as it is,
// or gives back None with nothing done, and Python looks at what was given, and refuses it or calls
// again.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "argument_names.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "module.h"
#include "quantize_call.h"
#include "work.h"

namespace blockscale::python {
namespace {

void run(const QuantizeCall& call, const Work& work) {
  with_python_names([&] {
    if (is_rehearsal) {
      (void)cuda::describe_quantize(call.x, call.out.view, call.options, cuda::Chip{});
    } else if (work.is_cuda()) {
      cuda::quantize(call.x, call.out.view, call.options, work.execution());
    } else {
      quantize(call.x, call.out.view, call.options);
    }
  });
}

/// A text; empty for anything else.
std::string_view text_of(nb::handle object) {
  Py_ssize_t size = 0;
  if (!nb::isinstance<nb::str>(object)) return {};
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? std::string_view()
                         : std::string_view(text, static_cast<std::size_t>(size));
}

/// The member of an enum that is given as itself or by name; nothing for anything else.
template <class Enum, class Table>
std::optional<Enum> member_of(const Table& table, nb::handle given) {
  if (Enum member{}; nb::try_cast(given, member, false)) return member;
  const std::string_view name = text_of(given);
  for (const auto& row : table) {
    if (name == row.name) return static_cast<Enum>(&row - std::begin(table));
  }
  return std::nullopt;
}

/// A new result of quantizing x.
nb::object make_out(nb::handle x, Recipe recipe, ScaleLayout layout, nb::handle place) {
  static const nb::object& make =
      *new nb::object(nb::module_::import_("blockscale._tensor").attr("empty_default"));
  // A tuple, not torch's subclass of it.
  const nb::object shape = x.attr("shape");
  return make(nb::steal<nb::tuple>(PySequence_Tuple(shape.ptr())), recipe, layout, place);
}

/// Whether a result of quantizing x is as Python wants it.
bool fits(const QuantizeCall& call, Recipe recipe, const std::optional<ScaleLayout>& layout) {
  const MutableScaledTensorView& out = call.out.view;
  return call.array.ndim() == call.out.values.ndim() && call.x.batch == out.batch &&
         call.x.rows == out.rows && call.x.columns == out.k && out.recipe == recipe &&
         out.layout == layout.value_or(out.layout);
}

/// The result, or None for a call that Python has to look at.
nb::object quantize_as_given(nb::handle x, nb::object out, const QuantizeCallOptions& options) {
  if (!options.are_usual()) return nb::none();
  const std::optional<TakenPlace> place = TakenPlace::of(x);
  int dimensions = 0;
  if (!place || !place->format_of(x, dimensions)) return nb::none();
  const auto recipe = member_of<Recipe>(kRecipes, options.recipe);
  if (dimensions < 2 || dimensions > 3 || !recipe || is_plain(*recipe)) return nb::none();
  const auto layout = member_of<ScaleLayout>(kScaleLayouts, options.layout);
  const bool has_floor = exact_float(options.amax_floor) != 0.0f;
  if ((!layout && !options.layout.is_none()) ||
      (has_floor && recipe_traits(*recipe).family != Family::fp8)) {
    return nb::none();
  }
  if (out.is_none()) {
    out = make_out(x, *recipe, layout.value_or(ScaleLayout::row_major), place->place());
  } else if (!place->has(out)) {
    return nb::none();
  }
  const bool is_done = place->run([&](const Work& work) {
    return taken([&] { return quantize_call(x, place->format(), out, options, work.place()); },
                 [&](const QuantizeCall& call) {
                   if (!fits(call, *recipe, layout)) return false;
                   run(call, work);
                   return true;
                 });
  });
  return is_done ? out : nb::none();
}

/// `x` is a pair (array, Format) where `where` is known.
nb::object quantize_into(nb::handle x, nb::object out, const nb::tuple& options, nb::handle where) {
  const QuantizeCallOptions given(options);
  if (where.is_none()) return quantize_as_given(x, std::move(out), given);
  const Work work(nb::cast<nb::tuple>(where));
  run(quantize_call(x[0], nb::cast<Format>(x[1]), out, given, work.place()), work);
  return out;
}

void quantize_twice_into(nb::handle x, nb::handle out_rows, nb::handle out_columns,
                         const nb::tuple& options, const nb::tuple& where) {
  const Work work(where);
  const QuantizeCall call = quantize_call(x[0], nb::cast<Format>(x[1]), out_rows,
                                          QuantizeCallOptions(options), work.place());
  const ScaledArgument columns =
      scaled_argument("out[1]", out_columns, Access::write, work.place());
  with_python_names([&] {
    if (work.is_cuda()) {
      cuda::quantize_rows_and_columns(call.x, call.out.view, columns.view, call.options,
                                      work.execution());
    } else {
      quantize_rows_and_columns(call.x, call.out.view, columns.view, call.options);
    }
  });
}

void dequantize_into(nb::handle x, nb::handle out, Format dtype, int threads,
                     const nb::tuple& where) {
  const Work work(where);
  const ScaledArgument source = scaled_argument("x", x, Access::read, work.place());
  const Array array = output_array("out", out, work.place());
  const MutableMatrixView matrix = matrix_view("out", array, dtype);
  if (is_rehearsal) return;
  const nb::gil_scoped_release release;
  if (work.is_cuda()) {
    cuda::dequantize(source.view, matrix, work.execution());
  } else {
    dequantize(source.view, matrix, threads);
  }
}

/// What ScaledTensor's constructor calls: throws where its parts do not fit together. `stream` is
/// DLPack's name of a stream for arrays on a CUDA device.
void check_scaled(nb::handle tensor, std::optional<std::int64_t> stream) {
  (void)scaled_argument(nullptr, tensor, Access::read,
                        Place{stream.has_value(), stream.value_or(-1)});
}

/// Scales of `x`, of `Scale`s, into a packed grid of `layout`, of which padding is left alone.
template <class Scale>
void copy_scales(const ScaledTensorView& x, ScaleLayout layout, Scale* out) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const std::int64_t leading = default_leading_stride(layout, grid.rows, grid.columns);
  const std::int64_t stride = default_batch_stride(layout, grid.rows, grid.columns, leading);
  for (std::int64_t b = 0; b < x.batch; ++b) {
    const auto* const from = static_cast<const Scale*>(x.scales) + b * x.scale_batch_stride;
    Scale* const to = out + b * stride;
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        to[scale_offset(layout, i, j, leading)] =
            from[scale_offset(x.layout, i, j, x.scale_leading_stride)];
      }
    }
  }
}

/// `scales` is zeros of the shape that scale_shape gives, one such for each matrix of the batch.
void relayout_into(nb::handle x, ScaleLayout layout, nb::handle scales) {
  const ScaledArgument source = scaled_argument("x", x, Access::read);
  const Array target = output_array("scales", scales);
  const nb::gil_scoped_release release;
  if (target.size() == 0) return;
  if (target.itemsize() == 1) {
    copy_scales(source.view, layout, static_cast<std::uint8_t*>(target.data()));
  } else {
    copy_scales(source.view, layout, static_cast<float*>(target.data()));
  }
}

/// The plan of one problem, in memory that does not exist. `transform` numbers InputTransform.
std::string describe_quantize(std::int64_t rows, std::int64_t k, Format dtype, Recipe recipe,
                              ScaleLayout layout, int transform,
                              const std::optional<std::string>& chip) {
  cuda::QuantizeBenchmarkOptions options;
  options.recipes = {recipe};
  options.dtypes = {dtype};
  options.layouts = {layout};
  options.transforms = {static_cast<InputTransform>(transform)};
  const std::int64_t columns = options.transforms[0] == InputTransform::swiglu ? 2 * k : k;
  // Not from a list of one, which g++ 12.4 takes for an overflow.
  options.input_bytes.assign(1, rows * columns * (format_traits(dtype).bits / 8));
  options.k = k;
  const auto plans = cuda::describe_benchmark(options, described_chip(chip));
  if (plans.empty()) {
    throw Error(ErrorCode::invalid_argument, "layout",
                std::string("is ") + scale_layout_traits(layout).name + ", which is none of " +
                    recipe_traits(recipe).name);
  }
  return plans.front().plan;
}

nb::tuple transform_names() {
  nb::list names;
  for (const char* name : kInputTransformNames) names.append(name);
  return nb::tuple(names);
}

}  // namespace

void bind_quantizers(nb::module_& module) {
  module.def("quantize", &quantize_into, nb::arg("x").none(), nb::arg("out").none(),
             nb::arg("options"), nb::arg("where").none());
  module.def("quantize_rows_and_columns", &quantize_twice_into, nb::arg("x"), nb::arg("out_rows"),
             nb::arg("out_columns"), nb::arg("options"), nb::arg("where"));
  module.def("dequantize", &dequantize_into, nb::arg("x"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("threads"), nb::arg("where"));
  module.def("set_rehearsal", [](bool value) { is_rehearsal = value; }, nb::arg("value"));
  module.attr("input_transforms") = transform_names();
  module.def("check_scaled", &check_scaled, nb::arg("tensor"), nb::arg("stream").none());
  module.def("relayout", &relayout_into, nb::arg("x"), nb::arg("layout"), nb::arg("scales"));
  module.def("cuda_describe_quantize", &describe_quantize, nb::arg("rows"), nb::arg("k"),
             nb::arg("dtype"), nb::arg("recipe"), nb::arg("layout"), nb::arg("transform"),
             nb::arg("chip").none());
}

}  // namespace blockscale::python
