// The arguments of gemm as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <optional>

#include "arrays.h"
#include "blockscale/gemm.h"
#include "quantize_call.h"

namespace blockscale::python {

/// Everything that `gemm` takes, with the arrays that keep its memory alive.
struct GemmCall {
  Operand a, b;
  Array out = {};
  Array alpha_factor = {}, c = {}, bias = {};  // of nothing where there is none
  ScaledArgument quantized = {};               // of gemm_quantize, as is what lies below
  InputArgument input = {};
  GemmArguments arguments = {};
};

/// alpha_factor is an array of one f32 or None; c and bias are pairs (array, Format) or None.
GemmCall gemm_call(nb::handle a, nb::handle b, nb::handle out, Format dtype, float alpha,
                   nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                   const std::optional<nb::tuple>& bias, bool batch_invariant,
                   const Place& place = {});

/// The same for a result that is quantized into `out`, a ScaledTensor. The options are those of
/// quantize_call.
GemmCall gemm_quantize_call(nb::handle a, nb::handle b, nb::handle out, MxScaleMode mode,
                            bool given_scales, float amax_floor,
                            const std::optional<nb::tuple>& transform, float alpha,
                            nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                            const std::optional<nb::tuple>& bias, bool batch_invariant,
                            const Place& place = {});

/// Whether a, b and the plain result are matrices, and the result M x N.
bool is_of_matrices(const GemmCall& call);

}  // namespace blockscale::python
