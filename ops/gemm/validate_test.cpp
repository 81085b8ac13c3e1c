// Every argument that gemm refuses, by name, and that nothing is written when it does.
#include "ops/gemm/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

constexpr std::int64_t kM = 4;
constexpr std::int64_t kN = 6;
constexpr std::int64_t kK = 32;

/// A valid GEMM (batch 2, NVFP4 x NVFP4, C and bias) that each test spoils in one way.
class ValidateTest : public testing::Test {
 protected:
  ValidateTest() {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = {d_.data(), Format::f32, kM, kN, 0, 2, 0};
    x_.c = {c_.data(), Format::f32, kM, kN, 0, 2, 0};
    x_.beta = 1.0f;
    x_.bias = bias_.data();
  }

  void expect_error(ErrorCode code, const char* argument, const char* text,
                    const GemmOptions& options = {}) {
    test::expect_error(code, argument, text, [&] { gemm(x_, options); });
    EXPECT_THAT(d_, testing::Each(poison()));
  }
  void expect_invalid(const char* argument, const char* text) {
    expect_error(ErrorCode::invalid_argument, argument, text);
  }
  static float poison() { return bit_cast<float>(0x3C3C3C3Cu); }

  ScaledTensor a_{Recipe::nvfp4, kM, kK, ScaleLayout::row_major, 2};
  ScaledTensor b_{Recipe::nvfp4, kN, kK, ScaleLayout::swizzled_128x4, 2};
  std::vector<float> d_ = std::vector<float>(2 * kM * kN, poison());
  std::vector<float> c_ = std::vector<float>(2 * kM * kN, 1.0f);
  std::vector<float> bias_ = std::vector<float>(kN, 1.0f);
  GemmArguments x_;
};

TEST_F(ValidateTest, AcceptsTheValidOne) {
  EXPECT_NO_THROW(gemm(x_));
  EXPECT_THAT(d_, testing::Each(2.0f));
}

TEST_F(ValidateTest, ChecksEachViewAndNamesItsField) {
  x_.a.values = nullptr;
  expect_invalid("a.values", "null");
}
TEST_F(ValidateTest, NullScales) {
  x_.b.scales = nullptr;
  expect_invalid("b.scales", "null");
}
TEST_F(ValidateTest, NullD) {
  x_.d.data = nullptr;
  expect_invalid("d.data", "null");
}
TEST_F(ValidateTest, NullCWithBeta) {
  x_.c.data = nullptr;
  expect_invalid("c.data", "null");
  x_.beta = 0;
  EXPECT_NO_THROW(gemm(x_));
}
TEST_F(ValidateTest, NegativeRows) {
  x_.a.rows = -1;
  expect_invalid("a.rows", "-1");
}
TEST_F(ValidateTest, OverflowingSize) {
  x_.b.rows = std::int64_t{1} << 56;
  expect_invalid("b.rows", "2^57");
}
TEST_F(ValidateTest, KNoMultipleOfTheBlock) {
  x_.a.k = 24;
  expect_invalid("a.k", "multiple of 16");
}
TEST_F(ValidateTest, ShortRowStride) {
  x_.a.value_row_stride = 15;
  expect_invalid("a.value_row_stride", "at least 16");
}
TEST_F(ValidateTest, ShortOutputStride) {
  x_.d.row_stride = kN - 1;
  expect_invalid("d.row_stride", "at least 6");
}
TEST_F(ValidateTest, WrongScaleStride) {
  x_.b.scale_leading_stride = 7;
  expect_invalid("b.scale_leading_stride", "swizzled_128x4");
}
TEST_F(ValidateTest, WrongScaleLayout) {
  ScaledTensor fp8(Recipe::fp8_1x128, kM, kK, ScaleLayout::row_major, 2);
  x_.a = fp8.view();
  x_.a.layout = ScaleLayout::swizzled_128x4;
  expect_invalid("a.layout", "swizzled_128x4");
}
TEST_F(ValidateTest, TensorScaleOfARecipeWithoutOne) {
  ScaledTensor mx(Recipe::mxfp8_e4m3, kM, kK, ScaleLayout::row_major, 2);
  const float one = 1.0f;
  x_.a = mx.view();
  x_.a.tensor_scale = &one;
  expect_invalid("a.tensor_scale", "has none");
}
TEST_F(ValidateTest, DifferentK) {
  ScaledTensor b(Recipe::nvfp4, kN, kK + 16, ScaleLayout::row_major, 2);
  x_.b = b.view();
  expect_invalid("b.k", "is 48, must be 32");
}
TEST_F(ValidateTest, DifferentRows) {
  x_.d.rows = kM - 1;
  expect_invalid("d.rows", "is 3, must be 4");
}
TEST_F(ValidateTest, DifferentColumns) {
  x_.d.columns = kN - 1;
  expect_invalid("d.columns", "is 5, must be 6");
}
TEST_F(ValidateTest, DifferentRowsOfC) {
  x_.c.rows = kM - 1;
  expect_invalid("c.rows", "is 3, must be 4");
}
TEST_F(ValidateTest, DifferentColumnsOfC) {
  x_.c.columns = kN - 1;
  expect_invalid("c.columns", "is 5, must be 6");
}
TEST_F(ValidateTest, BatchThatDoesNotBroadcast) {
  ScaledTensor a(Recipe::nvfp4, kM, kK, ScaleLayout::row_major, 3);
  x_.a = a.view();
  expect_invalid("a.batch", "is 3, must be 2");
}
TEST_F(ValidateTest, BatchOfBThatDoesNotBroadcast) {
  ScaledTensor b(Recipe::nvfp4, kN, kK, ScaleLayout::row_major, 3);
  x_.b = b.view();
  expect_invalid("b.batch", "is 3, must be 2");
}
TEST_F(ValidateTest, BatchOfCThatDoesNotBroadcast) {
  std::vector<float> c(3 * kM * kN);
  x_.c = {c.data(), Format::f32, kM, kN, 0, 3, 0};
  expect_invalid("c.batch", "is 3, must be 2");
}
TEST_F(ValidateTest, DoesNotBroadcast) {
  x_.d.batch = 1;
  expect_invalid("a.batch", "is 2, must be 1");
}
TEST_F(ValidateTest, DtypeOfD) {
  x_.d.dtype = Format::e4m3;
  expect_invalid("d.dtype", "e4m3, must be f32, f16 or bf16");
}
TEST_F(ValidateTest, DtypeOfBias) {
  x_.bias_dtype = Format::e5m2;
  expect_invalid("bias_dtype", "e5m2, must be f32, f16 or bf16");
  x_.bias_dtype = static_cast<Format>(77);
  expect_invalid("bias_dtype", "77");
}
TEST_F(ValidateTest, MisalignedBias) {
  x_.bias = reinterpret_cast<const char*>(bias_.data()) + 2;
  expect_invalid("bias", "multiple of 4");
}
TEST_F(ValidateTest, NegativeThreads) {
  expect_error(ErrorCode::invalid_argument, "options.threads", "-1", {-1});
}
TEST_F(ValidateTest, UnknownRecipe) {
  x_.b.recipe = static_cast<Recipe>(200);
  expect_invalid("b.recipe", "200");
}

