// Checks of what a quantiser fuses with its input (QuantizeInput).
#include <cmath>
#include <cstdio>
#include <string>

#include "ops/common/checks.h"
#include "ops/quantize/validate.h"

namespace blockscale::quantize_detail {
namespace {

[[noreturn]] void fail(const std::string& field, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "options.input." + field, message);
}

std::string transform_name(const QuantizeInput& input) {
  return kInputTransformNames[static_cast<int>(input.transform)];
}

/// Operands of another transform than the one that is asked for are a mistake of the caller.
void check_unused(const QuantizeInput& input) {
  const auto expect_default = [&](const char* field, bool is_default, InputTransform owner) {
    if (is_default || input.transform == owner) return;
    fail(field, std::string("is given, but the transform is ") + transform_name(input) + "; only " +
                    kInputTransformNames[static_cast<int>(owner)] + " has one");
  };
  const QuantizeInput unset;
  expect_default("gate_order", input.gate_order == unset.gate_order, InputTransform::swiglu);
  expect_default("gate_group", input.gate_group == unset.gate_group, InputTransform::swiglu);
  expect_default("scale", input.scale.data == nullptr, InputTransform::modulate);
  expect_default("shift", input.shift.data == nullptr, InputTransform::modulate);
  expect_default("weight", input.weight.data == nullptr, InputTransform::rms_norm);
  expect_default("epsilon", input.epsilon == unset.epsilon, InputTransform::rms_norm);
}

/// An operand of one row of `k` for each group of x's rows, with its stride filled in.
MatrixView resolved_operand(const MatrixView& operand, const char* field, std::int64_t k) {
  const std::string name = std::string("options.input.") + field;
  if (operand.columns != k) {
    fail(std::string(field) + ".columns",
         checks::is_but(operand.columns, std::to_string(k)) + " (columns of the result)");
  }
  if (operand.batch != 1) fail(std::string(field) + ".batch", checks::is_but(operand.batch, "1"));
  return resolved(operand, name.c_str());
}

void check_swiglu(const MatrixView& x, QuantizeInput& input, std::int64_t k) {
  const int order = static_cast<int>(input.gate_order);
  if (order > static_cast<int>(GateOrder::up_first)) {
    fail("gate_order", checks::is_but(order, "gate_first or up_first"));
  }
  if (x.columns != 2 * k) {
    throw Error(ErrorCode::invalid_argument, "x.columns",
                checks::is_but(x.columns, std::to_string(2 * k)) +
                    " (gate and up for each column of the result)");
  }
  const std::int64_t group = input.gate_group;
  if (group != 0 && group != 1 && group != 64) {
    fail("gate_group", checks::is_but(group, "0 (two halves), 1 or 64"));
  }
  if (group == 64 && k % 64 != 0) {
    fail("gate_group", "is 64, but the result has " + std::to_string(k) +
                           " columns, which must be a multiple of 64");
  }
  if (group == 0) input.gate_group = k == 0 ? 1 : k;
}

void check_modulate(const MatrixView& x, QuantizeInput& input, std::int64_t k) {
  input.scale = resolved_operand(input.scale, "scale", k);
  input.shift = resolved_operand(input.shift, "shift", k);
  const std::int64_t rows = x.batch * x.rows;
  const std::int64_t groups = input.scale.rows;
  if (groups < 1 || rows % groups != 0) {
    fail("scale.rows",
         checks::is_but(groups, "a divisor of x's " + std::to_string(rows) + " rows"));
  }
  if (input.shift.rows != groups) {
    fail("shift.rows", checks::is_but(input.shift.rows, std::to_string(groups)) + " (scale.rows)");
  }
}

void check_rms_norm(QuantizeInput& input, std::int64_t k) {
  input.weight = resolved_operand(input.weight, "weight", k);
  if (input.weight.rows != 1) fail("weight.rows", checks::is_but(input.weight.rows, "1"));
  if (!std::isfinite(input.epsilon) || !(input.epsilon > 0)) {
    char value[32];
    std::snprintf(value, sizeof(value), "%.9g", static_cast<double>(input.epsilon));
    fail("epsilon", std::string("is ") + value + ", must be finite and above 0");
  }
}

}  // namespace

QuantizeInput validated(const MatrixView& x, const QuantizeInput& input, std::int64_t k,
                        const char* k_argument) {
  const int transform = static_cast<int>(input.transform);
  if (transform >= kInputTransformCount) {
    fail("transform",
         checks::is_but(transform, "in 0.." + std::to_string(kInputTransformCount - 1)));
  }
  check_unused(input);
  QuantizeInput result = input;
  if (input.transform == InputTransform::swiglu) {
    check_swiglu(x, result, k);
  } else if (x.columns != k) {
    throw Error(ErrorCode::invalid_argument, k_argument,
                checks::is_but(k, std::to_string(x.columns)) + " (x.columns)");
  }
  if (input.transform == InputTransform::modulate) check_modulate(x, result, k);
  if (input.transform == InputTransform::rms_norm) check_rms_norm(result, k);
  return result;
}

std::int64_t transformed_columns(const MatrixView& x, const QuantizeInput& input) {
  if (input.transform != InputTransform::swiglu) return x.columns;
  if (x.columns % 2 != 0) {
    throw Error(ErrorCode::invalid_argument, "x.columns",
                checks::is_but(x.columns, "even: gate and up for each column of the result"));
  }
  return x.columns / 2;
}

}  // namespace blockscale::quantize_detail
