// What a layer's call refuses, and how it says so.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "blockscale/cuda.h"
#include "ops/moe/test/layer_problem.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::LayerCase;
using test::LayerProblem;
using test::Random;

class MoeValidateTest : public ::testing::Test {
 protected:
  void expect_error(ErrorCode code, const std::string& argument, const std::string& text,
                    const MoeOptions& options = {}) {
    const std::vector<std::uint8_t> before = problem_.y().bytes();
    try {
      moe(x_, options);
      ADD_FAILURE() << argument << " is allowed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(error.argument(), argument);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(problem_.y().bytes(), before);
  }
  void expect_invalid(const std::string& argument, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, argument, text);
  }
  void expect_unsupported(const std::string& argument, const std::string& text) {
    expect_error(ErrorCode::unsupported, argument, text);
  }

  Random random_{1};
  LayerProblem problem_{random_, LayerCase{}};
  MoeArguments x_ = problem_.arguments();
};

TEST_F(MoeValidateTest, AcceptsTheProblem) {
  EXPECT_NO_THROW(moe(x_));
}
TEST_F(MoeValidateTest, Shapes) {
  x_.x.rows = 18;
  expect_invalid("y.rows", "is 19, must be 18, the rows of x");
  x_ = problem_.arguments();
  x_.w13.k = 144;
  expect_invalid("w13.k", "is 144, must be 160, the k of x");
  x_ = problem_.arguments();
  x_.w2.rows = 128;
  expect_invalid("w2.rows", "is 128, must be 160, the k of x");
  x_ = problem_.arguments();
  x_.w13.rows = 192;
  expect_invalid("w13.rows", "is 192, must be 384, twice the k of w2");
  x_ = problem_.arguments();
  x_.w13.batch = 3;
  expect_invalid("w13.batch", "is 3, must be 4");
  x_ = problem_.arguments();
  x_.transform = Gelu{};
  expect_invalid("w13.rows", "is 384, must be 192, the k of w2");
  x_ = problem_.arguments();
  x_.y.columns = 159;
  expect_invalid("y.columns", "is 159, must be 160");
}
TEST_F(MoeValidateTest, Ids) {
  x_.first_expert = -1;
  expect_invalid("first_expert", "is -1, must be in 0..2147483643");
  x_.first_expert = 0;
  x_.mapped_ids = 3;
  expect_invalid("expert_map", "is null");
}
TEST_F(MoeValidateTest, NothingBetweenTheProducts) {
  x_.w2.k = 0;
  expect_invalid("w2.k", "is 0, must be in 1..2^57");
}
TEST(MoeNames, OfCallsAreTheLayers) {
  Random random(2);
  // A joined w13 has scales of rows, which x of one scale does not go with.
  const Recipe tensor = Recipe::fp8_tensor;
  LayerProblem of_tensor(random, {.x = tensor, .w13 = tensor, .w2 = tensor, .apart = true});
  test::expect_error(ErrorCode::unsupported, "w13.recipe", "is fp8_row with a.recipe fp8_tensor",
                     [&] { moe(of_tensor.arguments()); });
  test::expect_error(ErrorCode::unsupported, "w13.recipe", "no such pair",
                     [&] { (void)cuda::describe_moe(of_tensor.arguments()); });
  LayerProblem of_mx(random, {.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .hidden = 80});
  of_mx.arguments().activations = Recipe::mxfp8_e4m3;
  test::expect_error(ErrorCode::invalid_argument, "x.k", "is 80, must be a multiple of 32",
                     [&] { moe(of_mx.arguments()); });
}
TEST_F(MoeValidateTest, TopK) {
  for (const int top_k : {0, 17, -3}) {
    x_.top_k = top_k;
    expect_invalid("top_k", "is " + std::to_string(top_k) + ", must be in 1..16");
  }
}
TEST_F(MoeValidateTest, Transforms) {
  x_.transform = Swiglu{GateOrder::gate_first, 7};
  expect_invalid("transform.group", "is 7");
  x_.transform = RmsNorm{};
  expect_unsupported("transform", "must be Identity, Gelu, Silu or Swiglu");
}
TEST_F(MoeValidateTest, Recipes) {
  x_.activations = Recipe::nvfp4;
  expect_invalid("activations",
                 "is nvfp4, must be one of bf16, fp8_1x128, fp8_1x128_pow2, fp8_1x128_ue8m0, "
                 "fp8_row, mxfp8_e4m3");
  x_.activations = static_cast<Recipe>(200);
  expect_invalid("activations", "is 200");
  x_.activations = Recipe::mxfp8_e4m3;
  expect_unsupported("w13.recipe", "is fp8_128x128 with activations in mxfp8_e4m3");
}
TEST_F(MoeValidateTest, WeightsOnTheInput) {
  Random random(2);
  LayerProblem quantized(random, {.x = Recipe::fp8_1x128, .weights_on_input = true});
  test::expect_error(ErrorCode::unsupported, "x.recipe",
                     "is fp8_1x128, must be f32, f16 or bf16 where weights are on the input",
                     [&] { moe(quantized.arguments()); });
  quantized.arguments().weights = nullptr;
  EXPECT_NO_THROW(moe(quantized.arguments()));
}
TEST(MoeSharedTest, Experts) {
  Random random(2);
  LayerProblem problem(random, {.shared = 2, .weights_on_input = true});
  const auto expect_refused = [&](ErrorCode code, const char* argument, const char* text,
                                  const auto& change) {
    MoeArguments x = problem.arguments();
    change(x);
    const std::vector<std::uint8_t> before = problem.y().bytes();
    test::expect_error(code, argument, text, [&] { moe(x); });
    EXPECT_EQ(problem.y().bytes(), before);
  };
  const ErrorCode invalid = ErrorCode::invalid_argument, unsupported = ErrorCode::unsupported;
  expect_refused(invalid, "shared.w2.batch", "is 17, must be in 1..16",
                 [](MoeArguments& x) { x.shared->w2.batch = 17; });
  expect_refused(invalid, "shared.w13.batch", "is 2, must be 1, the experts of shared.w2",
                 [](MoeArguments& x) { x.shared->w2.batch = 1; });
  expect_refused(invalid, "shared.w13.k", "is 144, must be 160, the k of x",
                 [](MoeArguments& x) { x.shared->w13.k = 144; });
  expect_refused(invalid, "shared.w2.rows", "is 96, must be 160, the k of x",
                 [](MoeArguments& x) { x.shared->w2.rows = 96; });
  expect_refused(invalid, "shared.w13.rows", "is 64, must be 128, twice the k of shared.w2",
                 [](MoeArguments& x) { x.shared->w13.rows = 64; });
  expect_refused(invalid, "shared.w2.values", "is null",
                 [](MoeArguments& x) { x.shared->w2.values = nullptr; });
  expect_refused(invalid, "y.data", "shared.w2.scales",
                 [](MoeArguments& x) { x.shared->w2.scales = x.y.data; });
  Random other(3);
  LayerProblem fp4(other, {.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .shared = 2});
  expect_refused(unsupported, "shared.w13.recipe", "is bf16 with activations in fp8_1x128",
                 [&](MoeArguments& x) {
                   x.shared->w13.recipe = Recipe::bf16;
                   x.shared->w13.value_row_stride = 0;
                   x.shared->w13.value_batch_stride = 0;
                   x.shared->w13.scales = nullptr;
                 });
}
TEST_F(MoeValidateTest, Pointers) {
  x_.ids = nullptr;
  expect_invalid("ids", "is null");
  x_ = problem_.arguments();
  x_.w2_bias = reinterpret_cast<const char*>(x_.weights) + 2;
  expect_invalid("w2_bias", "multiple of 4");
  x_ = problem_.arguments();
  x_.w13_bias = x_.weights;
  x_.bias_dtype = Format::e4m3;
  expect_invalid("bias_dtype", "e4m3");
  x_ = problem_.arguments();
  x_.w13_alphas = reinterpret_cast<const float*>(reinterpret_cast<const char*>(x_.weights) + 1);
  expect_invalid("w13_alphas", "multiple of 4");
}
TEST_F(MoeValidateTest, Residuals) {
  x_.residual = x_.y;
  x_.residual.dtype = Format::f16;
  expect_invalid("residual.dtype", "is f16, must be that of y, bf16");
  x_.residual = x_.y;
  x_.residual.row_stride = 200;
  expect_invalid("y.data", "residual.data");
}
TEST_F(MoeValidateTest, Overlaps) {
  x_.weights = static_cast<const float*>(x_.y.data);
  expect_invalid("y.data", "weights");
  x_ = problem_.arguments();
  x_.y.data = const_cast<void*>(x_.x.values);
  expect_invalid("y.data", "x.values");
}
TEST_F(MoeValidateTest, AnyOrder) {
  x_.deterministic = false;
  EXPECT_NO_THROW(moe(x_));
  x_.batch_invariant = true;
  expect_invalid("deterministic", "is false, must be true with batch_invariant");
}
TEST_F(MoeValidateTest, Options) {
  expect_error(ErrorCode::invalid_argument, "options.threads", "-1", {.threads = -1});
  expect_error(ErrorCode::invalid_argument, "options.workspace_limit", "is 0",
               {.workspace_limit = 0});
}

