// What a quantizer does to its input before it takes scales and codes: names, and where operands
// lie. The arithmetic is in core/math.h, its order in docs/numerics.md ("Fused inputs").
#pragma once

#include "core/config.h"

namespace blockscale {

/// QuantizeInput's alternatives and their forms, as kernels know them: y, which is quantized, as a
/// function of the input x. GELU and silu are within 2^-12 of themselves (docs/numerics.md).
enum class InputTransform : uint8_t {
  identity,   // y = x
  gelu_tanh,  // y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  gelu_erf,   // y = x (1 + erf(x / sqrt 2)) / 2
  silu,       // y = x sigmoid(x)
  swiglu,     // y = gate sigmoid(gate) up; x holds gate and up, twice the columns of y
  modulate,   // y = x (1 + scale) + shift, where groups of rows have a scale and a shift each
  rms_norm,   // y = x / sqrt(mean of x^2 along the row + epsilon) weight
};
inline constexpr int kInputTransformCount = 7;

BLOCKSCALE_HD constexpr bool is_gelu(InputTransform transform) {
  return transform == InputTransform::gelu_tanh || transform == InputTransform::gelu_erf;
}

/// Names, in the order of InputTransform.
BLOCKSCALE_TABLE const char* kInputTransformNames[kInputTransformCount] = {
    "identity", "gelu_tanh", "gelu_erf", "silu", "swiglu", "modulate", "rms_norm"};

/// Which of swiglu's operands comes first.
enum class GateOrder : uint8_t { gate_first, up_first };

/// What a swiglu that is not the usual one takes beside its operands (math::clamped_swiglu).
struct SwigluNumbers {
  float limit = 0;  // above 0, maybe infinite: gates are at most it, ups within it
  float alpha = 1;
  float reciprocal_alpha = 1;  // rounded
  float up_shift = 0;          // -0 for none: it keeps an up of -0
};

/// Columns of x that swiglu reads for one column of y.
struct GatedColumns {
  int64_t gate;
  int64_t up;
};

/// Runs of `group` columns of gate and of up alternate in x, and `order` says which is first. With
/// `group` as the columns of y, x is two halves.
BLOCKSCALE_HD constexpr GatedColumns gated_columns(GateOrder order, int64_t group, int64_t column) {
  const int64_t first = column / group * 2 * group + column % group;
  const int64_t second = first + group;
  return order == GateOrder::gate_first ? GatedColumns{first, second} : GatedColumns{second, first};
}

/// rms_norm's sum of squares over a row, in an order that vectors and warps share. A row is cut
/// into segments of kRmsSegment elements, as if zeros followed its last one, and a segment into
/// runs of kRmsRun. The squares of a run are added in their order, by s = fma(x, x, s) from 0; then
/// neighbours are, s[j] = s[2j] + s[2j + 1], until one sum is left of the segment. The sums of
/// segments are added one after the other, from 0.
///
/// So whoever holds 2^n >= kRmsRun consecutive elements, from a multiple of 2^n on, sums them
/// alone.
inline constexpr int kRmsRun = 4;
inline constexpr int kRmsSegment = 8192;

}  // namespace blockscale
