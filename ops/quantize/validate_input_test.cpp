// Every argument of a fused input (QuantizeInput) that is refused: the error names it, and nothing
// is written.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <type_traits>
#include <variant>

#include "blockscale/quantize.h"
#include "ops/quantize/fused_input.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::expect_invalid;

/// A valid call of one transform, to be spoiled; its output is poisoned and must stay so.
struct FusedCall {
  std::array<float, 6 * 256> data{};
  std::array<float, 3 * 128> scale{}, shift{};
  std::array<float, 128> weight{};
  std::array<std::uint8_t, 1024> values, scales;
  MatrixView x{data.data(), Format::f32, 6, 128};
  MutableScaledTensorView out;
  QuantizeOptions options;

  explicit FusedCall(InputTransform transform) {
    values.fill(0xA5);
    scales.fill(0xA5);
    out.recipe = Recipe::mxfp8_e4m3;
    out.rows = 6;
    out.k = 128;
    out.values = values.data();
    out.scales = scales.data();
    if (transform == InputTransform::swiglu) x.columns = 256;
    options.input = quantize_detail::input_of(transform, {scale.data(), Format::f32, 3, 128},
                                              {shift.data(), Format::f32, 3, 128},
                                              {weight.data(), Format::f32, 1, 128});
  }
  Gelu& gelu() { return std::get<Gelu>(options.input); }
  Swiglu& swiglu() { return std::get<Swiglu>(options.input); }
  Modulate& modulate() { return std::get<Modulate>(options.input); }
  RmsNorm& norm() { return std::get<RmsNorm>(options.input); }
};

template <class Edit>
void expect_refused(InputTransform transform, const char* argument, const char* part_of_message,
                    const Edit& edit) {
  FusedCall call(transform);
  edit(call);
  const auto values = call.values;
  const auto scales = call.scales;
  expect_invalid(argument, part_of_message, [&] { quantize(call.x, call.out, call.options); });
  EXPECT_EQ(call.values, values);
  EXPECT_EQ(call.scales, scales);
}

static_assert(std::is_trivially_copyable_v<QuantizeInput>);

TEST(QuantizeInput, IsTheIdentityUnlessSaidOtherwise) {
  EXPECT_TRUE(std::holds_alternative<Identity>(QuantizeOptions{}.input));
}

TEST(QuantizeInput, HasAnAlternativeForEveryTransform) {
  for (int t = 0; t < kInputTransformCount; ++t) {
    const auto transform = static_cast<InputTransform>(t);
    EXPECT_EQ(quantize_detail::transform_of(quantize_detail::input_of(transform)), transform);
  }
}

TEST(QuantizeInputErrors, Columns) {
  for (const InputTransform transform :
       {InputTransform::identity, InputTransform::gelu_erf, InputTransform::modulate}) {
    expect_refused(transform, "out.k", "is 96, must be 128", [](FusedCall& c) { c.out.k = 96; });
  }
}

TEST(QuantizeInputErrors, Gelu) {
  expect_refused(InputTransform::gelu_tanh, "options.input.form", "is 2, must be tanh or erf",
                 [](FusedCall& c) { c.gelu().form = static_cast<GeluForm>(2); });
}

TEST(QuantizeInputErrors, Swiglu) {
  constexpr InputTransform kSwiglu = InputTransform::swiglu;
  expect_refused(kSwiglu, "x.columns", "is 255, must be 256", [](FusedCall& c) {
    c.x.columns = 255;
    c.x.row_stride = 256;
  });
  expect_refused(kSwiglu, "x.columns", "is 256, must be 192", [](FusedCall& c) { c.out.k = 96; });
  expect_refused(kSwiglu, "options.input.order", "is 2",
                 [](FusedCall& c) { c.swiglu().order = static_cast<GateOrder>(2); });
  for (const std::int64_t group : {-1, 2, 32, 128}) {
    expect_refused(kSwiglu, "options.input.group", "0 (two halves), 1 or 64",
                   [group](FusedCall& c) { c.swiglu().group = group; });
  }
  expect_refused(kSwiglu, "options.input.group", "has 96 columns", [](FusedCall& c) {
    c.x.columns = 192;
    c.out.k = 96;
    c.swiglu().group = 64;
  });
}

TEST(QuantizeInputErrors, NumbersOfSwiglu) {
  constexpr InputTransform kSwiglu = InputTransform::swiglu;
  for (const float limit : {0.0f, -0.0f, -7.0f, -INFINITY, NAN}) {
    expect_refused(kSwiglu, "options.input.limit", "must be above 0",
                   [limit](FusedCall& c) { c.swiglu().limit = limit; });
  }
  for (const float alpha : {0.0f, -0.0f, 0x1p-127f, -0x1p127f, INFINITY, -INFINITY, NAN}) {
    expect_refused(kSwiglu, "options.input.alpha", "must be finite and not 0",
                   [alpha](FusedCall& c) { c.swiglu().alpha = alpha; });
  }
  for (const float shift : {INFINITY, -INFINITY, NAN}) {
    expect_refused(kSwiglu, "options.input.up_shift", "must be finite",
                   [shift](FusedCall& c) { c.swiglu().up_shift = shift; });
  }
}

