#include "quantize_call.h"

namespace blockscale::python {

InputArgument input_argument(const std::optional<nb::tuple>& transform, const Place& place) {
  InputArgument result;
  if (!transform) return result;
  const nb::tuple& t = *transform;
  const auto operand = [&](const char* argument, nb::handle pair, Array& array) -> MatrixView {
    if (pair.is_none()) return MatrixView{};
    const auto parts = nb::cast<nb::tuple>(pair);
    array = input_array(argument, parts[0], place);
    return matrix_view(argument, array, nb::cast<Format>(parts[1]));
  };
  switch (static_cast<InputTransform>(nb::cast<int>(t[0]))) {
    case InputTransform::identity: break;
    case InputTransform::gelu_tanh: result.input = Gelu{GeluForm::tanh}; break;
    case InputTransform::gelu_erf: result.input = Gelu{GeluForm::erf}; break;
    case InputTransform::swiglu:
      result.input =
          Swiglu{static_cast<GateOrder>(nb::cast<int>(t[1])), nb::cast<std::int64_t>(t[2])};
      break;
    case InputTransform::modulate:
      result.input = Modulate{operand("transform.scale", t[3], result.scale),
                              operand("transform.shift", t[4], result.shift)};
      break;
    case InputTransform::rms_norm:
      result.input =
          RmsNorm{operand("transform.weight", t[5], result.weight), nb::cast<float>(t[6])};
      break;
  }
  return result;
}

QuantizeCall quantize_call(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                           bool given_scales, float amax_floor,
                           const std::optional<nb::tuple>& transform, const Place& place) {
  QuantizeCall call;
  call.array = input_array("x", x, place);
  call.x = matrix_view("x", call.array, dtype);
  call.out = scaled_argument("out", out, Access::write, place);
  call.input = input_argument(transform, place);
  call.options.mx_scale_mode = mode;
  call.options.scale_source = given_scales ? ScaleSource::given : ScaleSource::dynamic;
  call.options.fp8_amax_floor = amax_floor;
  call.options.input = call.input.input;
  return call;
}

}  // namespace blockscale::python
