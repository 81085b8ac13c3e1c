#include "ops/quantize/fused_input.h"

#include <variant>

namespace blockscale::quantize_detail {
namespace {

struct TransformOf {
  InputTransform operator()(const Identity&) const { return InputTransform::identity; }
  InputTransform operator()(const Gelu& gelu) const {
    return gelu.form == GeluForm::tanh ? InputTransform::gelu_tanh : InputTransform::gelu_erf;
  }
  InputTransform operator()(const Silu&) const { return InputTransform::silu; }
  InputTransform operator()(const Swiglu&) const { return InputTransform::swiglu; }
  InputTransform operator()(const Modulate&) const { return InputTransform::modulate; }
  InputTransform operator()(const RmsNorm&) const { return InputTransform::rms_norm; }
};

}  // namespace

const char* unusual_field(const SwigluNumbers& numbers) {
  constexpr Swiglu kUsual;
  if (numbers.limit != kUsual.limit) return "limit";
  if (numbers.alpha != kUsual.alpha) return "alpha";
  return numbers.up_shift != kUsual.up_shift ? "up_shift" : nullptr;
}

InputTransform transform_of(const QuantizeInput& input) {
  return std::visit(TransformOf{}, input);
}

QuantizeInput input_of(InputTransform transform, const MatrixView& scale, const MatrixView& shift,
                       const MatrixView& weight) {
  switch (transform) {
    case InputTransform::identity: return Identity{};
    case InputTransform::gelu_tanh: return Gelu{GeluForm::tanh};
    case InputTransform::gelu_erf: return Gelu{GeluForm::erf};
    case InputTransform::silu: return Silu{};
    case InputTransform::swiglu: return Swiglu{};
    case InputTransform::modulate: return Modulate{scale, shift};
    case InputTransform::rms_norm: return RmsNorm{weight};
  }
  return Identity{};
}

}  // namespace blockscale::quantize_detail
