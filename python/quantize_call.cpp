#include "quantize_call.h"

#include <string>

#include "blockscale/error.h"

namespace blockscale::python {
namespace {

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

/// A scale choice as itself or, if it is the usual one, by name.
ScaleChoice choice_of(nb::handle choice) {
  return is_text(choice, "amax") ? ScaleChoice::amax : nb::cast<ScaleChoice>(choice);
}

Swiglu swiglu_argument(const nb::tuple& t) {
  Swiglu swiglu{static_cast<GateOrder>(nb::cast<int>(t[1])), nb::cast<std::int64_t>(t[2])};
  if (t[7].is_none()) return swiglu;
  const auto numbers = nb::cast<nb::tuple>(t[7]);
  swiglu.limit = nb::cast<float>(numbers[0]);
  swiglu.alpha = nb::cast<float>(numbers[1]);
  swiglu.up_shift = nb::cast<float>(numbers[2]);
  return swiglu;
}

}  // namespace

InputArgument input_argument(nb::handle transform, const Place& place) {
  InputArgument result;
  if (transform.is_none()) return result;
  const auto t = nb::cast<nb::tuple>(transform);
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
    case InputTransform::silu: result.input = Silu{}; break;
    case InputTransform::swiglu: result.input = swiglu_argument(t); break;
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

QuantizeCallOptions::QuantizeCallOptions(const nb::tuple& o)
    : recipe(o[0]),
      layout(o[1]),
      sense(o[2]),
      scale_mode(o[3]),
      given_scales(o[4]),
      amax_floor(o[5]),
      transform(o[6]),
      scale_choice(o[7]),
      channel_weights(o[8]),
      channel_means(o[9]),
      threads(o[10]) {}

bool QuantizeCallOptions::are_usual() const {
  return sense.is_none() && scale_mode.is_none() && given_scales.is_none() &&
         channel_weights.is_none() && channel_means.is_none() && is_text(transform, "identity") &&
         is_text(scale_choice, "amax") && exact_float(amax_floor) && exact_count(threads);
}

std::optional<float> exact_float(nb::handle object) {
  if (!PyFloat_CheckExact(object.ptr())) return std::nullopt;
  return static_cast<float>(PyFloat_AsDouble(object.ptr()));
}

std::optional<std::int64_t> exact_count(nb::handle object, std::int64_t limit) {
  if (!PyLong_CheckExact(object.ptr())) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0 || value < 0 || value >= limit) return std::nullopt;
  return value;
}

bool is_text(nb::handle object, const char* text) {
  return PyUnicode_Check(object.ptr()) != 0 &&
         PyUnicode_CompareWithASCIIString(object.ptr(), text) == 0;
}

QuantizeCall quantize_call(nb::handle x, Format dtype, nb::handle out,
                           const QuantizeCallOptions& options, const Place& place) {
  QuantizeCall call;
  call.array = input_array("x", x, place);
  call.x = matrix_view("x", call.array, dtype);
  call.out = scaled_argument("out", out, Access::write, place);
  QuantizeOptions& to = call.options;
  if (!options.scale_mode.is_none()) to.mx_scale_mode = nb::cast<MxScaleMode>(options.scale_mode);
  if (!options.given_scales.is_none()) to.scale_source = ScaleSource::given;
  to.fp8_amax_floor = nb::cast<float>(options.amax_floor);
  if (!is_text(options.transform, "identity")) {
    call.input = input_argument(options.transform, place);
    to.input = call.input.input;
  }
  to.scale_choice = choice_of(options.scale_choice);
  const std::int64_t k = call.out.view.k;
  to.channel_weights =
      numbers_of_columns("channel_weights", options.channel_weights, k, call.channel_weights);
  to.channel_means =
      numbers_of_columns("channel_means", options.channel_means, k, call.channel_means);
  to.threads = nb::cast<int>(options.threads);
  return call;
}

}  // namespace blockscale::python
