#include "quantize_call.h"

namespace blockscale::python {

std::string python_name(const std::string& argument) {
  constexpr std::string_view kFused = "options.input.", kGate = "gate_";
  if (argument == "options.fp8_amax_floor") return "amax_floor";
  if (!argument.starts_with(kFused)) return argument;
  std::string_view field = std::string_view(argument).substr(kFused.size());
  if (field.starts_with(kGate)) field.remove_prefix(kGate.size());
  return "transform." + std::string(field);
}

InputArgument input_argument(const std::optional<nb::tuple>& transform, const Place& place) {
  InputArgument result;
  if (!transform) return result;
  const nb::tuple& t = *transform;
  QuantizeInput& input = result.input;
  input.transform = static_cast<InputTransform>(nb::cast<int>(t[0]));
  input.gate_order = static_cast<GateOrder>(nb::cast<int>(t[1]));
  input.gate_group = nb::cast<std::int64_t>(t[2]);
  const auto operand = [&](const char* argument, nb::handle pair, InputArray& array) {
    if (pair.is_none()) return MatrixView{};
    const auto parts = nb::cast<nb::tuple>(pair);
    array = input_array(argument, parts[0], place);
    return matrix_view(argument, array, nb::cast<Format>(parts[1]));
  };
  input.scale = operand("transform.scale", t[3], result.scale);
  input.shift = operand("transform.shift", t[4], result.shift);
  input.weight = operand("transform.weight", t[5], result.weight);
  input.epsilon = nb::cast<float>(t[6]);
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
