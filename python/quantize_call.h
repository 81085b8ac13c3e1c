// The arguments of quantize as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <optional>

#include "arrays.h"
#include "blockscale/quantize.h"

namespace blockscale::python {

/// A transform and the arrays that its operands point into.
struct InputArgument {
  QuantizeInput input;
  Array scale, shift, weight;
};

/// What `lower` of _transform.py gives: (kind, order, group, scale, shift, weight, epsilon), where
/// operands are pairs (array, Format) or None; nothing is the identity.
InputArgument input_argument(const std::optional<nb::tuple>& transform, const Place& place);

/// Everything that `quantize` takes, with the arrays that keep its memory alive.
struct QuantizeCall {
  Array array;
  MatrixView x;
  ScaledArgument out;
  InputArgument input;
  QuantizeOptions options;
};
QuantizeCall quantize_call(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                           bool given_scales, float amax_floor,
                           const std::optional<nb::tuple>& transform, const Place& place = {});

}  // namespace blockscale::python
