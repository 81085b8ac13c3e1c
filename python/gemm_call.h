// The arguments of gemm as Python passes them, on the CPU or a CUDA device.
#pragma once

#include <optional>

#include "arrays.h"
#include "blockscale/gemm.h"
#include "quantize_call.h"

namespace blockscale::python {

/// Options of `gemm` and `gemm_quantize`, each as the caller gave it or as Python made it of that:
/// a tuple in the order of these members.
struct GemmCallOptions {
  explicit GemmCallOptions(const nb::tuple& options);

  nb::object alpha;  // a float, or an array of one f32 where the data is
  nb::object beta;
  nb::object c, bias;  // pairs (array, Format), or None
  nb::object batch_invariant;
  nb::object transform;     // a name, or as `lower` gives it
  nb::object quantization;  // of a quantized result: (scale mode, True or None, floor); or None
  nb::object threads;
  nb::object gate;  // as c and bias are
  nb::object fast_accumulation;

  /// Whether nothing is asked but alpha, a bias and the like, so that Python need not look.
  bool are_usual() const;
};

/// Everything that `gemm` takes, with the arrays that keep its memory alive.
struct GemmCall {
  Operand a, b;
  Array out = {};
  Array alpha_factor = {}, c = {}, bias = {}, gate = {};  // of nothing where there is none
  ScaledArgument quantized = {};
  InputArgument input = {};
  GemmArguments arguments = {};
  int threads = 0;
};

/// Operands are ScaledTensors or pairs (array, Format); `options` are as Python made them.
GemmCall gemm_call(nb::handle a, nb::handle b, nb::handle out, Format dtype,
                   const GemmCallOptions& options, const Place& place);
/// The same for a result that is quantized into `out`, a ScaledTensor.
GemmCall gemm_quantize_call(nb::handle a, nb::handle b, nb::handle out,
                            const GemmCallOptions& options, const Place& place);

/// What a product is asked to quantize into `out`, a ScaledTensor, behind `input`; `quantization`
/// is that of GemmCallOptions.
QuantizedResult quantized_result(const ScaledArgument& out, nb::handle quantization,
                                 const InputArgument& input);

/// Whether a, b, c and the plain result are matrices, and the result M x N.
bool is_of_matrices(const GemmCall& call);

}  // namespace blockscale::python