TEST_F(ValidateTest, UnsupportedPairNamesBoth) {
  ScaledTensor a(Recipe::mxfp4, kM, kK, ScaleLayout::row_major, 2);
  x_.a = a.view();
  expect_error(ErrorCode::unsupported, "b.recipe", "nvfp4 with a.recipe mxfp4");
}

TEST(GemmSupports, ThePairsOfTheDocument) {
  const auto fp8_block = [](Recipe r) {
    const RecipeTraits& t = recipe_traits(r);
    return t.family == Family::fp8 && t.block_k == 128;
  };
  const auto mxfp8 = [](Recipe r) { return r == Recipe::mxfp8_e4m3 || r == Recipe::mxfp8_e5m2; };
  const auto mx_small = [](Recipe r) {
    return r == Recipe::mxfp6_e2m3 || r == Recipe::mxfp6_e3m2 || r == Recipe::mxfp4;
  };
  const auto fp8_tensor = [](Recipe r) {
    return r == Recipe::fp8_tensor || r == Recipe::fp8_tensor_e5m2;
  };
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      const Recipe ra = a.recipe;
      const Recipe rb = b.recipe;
      const bool expected =
          ra == rb || is_plain(ra) || (fp8_block(ra) && fp8_block(rb)) ||
          (fp8_block(ra) && (rb == Recipe::fp8_row || fp8_tensor(rb))) ||
          (fp8_tensor(ra) && fp8_tensor(rb)) || (a.family == Family::fp8 && mxfp8(rb)) ||
          ((a.family == Family::fp8 || mxfp8(ra)) && (mx_small(rb) || rb == Recipe::nvfp4));
      EXPECT_EQ(gemm_supports(ra, rb), expected) << a.name << " x " << b.name;
    }
  }
}

TEST_F(ValidateTest, DMayBeC) {
  x_.c = x_.d;
  EXPECT_NO_THROW(gemm(x_));
}
TEST_F(ValidateTest, DOverC) {
  x_.c = x_.d;
  x_.c.data = d_.data() + 1;
  expect_invalid("d.data", "overlaps c.data");
  x_.c.data = d_.data();
  x_.c.row_stride = kN + 1;
  expect_invalid("d.data", "overlaps c.data");
  x_.c.row_stride = 0;
  x_.c.dtype = Format::bf16;
  expect_invalid("d.data", "overlaps c.data");
  x_.c.dtype = Format::f32;
  x_.c.batch = 1;  // the second matrix of D would read what the first wrote
  expect_invalid("d.data", "overlaps c.data");
  x_.beta = 0;  // C is not read
  EXPECT_NO_THROW(gemm(x_));
}
TEST_F(ValidateTest, DOverTheOperands) {
  x_.a.values = d_.data() + 2 * kM * kN - 1;
  expect_invalid("d.data", "overlaps a.values");
  x_.a = a_.view();
  x_.a.scales = d_.data();
  expect_invalid("d.data", "overlaps a.scales");
  x_.a = a_.view();
  x_.a.tensor_scale = d_.data() + kN;
  expect_invalid("d.data", "overlaps a.tensor_scale");
  x_.a = a_.view();
  x_.b.values = d_.data();
  expect_invalid("d.data", "overlaps b.values");
  x_.b = b_.view();
  x_.b.scales = d_.data();
  expect_invalid("d.data", "overlaps b.scales");
  x_.b = b_.view();
  x_.b.tensor_scale = d_.data();
  expect_invalid("d.data", "overlaps b.tensor_scale");
}
TEST_F(ValidateTest, DOverBias) {
  x_.bias = d_.data() + 2 * kM * kN - 1;
  expect_invalid("d.data", "overlaps bias");
}
TEST_F(ValidateTest, DAndCMayShareRowsOfOneBuffer) {
  // D and C are the left and the right half of the same rows.
  std::vector<float> rows(2 * kM * 2 * kN, 1.0f);
  x_.d = {rows.data(), Format::f32, kM, kN, 2 * kN, 2, 0};
  x_.c = {rows.data() + kN, Format::f32, kM, kN, 2 * kN, 2, 0};
  EXPECT_NO_THROW(gemm(x_));
  x_.c.data = rows.data() + kN - 1;
  expect_invalid("d.data", "overlaps c.data");
}

}  // namespace
}  // namespace blockscale
