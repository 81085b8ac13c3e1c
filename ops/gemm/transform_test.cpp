// gemm with a transform before a plain result: GELU and SwiGLU of D in f32, then one rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "blockscale/gemm.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/test/transformed.h"
#include "tests/chip.h"
#include "tests/expect_error.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using test::TestMatrix;
using test::TestOperand;

constexpr std::int64_t kM = 7, kN = 256, kK = 96, kBatch = 2;

class TransformedGemm : public testing::TestWithParam<test::TransformCase> {
 protected:
  TransformedGemm() {
    x_.a = a_.view();
    x_.b = b_.view();
    c_.fill(random_, test::InputFamily::normal);
    x_.c = c_.view();
    x_.beta = -0.5f;
    x_.alpha = 0.25f;
    x_.bias = bias_.data();
    for (float& value : bias_) value = static_cast<float>(test::uniform_real(random_, -2, 2));
  }

  /// D in f32 before the transform.
  std::vector<float> before() {
    std::vector<float> d(kBatch * kM * kN);
    GemmArguments plain = x_;
    plain.transform = Identity{};
    plain.d = {d.data(), Format::f32, kM, kN};
    plain.d.batch = kBatch;
    gemm(plain);
    return d;
  }

  test::Random random_{1};
  test::OperandOptions options_{.batch = kBatch};
  TestOperand a_{random_, Recipe::mxfp8_e4m3, kM, kK, test::InputFamily::normal, options_};
  TestOperand b_{random_, Recipe::mxfp4, kN, kK, test::InputFamily::normal, options_};
  TestMatrix c_{Format::bf16, kM, kN, kBatch};
  std::vector<float> bias_ = std::vector<float>(kN);
  GemmArguments x_;
};

TEST_P(TransformedGemm, RoundsTheTransformOfF32Once) {
  const test::TransformCase& c = GetParam();
  const std::vector<float> sums = before();
  x_.transform = c.input;
  for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
    const std::int64_t columns = c.columns(kN);
    TestMatrix d(dtype, kM, columns, kBatch, 3, 5), expected(dtype, kM, columns, kBatch, 3, 5);
    x_.d = d.view();
    gemm(x_, {2});
    EXPECT_TRUE(d.is_poison_intact());
    test::store_transformed(c.input, sums.data(), kN, expected.view());
    EXPECT_EQ(d.bytes(), expected.bytes()) << format_traits(dtype).name;
  }
}

TEST_P(TransformedGemm, KeepsTheErrorBound) {
  const test::TransformCase& c = GetParam();
  x_.transform = c.input;
  TestMatrix d(Format::bf16, kM, c.columns(kN), kBatch);
  x_.d = d.view();
  gemm(x_);
  const double largest =
      test::largest_of_allowed(x_, gemm_detail::usual_error(gemm_detail::cpu_path()));
  EXPECT_LE(largest, 1);
  EXPECT_GT(largest, 0.3);  // most of it is the last rounding
}

TEST_P(TransformedGemm, TakesAWorkspace) {
  const test::TransformCase& c = GetParam();
  x_.transform = c.input;
  TestMatrix d(Format::bf16, kM, c.columns(kN), kBatch);
  TestMatrix again(Format::bf16, kM, c.columns(kN), kBatch);
  x_.d = d.view();
  gemm(x_);
  const std::int64_t bytes = gemm_workspace_bytes(x_, 2);
  EXPECT_GE(bytes, kBatch * kM * kN * 4);
  std::vector<std::uint8_t> memory(static_cast<std::size_t>(bytes) + 64);
  void* const aligned =
      memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  x_.d = again.view();
  gemm(x_, {2, aligned, bytes});
  EXPECT_EQ(d.bytes(), again.bytes());
  test::expect_invalid("options.workspace_bytes", [&] { gemm(x_, {2, aligned, bytes - 1}); });
}

INSTANTIATE_TEST_SUITE_P(Cases, TransformedGemm, testing::ValuesIn(test::kTransformCases),
                         [](const auto& parameter) {
                           std::string name = parameter.param.name;
                           std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
                           return name;
                         });

using TransformOfGemm = TransformedGemm;

TEST_F(TransformOfGemm, MayBeOfCItself) {
  TestMatrix d(Format::bf16, kM, kN, kBatch), apart(Format::bf16, kM, kN, kBatch);
  d.copy_elements_from(c_);
  x_.transform = Gelu{};
  x_.d = apart.view();
  gemm(x_);
  x_.c = x_.d = d.view();
  gemm(x_);
  EXPECT_EQ(d.bytes(), apart.bytes());
}

