// Every argument of a fused input (QuantizeInput) that is refused: the error names it, and nothing
// is written.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "blockscale/quantize.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::expect_invalid;

/// A valid call of one transform, to be spoiled; its output is poisoned and must stay so.
struct Call {
  std::array<float, 6 * 256> data{};
  std::array<float, 3 * 128> scale{}, shift{};
  std::array<float, 128> weight{};
  std::array<std::uint8_t, 1024> values, scales;
  MatrixView x{data.data(), Format::f32, 6, 128};
  MutableScaledTensorView out;
  QuantizeOptions options;

  explicit Call(InputTransform transform) {
    values.fill(0xA5);
    scales.fill(0xA5);
    out.recipe = Recipe::mxfp8_e4m3;
    out.rows = 6;
    out.k = 128;
    out.values = values.data();
    out.scales = scales.data();
    QuantizeInput& input = options.input;
    input.transform = transform;
    if (transform == InputTransform::swiglu) x.columns = 256;
    if (transform == InputTransform::modulate) {
      input.scale = {scale.data(), Format::f32, 3, 128};
      input.shift = {shift.data(), Format::f32, 3, 128};
    }
    if (transform == InputTransform::rms_norm) input.weight = {weight.data(), Format::f32, 1, 128};
  }
  QuantizeInput& input() { return options.input; }
};

template <class Edit>
void expect_refused(InputTransform transform, const char* argument, const char* part_of_message,
                    const Edit& edit) {
  Call call(transform);
  edit(call);
  const auto values = call.values;
  const auto scales = call.scales;
  expect_invalid(argument, part_of_message, [&] { quantize(call.x, call.out, call.options); });
  EXPECT_EQ(call.values, values);
  EXPECT_EQ(call.scales, scales);
}

TEST(QuantizeInputErrors, Transform) {
  expect_refused(InputTransform::identity, "options.input.transform", "is 6, must be in 0..5",
                 [](Call& c) { c.input().transform = static_cast<InputTransform>(6); });
  expect_refused(InputTransform::gelu_erf, "out.k", "is 96, must be 128",
                 [](Call& c) { c.out.k = 96; });
}

TEST(QuantizeInputErrors, OperandsOfAnotherTransform) {
  using Edit = void (*)(Call&);
  struct Case {
    const char* argument;
    const char* owner;
    Edit edit;
  };
  const Case cases[] = {
      {"options.input.gate_order", "only swiglu",
       [](Call& c) { c.input().gate_order = GateOrder::up_first; }},
      {"options.input.gate_group", "only swiglu", [](Call& c) { c.input().gate_group = 1; }},
      {"options.input.scale", "only modulate",
       [](Call& c) { c.input().scale = {c.scale.data(), Format::f32, 3, 128}; }},
      {"options.input.shift", "only modulate",
       [](Call& c) { c.input().shift = {c.shift.data(), Format::f32, 3, 128}; }},
      {"options.input.weight", "only rms_norm",
       [](Call& c) { c.input().weight = {c.weight.data(), Format::f32, 1, 128}; }},
      {"options.input.epsilon", "only rms_norm", [](Call& c) { c.input().epsilon = 1e-5f; }},
  };
  for (const Case& c : cases) {
    expect_refused(InputTransform::identity, c.argument, c.owner, c.edit);
    expect_refused(InputTransform::gelu_tanh, c.argument, "the transform is gelu_tanh", c.edit);
  }
}

TEST(QuantizeInputErrors, Swiglu) {
  constexpr InputTransform kSwiglu = InputTransform::swiglu;
  expect_refused(kSwiglu, "x.columns", "is 255, must be 256", [](Call& c) {
    c.x.columns = 255;
    c.x.row_stride = 256;
  });
  expect_refused(kSwiglu, "x.columns", "is 256, must be 192", [](Call& c) { c.out.k = 96; });
  expect_refused(kSwiglu, "options.input.gate_order", "is 2",
                 [](Call& c) { c.input().gate_order = static_cast<GateOrder>(2); });
  for (const std::int64_t group : {-1, 2, 32, 128}) {
    expect_refused(kSwiglu, "options.input.gate_group", "0 (two halves), 1 or 64",
                   [group](Call& c) { c.input().gate_group = group; });
  }
  expect_refused(kSwiglu, "options.input.gate_group", "has 96 columns", [](Call& c) {
    c.x.columns = 192;
    c.out.k = 96;
    c.input().gate_group = 64;
  });
}

