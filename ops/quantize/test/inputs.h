// Fused inputs of tests that go through all transforms.
#pragma once

#include <string>
#include <variant>

#include "ops/quantize/fused_input.h"

namespace blockscale::test {

using quantize_detail::input_of;
using quantize_detail::transform_of;

inline bool is_gated(const QuantizeInput& input) {
  return std::holds_alternative<Swiglu>(input);
}

/// Gives an input those of the operands that its transform has.
inline void set_operands(QuantizeInput& input, const MatrixView& scale, const MatrixView& shift,
                         const MatrixView& weight) {
  if (auto* const modulate = std::get_if<Modulate>(&input)) *modulate = {scale, shift};
  if (auto* const norm = std::get_if<RmsNorm>(&input)) norm->weight = weight;
}

inline std::string describe(const QuantizeInput& input) {
  const std::string name = kInputTransformNames[static_cast<int>(transform_of(input))];
  const auto* const swiglu = std::get_if<Swiglu>(&input);
  return swiglu == nullptr ? name : name + " group " + std::to_string(swiglu->group);
}

}  // namespace blockscale::test