TEST(MoeApartTest, GatesAndUps) {
  Random random(2);
  LayerProblem problem(random, {.apart = true});
  MoeArguments x = problem.arguments();
  const auto argument_of = [&] {
    try {
      moe(x);
    } catch (const Error& error) {
      return error.argument();
    }
    return std::string("none");
  };
  EXPECT_EQ(argument_of(), "none");
  x.transform = Swiglu{GateOrder::gate_first, 64};
  EXPECT_EQ(argument_of(), "transform.group");
  x = problem.arguments();
  x.w13.value_batch_stride += 16;
  x.w13.batch = 8;
  EXPECT_EQ(argument_of(), "w13.value_batch_stride");
  Random other(3);
  const Recipe e5m2 = Recipe::fp8_tensor_e5m2;  // no recipe has scales of rows for its elements
  LayerProblem of_e5m2(other, {.w13 = e5m2, .apart = true});
  x = of_e5m2.arguments();
  EXPECT_EQ(argument_of(), "w13.recipe");
  Random again(4);
  LayerProblem of_nv(again, {.w13 = Recipe::nvfp4, .w2 = Recipe::nvfp4, .apart = true});
  x = of_nv.arguments();
  x.w13.tensor_scale_batch_stride = 1;
  EXPECT_EQ(argument_of(), "w13.tensor_scale_batch_stride");
}

}  // namespace
}  // namespace blockscale
