// The arguments of grouped products as Python passes them, on the CPU or a CUDA device.
#pragma once

#include "arrays.h"
#include "blockscale/grouped_gemm.h"
#include "gemm_call.h"
#include "quantize_call.h"

namespace blockscale::python {

/// Options of products of groups of rows, as Python made them of what the caller gave: a tuple in
/// the order of these members. Arrays hold what Python says of their type, or are None.
struct GroupedCallOptions {
  explicit GroupedCallOptions(const nb::tuple& options);

  nb::object alpha;         // a float, or an array [groups] of f32
  nb::object lengths;       // int32
  nb::object bias;          // a pair (array, Format)
  nb::object index;         // int32
  nb::object destinations;  // int32
  nb::object weights;       // f32
  nb::object add;           // a bool
  nb::object transform;     // as `lower` gives it
  nb::object quantization;  // as of GemmCallOptions
  nb::object expected_rows;
  nb::object batch_invariant;
  nb::object threads;
};

/// Everything that `grouped_gemm` takes, with the arrays that keep its memory alive.
struct GroupedCall {
  Operand a, b;
  Array out = {};
  Array offsets = {}, lengths = {}, alpha_factors = {},
        bias = {};  // of nothing where there is none
  Array index = {}, destinations = {}, weights = {};
  ScaledArgument quantized = {};
  InputArgument input = {};
  GroupedGemmArguments arguments = {};
  int threads = 0;
};

/// Operands are ScaledTensors or pairs (array, Format), `out` such a pair, or a ScaledTensor that
/// the result is quantized into; `offsets` are None where groups are masked.
GroupedCall grouped_call(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                         const GroupedCallOptions& options, const Place& place);

/// The same of `k_grouped_gemm`.
struct KGroupedCall {
  Operand a, b;
  Array out = {}, offsets = {};
  KGroupedGemmArguments arguments = {};
  int threads = 0;
};

/// `options`: (alpha, whether to add, threads).
KGroupedCall k_grouped_call(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                            const nb::tuple& options, const Place& place);

}  // namespace blockscale::python
