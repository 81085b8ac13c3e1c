// Checks of what a quantizer fuses with its input (QuantizeInput).
#include <cmath>
#include <string>
#include <variant>

#include "ops/common/checks.h"
#include "ops/quantize/validate.h"

namespace blockscale::quantize_detail {
namespace {

using checks::text;

[[noreturn]] void refuse(const std::string& field, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "options.input." + field, message);
}

/// An operand of one row of `k` for each group of x's rows, with its stride filled in.
MatrixView resolved_operand(const MatrixView& operand, const char* field, std::int64_t k) {
  const std::string name = std::string("options.input.") + field;
  if (operand.columns != k) {
    refuse(std::string(field) + ".columns",
           checks::is_but(operand.columns, std::to_string(k)) + " (columns of the result)");
  }
  if (operand.batch != 1) refuse(std::string(field) + ".batch", checks::is_but(operand.batch, "1"));
  return resolved(operand, name.c_str());
}

FusedInput resolved_input(const Identity&, const MatrixView&, std::int64_t) {
  return {};
}

FusedInput resolved_input(const Gelu& gelu, const MatrixView&, std::int64_t) {
  const int form = static_cast<int>(gelu.form);
  if (form > static_cast<int>(GeluForm::erf)) refuse("form", checks::is_but(form, "tanh or erf"));
  return {};
}

FusedInput resolved_input(const Silu&, const MatrixView&, std::int64_t) {
  return {};
}

/// The numbers of a swiglu that is not the usual one.
void set_numbers(const Swiglu& swiglu, FusedInput& result) {
  constexpr float kMostAlpha = 0x1p126f;  // so that its reciprocal is a normal number, too
  if (!(swiglu.limit > 0)) refuse("limit", "is " + text(swiglu.limit) + ", must be above 0");
  const float magnitude = std::fabs(swiglu.alpha);
  if (!(magnitude >= 1 / kMostAlpha && magnitude <= kMostAlpha)) {
    refuse("alpha", "is " + text(swiglu.alpha) +
                        ", must be finite and not 0: 2^-126 to 2^126, or " +
                        "the negative of that");
  }
  if (!std::isfinite(swiglu.up_shift)) {
    refuse("up_shift", "is " + text(swiglu.up_shift) + ", must be finite");
  }
  const float shift = swiglu.up_shift == 0 ? -0.0f : swiglu.up_shift;
  result.swiglu = {swiglu.limit, swiglu.alpha, 1 / swiglu.alpha, shift};
  result.is_clamped = unusual_field(result.swiglu) != nullptr;
}

FusedInput resolved_input(const Swiglu& swiglu, const MatrixView& x, std::int64_t k) {
  const int order = static_cast<int>(swiglu.order);
  if (order > static_cast<int>(GateOrder::up_first)) {
    refuse("order", checks::is_but(order, "gate_first or up_first"));
  }
  if (x.columns != 2 * k) {
    throw Error(ErrorCode::invalid_argument, "x.columns",
                checks::is_but(x.columns, std::to_string(2 * k)) +
                    " (gate and up for each column of the result)");
  }
  const std::int64_t group = swiglu.group;
  if (group != 0 && group != 1 && group != 64) {
    refuse("group", checks::is_but(group, "0 (two halves), 1 or 64"));
  }
  if (group == 64 && k % 64 != 0) {
    refuse("group", "is 64, but the result has " + std::to_string(k) +
                        " columns, which must be a multiple of 64");
  }
  FusedInput result;
  result.gate_order = swiglu.order;
  result.gate_group = group != 0 ? group : k == 0 ? 1 : k;
  set_numbers(swiglu, result);
  return result;
}

FusedInput resolved_input(const Modulate& modulate, const MatrixView& x, std::int64_t k) {
  FusedInput result;
  result.scale = resolved_operand(modulate.scale, "scale", k);
  result.shift = resolved_operand(modulate.shift, "shift", k);
  const std::int64_t rows = x.batch * x.rows;
  const std::int64_t groups = result.scale.rows;
  if (groups < 1 || rows % groups != 0) {
    refuse("scale.rows",
           checks::is_but(groups, "a divisor of x's " + std::to_string(rows) + " rows"));
  }
  if (result.shift.rows != groups) {
    refuse("shift.rows",
           checks::is_but(result.shift.rows, std::to_string(groups)) + " (scale.rows)");
  }
  return result;
}

FusedInput resolved_input(const RmsNorm& norm, const MatrixView&, std::int64_t k) {
  FusedInput result;
  result.weight = resolved_operand(norm.weight, "weight", k);
  if (result.weight.rows != 1) refuse("weight.rows", checks::is_but(result.weight.rows, "1"));
  if (!std::isfinite(norm.epsilon) || !(norm.epsilon > 0)) {
    refuse("epsilon", "is " + text(norm.epsilon) + ", must be finite and above 0");
  }
  result.epsilon = norm.epsilon;
  return result;
}

}  // namespace

FusedInput validated(const MatrixView& x, const QuantizeInput& input, std::int64_t k,
                     const char* k_argument) {
  if (!std::holds_alternative<Swiglu>(input) && x.columns != k) {
    throw Error(ErrorCode::invalid_argument, k_argument,
                checks::is_but(k, std::to_string(x.columns)) + " (x.columns)");
  }
  FusedInput result =
      std::visit([&](const auto& alternative) { return resolved_input(alternative, x, k); }, input);
  result.transform = transform_of(input);
  return result;
}

std::int64_t transformed_columns(const MatrixView& x, const QuantizeInput& input) {
  if (!std::holds_alternative<Swiglu>(input)) return x.columns;
  if (x.columns % 2 != 0) {
    throw Error(ErrorCode::invalid_argument, "x.columns",
                checks::is_but(x.columns, "even: gate and up for each column of the result"));
  }
  return x.columns / 2;
}

}  // namespace blockscale::quantize_detail
