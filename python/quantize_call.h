// The arguments of quantize as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "arrays.h"
#include "blockscale/error.h"
#include "blockscale/quantize.h"

namespace blockscale::python {

/// A transform and the arrays that its operands point into.
struct InputArgument {
  QuantizeInput input;
  InputArray scale, shift, weight;
};

/// What `lower` of _transform.py gives: (kind, order, group, scale, shift, weight, epsilon), where
/// operands are pairs (array, Format) or None; nothing is the identity.
InputArgument input_argument(const std::optional<nb::tuple>& transform, const Place& place);

/// Everything that `quantize` takes, with the arrays that keep its memory alive.
struct QuantizeCall {
  InputArray array;
  MatrixView x;
  ScaledArgument out;
  InputArgument input;
  QuantizeOptions options;
};
QuantizeCall quantize_call(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                           bool given_scales, float amax_floor,
                           const std::optional<nb::tuple>& transform, const Place& place = {});

/// What Python calls an argument of the library: options are arguments of their own, and what is
/// fused is "transform".
std::string python_name(const std::string& argument);

/// Calls `call`, without the GIL; errors name arguments as Python does.
template <class Call>
auto with_python_names(const Call& call) {
  try {
    const nb::gil_scoped_release release;
    return call();
  } catch (const Error& error) {
    const std::string name = python_name(error.argument());
    if (name == error.argument()) throw;
    const std::string_view text = error.what();
    throw Error(error.code(), name, text.substr(error.argument().size() + 2));
  }
}

}  // namespace blockscale::python
