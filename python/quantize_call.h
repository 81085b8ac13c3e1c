// The arguments of quantize as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <cstdint>
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
/// operands are pairs (array, Format) or None; None is the identity.
InputArgument input_argument(nb::handle transform, const Place& place);

/// Options of `quantize`, each as the caller gave it or as Python made it of that: a tuple in the
/// order of these members.
struct QuantizeCallOptions {
  explicit QuantizeCallOptions(const nb::tuple& options);

  nb::object recipe, layout, sense;  // of a result that is not there yet
  nb::object scale_mode;             // None: ceil
  nb::object given_scales;           // None; True: `out` holds them
  nb::object amax_floor;
  nb::object transform;  // a name, or as `lower` gives it
  nb::object scale_choice;
  nb::object channel_weights, channel_means;
  nb::object threads;

  /// Whether nothing is asked but a recipe, a layout and a floor, so that Python need not look.
  bool are_usual() const;
};

/// An option that has a default in a place where it usually is: a number, and nothing for others. A
/// count is from 0 on, less than `limit`.
std::optional<float> exact_float(nb::handle object);
std::optional<std::int64_t> exact_count(nb::handle object,
                                        std::int64_t limit = std::int64_t{1} << 31);
/// Whether it is this text.
bool is_text(nb::handle object, const char* text);

/// Everything that `quantize` takes, with the arrays that keep its memory alive.
struct QuantizeCall {
  Array array;
  MatrixView x;
  ScaledArgument out;
  InputArgument input;
  Array channel_weights, channel_means;
  QuantizeOptions options;
};
/// `options` as Python made them.
QuantizeCall quantize_call(nb::handle x, Format dtype, nb::handle out,
                           const QuantizeCallOptions& options, const Place& place);

}  // namespace blockscale::python
