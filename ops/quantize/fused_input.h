// What a quantizer fuses with its input (QuantizeInput), as kernels and the CPU's code take it.
#pragma once

#include <cstdint>

#include "blockscale/quantize.h"
#include "core/input_transform.h"

namespace blockscale::quantize_detail {

/// A QuantizeInput that has been validated. Fields of another transform stay as they are here.
struct FusedInput {
  InputTransform transform = InputTransform::identity;
  GateOrder gate_order = GateOrder::gate_first;  // swiglu
  std::int64_t gate_group = 0;                   // swiglu: a number of columns, K for two halves
  bool is_clamped = false;                       // swiglu: not the usual one, but by `swiglu`
  SwigluNumbers swiglu = {};                     // swiglu, if it is clamped
  MatrixView scale = {}, shift = {};             // modulate
  MatrixView weight = {};                        // rms_norm
  float epsilon = 1e-6f;                         // rms_norm
};

/// The field of Swiglu in which numbers differ from the usual ones; null if none does.
const char* unusual_field(const SwigluNumbers& numbers);

/// The transform of an input, whose form is valid.
InputTransform transform_of(const QuantizeInput& input);

/// The input of a transform, with those of the operands that it has: for what goes through all
/// transforms, as tests and benchmarks do.
QuantizeInput input_of(InputTransform transform, const MatrixView& scale = {},
                       const MatrixView& shift = {}, const MatrixView& weight = {});

}  // namespace blockscale::quantize_detail
