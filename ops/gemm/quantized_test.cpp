// gemm with `quantized`: what the quantizer makes of D in f32, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "blockscale/gemm.h"
#include "tests/expect_error.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

constexpr std::int64_t kM = 5, kN = 192, kK = 256, kBatch = 2;

class QuantizedGemm : public testing::Test {
 protected:
  QuantizedGemm() {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.bias = bias_.data();
    x_.alpha = 0.5f;
  }

  /// Of `x_`, into a new tensor.
  static ScaledTensor result_of(Recipe recipe, std::int64_t columns,
                                ScaleLayout layout = ScaleLayout::row_major) {
    return {recipe, kM, columns, layout, kBatch};
  }
  void expect_error(ErrorCode code, const char* argument, const char* text) {
    test::expect_error(code, argument, text, [&] { gemm(x_); });
  }
  void expect_invalid(const char* argument, const char* text) {
    expect_error(ErrorCode::invalid_argument, argument, text);
  }

  test::Random random_{1};
  test::OperandOptions options_{.batch = kBatch};
  test::TestOperand a_{random_, Recipe::fp8_1x128, kM, kK, test::InputFamily::normal, options_};
  test::TestOperand b_{random_, Recipe::fp8_128x128, kN, kK, test::InputFamily::normal, options_};
  std::vector<float> bias_ = std::vector<float>(kN, 0.25f);
  GemmArguments x_;
};

std::vector<std::uint8_t> bytes_of(const ScaledTensorView& x) {
  const auto* const values = static_cast<const std::uint8_t*>(x.values);
  const auto* const scales = static_cast<const std::uint8_t*>(x.scales);
  std::vector<std::uint8_t> bytes(values, values + value_bytes(x.recipe, x.rows, x.k, x.batch));
  bytes.insert(bytes.end(), scales, scales + scale_bytes(x.recipe, x.layout, x.rows, x.k, x.batch));
  return bytes;
}

TEST_F(QuantizedGemm, IsQuantizeOfF32) {
  std::vector<float> d(kBatch * kM * kN);
  GemmArguments plain = x_;
  plain.d = {d.data(), Format::f32, kM, kN};
  plain.d.batch = kBatch;
  gemm(plain);
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0,
                              Recipe::fp8_row, Recipe::mxfp8_e4m3, Recipe::nvfp4}) {
    const bool bytes = format_traits(recipe_traits(recipe).scale).bits == 8;
    const ScaleLayout layout = bytes ? ScaleLayout::swizzled_128x4 : ScaleLayout::mn_major;
    for (const QuantizeInput& input :
         {QuantizeInput{Identity{}}, QuantizeInput{Gelu{}}, QuantizeInput{Silu{}},
          QuantizeInput{Swiglu{}}, QuantizeInput{Swiglu{GateOrder::gate_first, 1, 7, 1.702f, 1}}}) {
      const std::int64_t columns = std::holds_alternative<Swiglu>(input) ? kN / 2 : kN;
      ScaledTensor result = result_of(recipe, columns, layout);
      ScaledTensor expected = result_of(recipe, columns, layout);
      QuantizeOptions options;
      options.input = input;
      if (recipe == Recipe::nvfp4) options.scale_source = ScaleSource::given;
      x_.quantized = {result.view(), options};
      gemm(x_, {2});
      quantize(plain.d, expected.view(), options);
      EXPECT_EQ(bytes_of(result.view()), bytes_of(expected.view())) << recipe_traits(recipe).name;
    }
  }
}

TEST_F(QuantizedGemm, RefusesWithTheArgumentsName) {
  ScaledTensor mxfp8 = result_of(Recipe::mxfp8_e4m3, kN), mxfp4 = result_of(Recipe::mxfp4, kN);
  ScaledTensor nvfp4 = result_of(Recipe::nvfp4, kN), half = result_of(Recipe::mxfp8_e4m3, kN / 2);
  ScaledTensor tall(Recipe::mxfp8_e4m3, kM + 1, kN, ScaleLayout::row_major, kBatch);
  ScaledTensor many(Recipe::mxfp8_e4m3, kM, kN, ScaleLayout::row_major, 3);
  x_.quantized = {mxfp4.view()};
  expect_error(ErrorCode::unsupported, "quantized.out.recipe",
               "is mxfp4, must be fp8_1x128, fp8_1x128_pow2, fp8_1x128_ue8m0, fp8_row, ");
  x_.quantized = {nvfp4.view()};
  expect_error(ErrorCode::unsupported, "quantized.options.scale_source", "is dynamic");
  ScaledTensor rows = result_of(Recipe::fp8_row, kN);
  x_.quantized = {rows.view()};
  x_.quantized->options.scale_source = ScaleSource::given;
  expect_error(ErrorCode::unsupported, "quantized.options.scale_source",
               "is given, must be dynamic for fp8_row");
  x_.quantized = {mxfp8.view()};
  x_.quantized->options.scale_choice = ScaleChoice::mse;
  expect_error(ErrorCode::unsupported, "quantized.options.scale_choice", "is not amax");
  x_.quantized->options.scale_choice = ScaleChoice::amax;
  x_.quantized->options.input = Modulate{};
  expect_error(ErrorCode::unsupported, "quantized.options.input", "is modulate");
  x_.quantized->options.input = Swiglu{};
  expect_invalid("quantized.x.columns", "is 192, must be 384");
  x_.quantized->out = half.view();
  x_.quantized->options.input = Swiglu{GateOrder::gate_first, 0, 0};
  expect_invalid("quantized.options.input.limit", "is 0, must be above 0");
  x_.quantized->options.input = Identity{};
  x_.quantized->out = tall.view();
  expect_invalid("quantized.out.rows", "is 6, must be 5");
  x_.quantized->out = mxfp8.view();
  x_.quantized->out.k = kN - 32;
  expect_invalid("quantized.out.k", "is 160, must be 192");
  x_.quantized->out = mxfp8.view();
  x_.quantized->out.values = nullptr;
  expect_invalid("quantized.out.values", "null");
  x_.quantized->out = mxfp8.view();
  x_.quantized->out = many.view();
  expect_invalid("a.batch", "is 2");
  x_.quantized->out = mxfp8.view();
  const void* const b_scales = std::exchange(x_.b.scales, x_.quantized->out.scales);
  expect_invalid("quantized.out.scales", "overlaps b.scales");
  x_.b.scales = b_scales;
  x_.quantized->out.scales = x_.quantized->out.values;
  expect_invalid("quantized.out.values", "overlaps quantized.out.scales");
  x_.quantized->out = mxfp8.view();
  test::expect_error(ErrorCode::unsupported, "quantized", "is given, must not be",
                     [&] { (void)check_gemm(x_); });
}

TEST_F(QuantizedGemm, PlansSayWhatBecomesOfD) {
  ScaledTensor result = result_of(Recipe::mxfp8_e4m3, kN / 2);
  x_.quantized = {result.view()};
  x_.quantized->options.input = Swiglu{};
  EXPECT_THAT(describe_gemm(x_), testing::HasSubstr(", then swiglu and mxfp8_e4m3"));
  EXPECT_THAT(cuda::describe_gemm(x_, {}),
              testing::AllOf(testing::HasSubstr("_quantized: "),
                             testing::HasSubstr("two tiles a result, stored by vectors"),
                             testing::HasSubstr(", then swiglu and mxfp8_e4m3")));
}

}  // namespace
}  // namespace blockscale
