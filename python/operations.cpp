// quantize, dequantize and gemm on arrays in CPU memory.
#include <nanobind/stl/optional.h>

#include "blockscale/gemm.h"
#include "module.h"

namespace blockscale::python {
namespace {

void quantize_into(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode, bool given_scales,
                   float amax_floor, int threads) {
  const InputArray array = input_array("x", x);
  const MatrixView matrix = matrix_view("x", array, dtype);
  const ScaledArgument target = scaled_argument("out", out, Access::write);
  const QuantizeOptions options{mode, given_scales ? ScaleSource::given : ScaleSource::dynamic,
                                amax_floor, threads};
  const nb::gil_scoped_release release;
  quantize(matrix, target.view, options);
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

}  // namespace

void bind_operations(nb::module_& module) {
  module.def("quantize", &quantize_into, nb::arg("x"), nb::arg("dtype"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"), nb::arg("threads"));
  module.def("check_scaled", &check_scaled, nb::arg("tensor"));
  module.def("dequantize", &dequantize_into, nb::arg("x"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("threads"));
  module.def("gemm", &gemm_into, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("alpha"), nb::arg("beta"), nb::arg("c").none(), nb::arg("bias").none(),
             nb::arg("threads"));
  module.def("gemm_supports", &gemm_supports, nb::arg("a"), nb::arg("b"));
}

}  // namespace blockscale::python
