#include "gemm_call.h"

#include <string>

#include "blockscale/error.h"

namespace blockscale::python {
namespace {

const float* factor_in(const Array& array) {
  if (array.size() != 1 || array.itemsize() != sizeof(float)) {
    throw Error(ErrorCode::invalid_argument, "alpha", "must be an array of one f32");
  }
  return static_cast<const float*>(array.data());
}

/// The [N] array of a bias, as [1, N].
MatrixView bias_view(const Array& array, Format dtype, std::int64_t n) {
  const MatrixView row = matrix_view("bias", array.as_row(), dtype);
  if (row.columns != n) {
    throw Error(
        ErrorCode::invalid_argument, "bias",
        "has " + std::to_string(row.columns) + " elements, must have N = " + std::to_string(n));
  }
  return row;
}

/// All but the result.
GemmCall product_call(nb::handle a, nb::handle b, float alpha, nb::handle alpha_factor, float beta,
                      const std::optional<nb::tuple>& c, const std::optional<nb::tuple>& bias,
                      bool batch_invariant, const Place& place) {
  GemmCall call{.a = operand_argument("a", a, place), .b = operand_argument("b", b, place)};
  GemmArguments& arguments = call.arguments;
  arguments.a = call.a.view;
  arguments.b = call.b.view;
  arguments.alpha = alpha;
  arguments.beta = beta;
  arguments.batch_invariant = batch_invariant;
  if (!alpha_factor.is_none()) {
    call.alpha_factor = input_array("alpha", alpha_factor, place);
    arguments.alpha_factor = factor_in(call.alpha_factor);
  }
  if (c) {
    call.c = input_array("c", (*c)[0], place);
    arguments.c = matrix_view("c", call.c, nb::cast<Format>((*c)[1]));
  }
  if (bias) {
    call.bias = input_array("bias", (*bias)[0], place);
    const auto bias_dtype = nb::cast<Format>((*bias)[1]);
    arguments.bias = bias_view(call.bias, bias_dtype, arguments.b.rows).data;
    arguments.bias_dtype = bias_dtype;
  }
  return call;
}

}  // namespace

GemmCall gemm_call(nb::handle a, nb::handle b, nb::handle out, Format dtype, float alpha,
                   nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                   const std::optional<nb::tuple>& bias, bool batch_invariant, const Place& place) {
  GemmCall call = product_call(a, b, alpha, alpha_factor, beta, c, bias, batch_invariant, place);
  call.out = output_array("out", out, place);
  call.arguments.d = matrix_view("out", call.out, dtype);
  return call;
}

GemmCall gemm_quantize_call(nb::handle a, nb::handle b, nb::handle out, MxScaleMode mode,
                            bool given_scales, float amax_floor,
                            const std::optional<nb::tuple>& transform, float alpha,
                            nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                            const std::optional<nb::tuple>& bias, bool batch_invariant,
                            const Place& place) {
  GemmCall call = product_call(a, b, alpha, alpha_factor, beta, c, bias, batch_invariant, place);
  call.quantized = scaled_argument("out", out, Access::write, place);
  call.input = input_argument(transform, place);
  QuantizedResult& quantized = call.arguments.quantized.emplace();
  quantized.out = call.quantized.view;
  quantized.options.mx_scale_mode = mode;
  quantized.options.scale_source = given_scales ? ScaleSource::given : ScaleSource::dynamic;
  quantized.options.fp8_amax_floor = amax_floor;
  quantized.options.input = call.input.input;
  return call;
}

bool is_of_matrices(const GemmCall& call) {
  const auto is_matrix = [](const Operand& operand) {
    return (operand.plain.ndim() != 0 ? operand.plain : operand.scaled.values).ndim() == 2;
  };
  const GemmArguments& x = call.arguments;
  return call.out.ndim() == 2 && is_matrix(call.a) && is_matrix(call.b) && x.d.rows == x.a.rows &&
         x.d.columns == x.b.rows;
}

}  // namespace blockscale::python
