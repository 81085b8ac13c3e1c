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

/// A bias or gate of [N] or [1, N] elements.
MatrixView row_view(const char* argument, const Array& array, Format dtype, std::int64_t n) {
  const MatrixView row = matrix_view(argument, array.ndim() == 1 ? array.as_row() : array, dtype);
  if (array.ndim() > 2 || row.rows != 1 || row.columns != n) {
    throw Error(
        ErrorCode::invalid_argument, argument,
        "has " + std::to_string(array.size()) + " elements, must have N = " + std::to_string(n));
  }
  return row;
}

/// A pair (array, Format) as a view.
MatrixView pair_view(const char* argument, nb::handle pair, const Place& place, Array& array,
                     const auto& view_of) {
  array = input_array(argument, pair[0], place);
  return view_of(array, nb::cast<Format>(pair[1]));
}

/// All but the result.
GemmCall product_call(nb::handle a, nb::handle b, const GemmCallOptions& options,
                      const Place& place) {
  GemmCall call{.a = operand_argument("a", a, place), .b = operand_argument("b", b, place)};
  GemmArguments& to = call.arguments;
  to.a = call.a.view;
  to.b = call.b.view;
  if (const std::optional<float> alpha = exact_float(options.alpha)) {
    to.alpha = *alpha;
  } else {
    call.alpha_factor = input_array("alpha", options.alpha, place);
    to.alpha_factor = factor_in(call.alpha_factor);
  }
  to.beta = nb::cast<float>(options.beta);
  to.batch_invariant = nb::cast<bool>(options.batch_invariant);
  to.fast_accumulation = nb::cast<bool>(options.fast_accumulation);
  call.threads = nb::cast<int>(options.threads);
  if (!options.c.is_none()) {
    to.c = pair_view("c", options.c, place, call.c, [](const Array& array, Format dtype) {
      return matrix_view("c", array, dtype);
    });
  }
  const auto row = [&](const char* argument, const nb::object& pair, Array& array) {
    return pair_view(argument, pair, place, array, [&](const Array& of, Format dtype) {
      return row_view(argument, of, dtype, to.b.rows);
    });
  };
  if (!options.bias.is_none()) {
    const MatrixView bias = row("bias", options.bias, call.bias);
    to.bias = bias.data;
    to.bias_dtype = bias.dtype;
  }
  if (!options.gate.is_none()) {
    const MatrixView gate = row("gate", options.gate, call.gate);
    to.gate = gate.data;
    to.gate_dtype = gate.dtype;
  }
  if (!is_text(options.transform, "identity")) {
    call.input = input_argument(options.transform, place);
  }
  return call;
}

}  // namespace

GemmCallOptions::GemmCallOptions(const nb::tuple& o)
    : alpha(o[0]),
      beta(o[1]),
      c(o[2]),
      bias(o[3]),
      batch_invariant(o[4]),
      transform(o[5]),
      quantization(o[6]),
      threads(o[7]),
      gate(o[8]),
      fast_accumulation(o[9]) {}

bool GemmCallOptions::are_usual() const {
  const std::optional<float> factor = exact_float(beta);
  return factor && (*factor == 0.0f) == c.is_none() && exact_float(alpha) &&
         PyBool_Check(batch_invariant.ptr()) != 0 && PyBool_Check(fast_accumulation.ptr()) != 0 &&
         is_text(transform, "identity") && quantization.is_none() && exact_count(threads);
}

GemmCall gemm_call(nb::handle a, nb::handle b, nb::handle out, Format dtype,
                   const GemmCallOptions& options, const Place& place) {
  GemmCall call = product_call(a, b, options, place);
  call.out = output_array("out", out, place);
  call.arguments.d = matrix_view("out", call.out, dtype);
  call.arguments.transform = call.input.input;
  return call;
}

GemmCall gemm_quantize_call(nb::handle a, nb::handle b, nb::handle out,
                            const GemmCallOptions& options, const Place& place) {
  GemmCall call = product_call(a, b, options, place);
  call.quantized = scaled_argument("out", out, Access::write, place);
  call.arguments.quantized = quantized_result(call.quantized, options.quantization, call.input);
  return call;
}

QuantizedResult quantized_result(const ScaledArgument& out, nb::handle quantization,
                                 const InputArgument& input) {
  QuantizedResult result{.out = out.view};
  const auto how = nb::cast<nb::tuple>(quantization);
  result.options.mx_scale_mode = nb::cast<MxScaleMode>(how[0]);
  if (!how[1].is_none()) result.options.scale_source = ScaleSource::given;
  result.options.fp8_amax_floor = nb::cast<float>(how[2]);
  result.options.input = input.input;
  return result;
}

bool is_of_matrices(const GemmCall& call) {
  const GemmArguments& x = call.arguments;
  const bool with_c = x.beta == 0.0f || call.c.ndim() == 2;
  return call.out.ndim() == 2 && call.a.ndim() == 2 && call.b.ndim() == 2 && with_c &&
         x.d.rows == x.a.rows && x.d.columns == x.b.rows;
}

}  // namespace blockscale::python
