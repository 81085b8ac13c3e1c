// quantize, dequantize and gemm on arrays in CPU memory.
#include <nanobind/stl/optional.h>

#include <string>
#include <string_view>

#include "blockscale/gemm.h"
#include "blockscale/quantize.h"
#include "module.h"

namespace blockscale::python {
namespace {

/// A transform and the arrays that its operands point into.
struct InputArgument {
  QuantizeInput input;
  InputArray scale, shift, weight;
};

/// What `lower` of _transform.py gives: (kind, order, group, scale, shift, weight, epsilon), where
/// operands are pairs (array, Format) or None; None is the identity.
InputArgument input_argument(const std::optional<nb::tuple>& transform) {
  InputArgument result;
  if (!transform) return result;
  const nb::tuple& t = *transform;
  QuantizeInput& input = result.input;
  input.transform = static_cast<InputTransform>(nb::cast<int>(t[0]));
  input.gate_order = static_cast<GateOrder>(nb::cast<int>(t[1]));
  input.gate_group = nb::cast<std::int64_t>(t[2]);
  const auto operand = [](const char* argument, nb::handle pair, InputArray& array) {
    if (pair.is_none()) return MatrixView{};
    const auto parts = nb::cast<nb::tuple>(pair);
    array = input_array(argument, parts[0]);
    return matrix_view(argument, array, nb::cast<Format>(parts[1]));
  };
  input.scale = operand("transform.scale", t[3], result.scale);
  input.shift = operand("transform.shift", t[4], result.shift);
  input.weight = operand("transform.weight", t[5], result.weight);
  input.epsilon = nb::cast<float>(t[6]);
  return result;
}

/// Calls `call`, without the GIL; errors name a transform's fields as Python does.
template <class Call>
void with_python_names(const Call& call) {
  constexpr std::string_view kPrefix = "options.input.";
  try {
    const nb::gil_scoped_release release;
    call();
  } catch (const Error& error) {
    if (!error.argument().starts_with(kPrefix)) throw;
    std::string field = error.argument().substr(kPrefix.size());
    if (field.starts_with("gate_")) field.erase(0, 5);
    const std::string_view text = error.what();
    throw Error(error.code(), "transform." + field, text.substr(error.argument().size() + 2));
  }
}

void quantize_into(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode, bool given_scales,
                   float amax_floor, int threads, const std::optional<nb::tuple>& transform) {
  const InputArray array = input_array("x", x);
  const MatrixView matrix = matrix_view("x", array, dtype);
  const ScaledArgument target = scaled_argument("out", out, Access::write);
  const InputArgument input = input_argument(transform);
  const QuantizeOptions options{mode, given_scales ? ScaleSource::given : ScaleSource::dynamic,
                                amax_floor, threads, input.input};
  with_python_names([&] { quantize(matrix, target.view, options); });
}

void quantize_twice_into(nb::handle x, Format dtype, nb::handle out_rows, nb::handle out_columns,
                         float amax_floor, int threads, const std::optional<nb::tuple>& transform) {
  const InputArray array = input_array("x", x);
  const MatrixView matrix = matrix_view("x", array, dtype);
  const ScaledArgument rows = scaled_argument("out[0]", out_rows, Access::write);
  const ScaledArgument columns = scaled_argument("out[1]", out_columns, Access::write);
  const InputArgument input = input_argument(transform);
  QuantizeOptions options;
  options.fp8_amax_floor = amax_floor;
  options.threads = threads;
  options.input = input.input;
  with_python_names([&] { quantize_rows_and_columns(matrix, rows.view, columns.view, options); });
}

/// What ScaledTensor's constructor calls: throws where its parts do not fit together.
void check_scaled(nb::handle tensor) {
  (void)scaled_argument(nullptr, tensor, Access::read);
}

void dequantize_into(nb::handle x, nb::handle out, Format dtype, int threads) {
  const ScaledArgument source = scaled_argument("x", x, Access::read);
  const OutputArray array = output_array("out", out);
  const MutableMatrixView matrix = matrix_view("out", array, dtype);
  const nb::gil_scoped_release release;
  dequantize(source.view, matrix, threads);
}

/// c and bias are pairs (array, Format) or None.
void gemm_into(nb::handle a, nb::handle b, nb::handle out, Format dtype, float alpha, float beta,
               std::optional<nb::tuple> c, std::optional<nb::tuple> bias, int threads) {
  const Operand left = operand_argument("a", a);
  const Operand right = operand_argument("b", b);
  GemmArguments arguments;
  arguments.a = left.view;
  arguments.b = right.view;
  const OutputArray array = output_array("out", out);
  arguments.d = matrix_view("out", array, dtype);
  arguments.alpha = alpha;
  arguments.beta = beta;
  InputArray c_array;
  InputArray bias_array;
  if (c) {
    c_array = input_array("c", (*c)[0]);
    arguments.c = matrix_view("c", c_array, nb::cast<Format>((*c)[1]));
  }
  if (bias) {
    bias_array = input_array("bias", (*bias)[0]);
    const MatrixView row = matrix_view("bias", bias_array, nb::cast<Format>((*bias)[1]));
    if (row.rows != 1 || row.batch != 1 || row.columns != right.view.rows) {
      throw Error(ErrorCode::invalid_argument, "bias",
                  "has " + std::to_string(row.columns) +
                      " elements, must have N = " + std::to_string(right.view.rows));
    }
    arguments.bias = row.data;
    arguments.bias_dtype = row.dtype;
  }
  const nb::gil_scoped_release release;
  gemm(arguments, GemmOptions{threads});
}

nb::tuple transform_names() {
  nb::list names;
  for (const char* name : kInputTransformNames) names.append(name);
  return nb::tuple(names);
}

}  // namespace

void bind_operations(nb::module_& module) {
  module.def("quantize", &quantize_into, nb::arg("x"), nb::arg("dtype"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"), nb::arg("threads"),
             nb::arg("transform").none());
  module.def("quantize_rows_and_columns", &quantize_twice_into, nb::arg("x"), nb::arg("dtype"),
             nb::arg("out_rows"), nb::arg("out_columns"), nb::arg("amax_floor"), nb::arg("threads"),
             nb::arg("transform").none());
  module.attr("input_transforms") = transform_names();
  module.def("check_scaled", &check_scaled, nb::arg("tensor"));
  module.def("dequantize", &dequantize_into, nb::arg("x"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("threads"));
  module.def("gemm", &gemm_into, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("alpha"), nb::arg("beta"), nb::arg("c").none(), nb::arg("bias").none(),
             nb::arg("threads"));
  module.def("gemm_supports", &gemm_supports, nb::arg("a"), nb::arg("b"));
}

}  // namespace blockscale::python