TEST(QuantizeInput, NumbersOfSwigluAreTakenUpToTheirLimits) {
  for (const Swiglu& swiglu : {Swiglu{{}, 0, 0x1p-149f}, Swiglu{{}, 0, 1, 0x1p-126f},
                               Swiglu{{}, 0, 1, -0x1p126f}, Swiglu{{}, 0, 1, 1, -3e38f}}) {
    FusedCall call(InputTransform::swiglu);
    call.options.input = swiglu;
    EXPECT_NO_THROW(quantize(call.x, call.out, call.options));
  }
}

TEST(QuantizeInputErrors, Modulate) {
  constexpr InputTransform kModulate = InputTransform::modulate;
  const auto refused = [](const char* field, const char* message, auto edit) {
    const std::string argument = std::string("options.input.") + field;
    expect_refused(kModulate, argument.c_str(), message, edit);
  };
  refused("scale.columns", "is 0, must be 128", [](FusedCall& c) { c.modulate().scale = {}; });
  refused("shift.columns", "is 127, must be 128",
          [](FusedCall& c) { c.modulate().shift.columns = 127; });
  refused("scale.data", "null", [](FusedCall& c) { c.modulate().scale.data = nullptr; });
  refused("shift.data", "null", [](FusedCall& c) { c.modulate().shift.data = nullptr; });
  refused("shift.data", "misaligned", [](FusedCall& c) {
    c.modulate().shift.data = reinterpret_cast<const std::uint8_t*>(c.shift.data()) + 1;
  });
  refused("scale.dtype", "e5m2", [](FusedCall& c) { c.modulate().scale.dtype = Format::e5m2; });
  refused("scale.row_stride", "is 64", [](FusedCall& c) { c.modulate().scale.row_stride = 64; });
  refused("scale.batch", "is 2, must be 1", [](FusedCall& c) { c.modulate().scale.batch = 2; });
  refused("scale.rows", "is 0, must be a divisor of x's 6 rows",
          [](FusedCall& c) { c.modulate().scale.rows = 0; });
  refused("scale.rows", "is 4, must be a divisor",
          [](FusedCall& c) { c.modulate().scale.rows = 4; });
  refused("shift.rows", "is 2, must be 3", [](FusedCall& c) { c.modulate().shift.rows = 2; });
}

TEST(QuantizeInputErrors, RmsNorm) {
  constexpr InputTransform kRmsNorm = InputTransform::rms_norm;
  const auto refused = [](const char* field, const char* message, auto edit) {
    const std::string argument = std::string("options.input.") + field;
    expect_refused(kRmsNorm, argument.c_str(), message, edit);
  };
  refused("weight.columns", "is 0, must be 128", [](FusedCall& c) { c.norm().weight = {}; });
  refused("weight.data", "null", [](FusedCall& c) { c.norm().weight.data = nullptr; });
  refused("weight.rows", "is 2, must be 1",
          [](FusedCall& c) { c.norm().weight = {c.data.data(), Format::f32, 2, 128}; });
  for (const float epsilon : {0.0f, -1e-6f, INFINITY, NAN}) {
    refused("epsilon", "must be finite and above 0",
            [epsilon](FusedCall& c) { c.norm().epsilon = epsilon; });
  }
}

TEST(QuantizeInputErrors, Overlap) {
  const auto refused = [](InputTransform transform, const char* argument, const char* operand,
                          auto edit) { expect_refused(transform, argument, operand, edit); };
  refused(InputTransform::modulate, "out.values", "options.input.scale", [](FusedCall& c) {
    c.modulate().scale = {c.values.data() + 256, Format::f32, 1, 128};
    c.modulate().shift.rows = 1;
  });
  refused(InputTransform::modulate, "out.scales", "options.input.shift",
          [](FusedCall& c) { c.modulate().shift = {c.scales.data(), Format::bf16, 3, 128}; });
  refused(InputTransform::rms_norm, "out.values", "options.input.weight",
          [](FusedCall& c) { c.norm().weight.data = c.values.data(); });
}

TEST(QuantizeInputErrors, AbsoluteMaximum) {
  FusedCall call(InputTransform::modulate);
  float out = 0;
  const auto refused = [&](const char* argument, const char* message, float* to) {
    expect_invalid(argument, message, [&] { absolute_maximum(call.x, call.options.input, to); });
  };
  refused("out", "overlaps options.input.shift", call.shift.data());
  call.modulate().scale.rows = 5;
  refused("options.input.scale.rows", "is 5", &out);
  call.options.input = Swiglu{};
  call.x.columns = 127;
  call.x.row_stride = 128;
  refused("x.columns", "is 127, must be even", &out);
}

}  // namespace
}  // namespace blockscale
