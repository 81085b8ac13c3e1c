// quantize, dequantize and gemm on arrays in CPU memory.
#include <nanobind/stl/optional.h>

#include "argument_names.h"
#include "gemm_call.h"
#include "module.h"
#include "quantize_call.h"

namespace blockscale::python {
namespace {

void quantize_into(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode, bool given_scales,
                   float amax_floor, const std::optional<nb::tuple>& transform, int threads) {
  QuantizeCall call = quantize_call(x, dtype, out, mode, given_scales, amax_floor, transform);
  call.options.threads = threads;
  with_python_names([&] { quantize(call.x, call.out.view, call.options); });
}

/// f32 numbers, one for each of `k` columns; null for None.
const float* numbers_of_columns(const char* argument, nb::handle value, std::int64_t k,
                                Array& array) {
  if (value.is_none()) return nullptr;
  array = input_array(argument, value);
  if (array.ndim() != 1 || array.shape(0) != k || (k > 1 && array.stride(0) != 1)) {
    throw Error(ErrorCode::invalid_argument, argument,
                "must be contiguous, one for each of " + std::to_string(k) + " columns");
  }
  return static_cast<const float*>(array.data());
}

/// quantize with searched scales; `weights` and `means` are None or f32 of one dimension.
void quantize_searched_into(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                            bool given_scales, const std::optional<nb::tuple>& transform,
                            ScaleChoice choice, nb::handle weights, nb::handle means, int threads) {
  QuantizeCall call = quantize_call(x, dtype, out, mode, given_scales, 0.0f, transform);
  call.options.threads = threads;
  call.options.scale_choice = choice;
  Array weight_array, mean_array;
  const std::int64_t k = call.out.view.k;
  call.options.channel_weights = numbers_of_columns("channel_weights", weights, k, weight_array);
  call.options.channel_means = numbers_of_columns("channel_means", means, k, mean_array);
  with_python_names([&] { quantize(call.x, call.out.view, call.options); });
}

void quantize_twice_into(nb::handle x, Format dtype, nb::handle out_rows, nb::handle out_columns,
                         float amax_floor, const std::optional<nb::tuple>& transform, int threads) {
  QuantizeCall call =
      quantize_call(x, dtype, out_rows, MxScaleMode::ceil, false, amax_floor, transform);
  call.options.threads = threads;
  const ScaledArgument columns = scaled_argument("out[1]", out_columns, Access::write);
  with_python_names(
      [&] { quantize_rows_and_columns(call.x, call.out.view, columns.view, call.options); });
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

void dequantize_into(nb::handle x, nb::handle out, Format dtype, int threads) {
  const ScaledArgument source = scaled_argument("x", x, Access::read);
  const Array array = output_array("out", out);
  const MutableMatrixView matrix = matrix_view("out", array, dtype);
  const nb::gil_scoped_release release;
  dequantize(source.view, matrix, threads);
}

void gemm_into(nb::handle a, nb::handle b, nb::handle out, Format dtype, float alpha,
               nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
               const std::optional<nb::tuple>& bias, bool batch_invariant, int threads) {
  const GemmCall call =
      gemm_call(a, b, out, dtype, alpha, alpha_factor, beta, c, bias, batch_invariant);
  with_python_names([&] { gemm(call.arguments, GemmOptions{threads}); });
}

/// An operand as gemm_call takes it: a plain array of numpy's, or a ScaledTensor of such arrays.
/// Null for all else.
nb::object numpy_operand(nb::handle x) {
  if (const std::optional<Format> format = numpy_format(x)) return nb::make_tuple(x, *format);
  static const nb::object& name = *new nb::object(interned("_place"));
  const nb::object place = nb::getattr(x, name, nb::none());
  const bool is_numpy = PyUnicode_Check(place.ptr()) != 0 &&
                        PyUnicode_CompareWithASCIIString(place.ptr(), "numpy") == 0;
  return is_numpy ? nb::borrow(x) : nb::object();
}

/// `gemm` of matrices of numpy's without Python, where nothing but alpha, bias and batch_invariant
/// is given. False, and nothing done, for what it cannot take as it is.
bool gemm_numpy(nb::handle a, nb::handle b, nb::handle out, nb::handle alpha, nb::handle bias,
                bool batch_invariant, int threads) {
  const std::optional<Format> format = numpy_format(out);
  if (!format || !PyFloat_CheckExact(alpha.ptr())) return false;
  const nb::object left = numpy_operand(a), right = numpy_operand(b);
  if (!left.is_valid() || !right.is_valid()) return false;
  std::optional<nb::tuple> bias_pair;
  if (!bias.is_none()) {
    const std::optional<Format> bias_format = numpy_format(bias);
    if (!bias_format || nb::cast<int>(bias.attr("ndim")) != 1) return false;
    bias_pair = nb::make_tuple(bias, *bias_format);
  }
  const auto factor = static_cast<float>(PyFloat_AsDouble(alpha.ptr()));
  const GemmCall call = gemm_call(left, right, out, *format, factor, nb::none(), 0.0f, std::nullopt,
                                  bias_pair, batch_invariant);
  if (!is_of_matrices(call)) return false;
  with_python_names([&] { gemm(call.arguments, GemmOptions{threads}); });
  return true;
}

void gemm_quantize_into(nb::handle a, nb::handle b, nb::handle out, MxScaleMode mode,
                        bool given_scales, float amax_floor,
                        const std::optional<nb::tuple>& transform, float alpha,
                        nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                        const std::optional<nb::tuple>& bias, bool batch_invariant, int threads) {
  const GemmCall call = gemm_quantize_call(a, b, out, mode, given_scales, amax_floor, transform,
                                           alpha, alpha_factor, beta, c, bias, batch_invariant);
  with_python_names([&] { gemm(call.arguments, GemmOptions{threads}); });
}

nb::tuple transform_names() {
  nb::list names;
  for (const char* name : kInputTransformNames) names.append(name);
  return nb::tuple(names);
}

}  // namespace

void bind_operations(nb::module_& module) {
  module.def("quantize", &quantize_into, nb::arg("x"), nb::arg("dtype"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("threads"));
  module.def("quantize_searched", &quantize_searched_into, nb::arg("x"), nb::arg("dtype"),
             nb::arg("out"), nb::arg("mode"), nb::arg("given_scales"), nb::arg("transform").none(),
             nb::arg("choice"), nb::arg("weights").none(), nb::arg("means").none(),
             nb::arg("threads"));
  module.def("quantize_rows_and_columns", &quantize_twice_into, nb::arg("x"), nb::arg("dtype"),
             nb::arg("out_rows"), nb::arg("out_columns"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("threads"));
  module.attr("input_transforms") = transform_names();
  module.def("check_scaled", &check_scaled, nb::arg("tensor"), nb::arg("stream").none());
  module.def("relayout", &relayout_into, nb::arg("x"), nb::arg("layout"), nb::arg("scales"));
  module.def("dequantize", &dequantize_into, nb::arg("x"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("threads"));
  module.def("gemm", &gemm_into, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("alpha"), nb::arg("alpha_factor").none(), nb::arg("beta"), nb::arg("c").none(),
             nb::arg("bias").none(), nb::arg("batch_invariant"), nb::arg("threads"));
  module.def("gemm_numpy", &gemm_numpy, nb::arg("a"), nb::arg("b"), nb::arg("out"),
             nb::arg("alpha").none(), nb::arg("bias").none(), nb::arg("batch_invariant"),
             nb::arg("threads"));
  module.def("gemm_quantize", &gemm_quantize_into, nb::arg("a"), nb::arg("b"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("alpha"), nb::arg("alpha_factor").none(),
             nb::arg("beta"), nb::arg("c").none(), nb::arg("bias").none(),
             nb::arg("batch_invariant"), nb::arg("threads"));
  module.def("gemm_supports", &gemm_supports, nb::arg("a"), nb::arg("b"));
}

}  // namespace blockscale::python