TEST_F(TransformOfGemm, IsPartOfThePlan) {
  TestMatrix d(Format::bf16, kM, kN / 2, kBatch);
  x_.d = d.view();
  x_.transform = Swiglu{};
  EXPECT_THAT(describe_gemm(x_), testing::HasSubstr(", then swiglu\n"));
}

TEST_F(TransformOfGemm, RefusesWithTheArgumentsName) {
  TestMatrix wide(Format::f32, kM, kN, kBatch), half(Format::f32, kM, kN / 2, kBatch);
  const auto refuses = [&](ErrorCode code, const char* argument, const char* text) {
    test::expect_error(code, argument, text, [&] { gemm(x_); });
  };
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  x_.d = half.view();
  x_.transform = Gelu{};
  refuses(kInvalid, "d.columns", "is 128, must be 256");
  x_.d = wide.view();
  x_.transform = Swiglu{};
  refuses(kInvalid, "b.rows", "is 256, must be 512");
  x_.transform = Swiglu{GateOrder::gate_first, 3};
  x_.d = half.view();
  refuses(kInvalid, "transform.group", "is 3, must be 0");
  x_.transform = Swiglu{GateOrder::gate_first, 0, -7};
  refuses(kInvalid, "transform.limit", "is -7, must be above 0");
  x_.transform = Swiglu{GateOrder::gate_first, 0, 7, 0};
  refuses(kInvalid, "transform.alpha", "is 0, must be finite and not 0");
  x_.transform = Gelu{static_cast<GeluForm>(9)};
  x_.d = wide.view();
  refuses(kInvalid, "transform.form", "is 9");
  x_.transform = RmsNorm{};
  refuses(ErrorCode::unsupported, "transform",
          "is rms_norm, must be Identity, Gelu, Silu or Swiglu");
  x_.transform = Swiglu{};
  x_.d = half.view();
  x_.d.data = const_cast<void*>(x_.c.data);
  x_.d.dtype = Format::bf16;
  refuses(kInvalid, "d.data", "overlaps c.data");
  ScaledTensor result(Recipe::mxfp8_e4m3, kM, kN, ScaleLayout::row_major, kBatch);
  x_.transform = Gelu{};
  x_.quantized = {result.view(), {}};
  refuses(kInvalid, "transform", "is gelu_tanh, must be Identity with `quantized`");
  x_.quantized.reset();
  x_.d = wide.view();
  test::expect_error(ErrorCode::unsupported, "transform", "is given, must not be",
                     [&] { (void)check_gemm(x_); });
}

/// Whatever kernels compute the product: it is planned as one in f32, in the workspace.
TEST(TransformOfCudaGemm, FollowsTheProductInF32) {
  test::Random random(1);
  TestMatrix d(Format::bf16, 8, 128), gated(Format::f16, 8, 64);
  std::vector<float> sums(8 * 128);
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::mxfp6_e2m3}) {  // of Hopper, plain
    const TestOperand a(random, recipe, 8, 128, test::InputFamily::normal);
    const TestOperand b(random, recipe, 128, 128, test::InputFamily::normal);
    GemmArguments x;
    x.a = a.view();
    x.b = b.view();
    x.d = {sums.data(), Format::f32, 8, 128};
    const cuda::Chip chip = test::chip_of(132);
    const std::string product = cuda::describe_gemm(x, chip);
    x.d = d.view();
    x.transform = Gelu{};
    EXPECT_EQ(cuda::describe_gemm(x, chip),
              product +
                  "D in f32 in the workspace, then gelu_tanh: 8 runs of 1024 columns, 8 "
                  "blocks\n");
    EXPECT_EQ(cuda::gemm_workspace_bytes(x), 8 * 128 * 4);
    x.d = gated.view();
    x.transform = Swiglu{};
    EXPECT_THAT(cuda::describe_gemm(x, chip), testing::HasSubstr(", then swiglu: 8 runs"));
    x.d = d.view();
    x.transform = Silu{};
    EXPECT_THAT(cuda::describe_gemm(x, chip), testing::HasSubstr(", then silu: 8 runs"));
    x.transform = Identity{};
    ScaledTensor out(Recipe::mxfp8_e4m3, 8, 128);
    x.quantized = {out.view(), {}};
    x.quantized->options.input = Silu{};
    EXPECT_THAT(cuda::describe_gemm(x, chip),
                testing::HasSubstr("D in f32 in the workspace, then "
                                   "quantize_blocks_mx_e4m3_32_f32_swiglu: "));
  }
}

}  // namespace
}  // namespace blockscale