TEST(QuantizeInputErrors, Modulate) {
  constexpr InputTransform kModulate = InputTransform::modulate;
  const auto refused = [](const char* field, const char* message, auto edit) {
    const std::string argument = std::string("options.input.") + field;
    expect_refused(kModulate, argument.c_str(), message, edit);
  };
  refused("scale.columns", "is 0, must be 128", [](Call& c) { c.input().scale = {}; });
  refused("shift.columns", "is 127, must be 128", [](Call& c) { c.input().shift.columns = 127; });
  refused("scale.data", "null", [](Call& c) { c.input().scale.data = nullptr; });
  refused("shift.data", "null", [](Call& c) { c.input().shift.data = nullptr; });
  refused("shift.data", "misaligned", [](Call& c) {
    c.input().shift.data = reinterpret_cast<const std::uint8_t*>(c.shift.data()) + 1;
  });
  refused("scale.dtype", "e5m2", [](Call& c) { c.input().scale.dtype = Format::e5m2; });
  refused("scale.row_stride", "is 64", [](Call& c) { c.input().scale.row_stride = 64; });
  refused("scale.batch", "is 2, must be 1", [](Call& c) { c.input().scale.batch = 2; });
  refused("scale.rows", "is 0, must be a divisor of x's 6 rows",
          [](Call& c) { c.input().scale.rows = 0; });
  refused("scale.rows", "is 4, must be a divisor", [](Call& c) { c.input().scale.rows = 4; });
  refused("shift.rows", "is 2, must be 3", [](Call& c) { c.input().shift.rows = 2; });
}

TEST(QuantizeInputErrors, RmsNorm) {
  constexpr InputTransform kRmsNorm = InputTransform::rms_norm;
  const auto refused = [](const char* field, const char* message, auto edit) {
    const std::string argument = std::string("options.input.") + field;
    expect_refused(kRmsNorm, argument.c_str(), message, edit);
  };
  refused("weight.columns", "is 0, must be 128", [](Call& c) { c.input().weight = {}; });
  refused("weight.data", "null", [](Call& c) { c.input().weight.data = nullptr; });
  refused("weight.rows", "is 2, must be 1",
          [](Call& c) { c.input().weight = {c.data.data(), Format::f32, 2, 128}; });
  for (const float epsilon : {0.0f, -1e-6f, INFINITY, NAN}) {
    refused("epsilon", "must be finite and above 0",
            [epsilon](Call& c) { c.input().epsilon = epsilon; });
  }
}

TEST(QuantizeInputErrors, Overlap) {
  const auto refused = [](InputTransform transform, const char* argument, const char* operand,
                          auto edit) { expect_refused(transform, argument, operand, edit); };
  refused(InputTransform::modulate, "out.values", "options.input.scale", [](Call& c) {
    c.input().scale = {c.values.data() + 256, Format::f32, 1, 128};
    c.input().shift.rows = 1;
  });
  refused(InputTransform::modulate, "out.scales", "options.input.shift",
          [](Call& c) { c.input().shift = {c.scales.data(), Format::bf16, 3, 128}; });
  refused(InputTransform::rms_norm, "out.values", "options.input.weight",
          [](Call& c) { c.input().weight.data = c.values.data(); });
}

TEST(QuantizeInputErrors, AbsoluteMaximum) {
  Call call(InputTransform::modulate);
  float out = 0;
  const auto refused = [&](const char* argument, const char* message, float* to) {
    expect_invalid(argument, message, [&] { absolute_maximum(call.x, call.input(), to); });
  };
  refused("out", "overlaps options.input.shift", call.shift.data());
  call.input().scale.rows = 5;
  refused("options.input.scale.rows", "is 5", &out);
  call.input() = {};
  call.input().transform = InputTransform::swiglu;
  call.x.columns = 127;
  call.x.row_stride = 128;
  refused("x.columns", "is 127, must be even", &out);
}

}  // namespace
}  // namespace blockscale
