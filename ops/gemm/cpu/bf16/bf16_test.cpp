// Products in bf16 pairs (15 rows of A or more) against the float64 reference: panels of every
// height, several slabs and spans of k, and what bf16 or dpbf16ps would spoil. Where the CPU or the
// instruction set has no such path, the same products go another way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "blockscale/system.h"
#include "ops/gemm/cpu/path.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::InputFamily;
using test::Random;
using test::TestMatrix;
using test::TestOperand;
using test::uniform;

constexpr InputFamily kFamilies[] = {InputFamily::normal, InputFamily::positive,
                                     InputFamily::adversarial};

class Bf16GemmTest : public test::OnSimdTarget {
 protected:
  static bool has_pairs() {
#if defined(__x86_64__)
    return simd_target() == "AVX3_DL" && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
  }
};

/// That one product keeps the bound.
void check(const TestOperand& a, const TestOperand& b, Format dtype, float alpha = 1.0f,
           const void* bias = nullptr) {
  TestMatrix d(dtype, a.view().rows, b.view().rows, 1, 3);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.d = d.view();
  x.alpha = alpha;
  x.bias = bias;
  gemm(x);
  const test::ErrorReport report =
      test::compare(x, gemm_detail::usual_error(gemm_detail::cpu_path()));
  EXPECT_EQ(report.violations, 0) << describe_gemm(x) << x.d.rows << "x" << x.d.columns << "x"
                                  << x.a.k << ", largest ratio " << report.largest_ratio;
  EXPECT_TRUE(d.is_poison_intact());
}

TEST_P(Bf16GemmTest, PanelsOfEveryHeight) {
  Random random(21);
  for (const RecipeTraits& b : kRecipes) {
    if (is_plain(b.recipe)) continue;
    for (const Recipe a : {Recipe::bf16, b.recipe}) {
      for (const std::int64_t m : {5, 8, 9, 16, 17, 32, 33, 41, 71}) {
        if (!tries_all() && !test::chance(random, 0.1)) continue;
        for (const InputFamily family : kFamilies) {
          const std::int64_t n = uniform(random, 1, 80);
          const std::int64_t k = 32 * uniform(random, 1, 20) - (b.ragged ? 5 : 0);
          check(TestOperand(random, a, m, k, family), TestOperand(random, b.recipe, n, k, family),
                Format::f32);
        }
      }
    }
  }
}

TEST_P(Bf16GemmTest, SeveralSlabsAndSpansOfK) {
  Random random(22);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp6_e3m2, Recipe::mxfp8_e5m2,
                              Recipe::fp8_1x128, Recipe::fp8_row, Recipe::fp8_tensor_e5m2}) {
    for (const std::int64_t k : {1024, 4096, 4096 + 544, 8192 + 32}) {
      if (!tries_all() && !test::chance(random, 0.2)) continue;
      for (const InputFamily family : {InputFamily::normal, InputFamily::positive}) {
        const Recipe a = test::chance(random, 0.5) ? Recipe::bf16 : recipe;
        check(TestOperand(random, a, uniform(random, 5, 40), k, family),
              TestOperand(random, recipe, uniform(random, 1, 20), k, family), Format::bf16);
      }
    }
  }
}

TEST_P(Bf16GemmTest, ThePlanSaysSo) {
  Random random(23);
  for (const Recipe a : {Recipe::bf16, Recipe::f16, Recipe::f32, Recipe::mxfp8_e4m3}) {
    const TestOperand rows(random, a, 15, 64, InputFamily::normal);
    const TestOperand b(random, Recipe::nvfp4, 8, 64, InputFamily::normal);
    TestMatrix d(Format::f32, 15, 8);
    GemmArguments x;
    x.a = rows.view();
    x.b = b.view();
    x.d = d.view();
    const bool holds = a == Recipe::bf16 || a == Recipe::mxfp8_e4m3;
    EXPECT_EQ(describe_gemm(x).find("1 x bf16 pairs") == 0, holds && has_pairs())
        << describe_gemm(x);
    EXPECT_EQ(describe_gemm(x).find("with AMX") != std::string::npos,
              holds && GetParam() == test::kAmx)
        << describe_gemm(x);
    x.batch_invariant = true;
    EXPECT_EQ(describe_gemm(x).find("1 x panels"), 0u) << describe_gemm(x);
  }
}

constexpr std::int64_t kRows = 6;

/// Makes all codes (of 4 or 8 bits) of an operand `code`, and all scales `scale`.
void set_all(TestOperand& x, std::uint32_t code, std::uint32_t scale) {
  const MutableScaledTensorView view = x.mutable_view();
  const RecipeTraits& t = recipe_traits(view.recipe);
  const bool is_fp4 = format_traits(t.element).bits == 4;
  for (std::int64_t r = 0; r < view.rows; ++r) {
    std::fill_n(static_cast<std::uint8_t*>(view.values) + r * view.value_row_stride,
                row_bytes(view.recipe, view.k),
                static_cast<std::uint8_t>(is_fp4 ? code * 0x11 : code));
  }
  const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    for (std::int64_t j = 0; j < grid.columns; ++j) x.set_scale(r, j, scale);
  }
}

/// D in f32 of kRows rows of bf16 elements, all of them `a`, and `b`.
std::vector<float> product(float a, const TestOperand& b, float alpha = 1.0f) {
  const std::int64_t k = b.view().k;
  const std::vector<std::uint16_t> values(static_cast<std::size_t>(kRows * k),
                                          static_cast<std::uint16_t>(encode<Format::bf16>(a)));
  std::vector<float> d(static_cast<std::size_t>(kRows * b.view().rows), -1.0f);
  GemmArguments x;
  x.a = as_scaled({values.data(), Format::bf16, kRows, k});
  x.b = b.view();
  x.d = {d.data(), Format::f32, kRows, b.view().rows};
  x.alpha = alpha;
  gemm(x);
  return d;
}

/// dpbf16ps takes subnormal numbers for zeros: of A, of B with its scale, and of their products.
TEST_P(Bf16GemmTest, SubnormalNumbersAreNotFlushed) {
  Random random(24);
  TestOperand b(random, Recipe::mxfp4, 3, 64, InputFamily::normal);
  set_all(b, 0x2, 127 + 20);  // 1, 2^20
  for (const float d : product(0x1p-133f, b)) EXPECT_EQ(d, 64 * 0x1p-113f);
  set_all(b, 0x1, 0);  // 1/2, 2^-127
  for (const float d : product(0x1p100f, b)) EXPECT_EQ(d, 64 * 0x1p-28f);
  set_all(b, 0x2, 127 - 70);
  for (const float d : product(0x1p-70f, b, 0x1p100f)) EXPECT_EQ(d, 64 * 0x1p-40f);
  set_all(b, 0x7, 252);  // 6, 2^125
  for (const float d : product(0x1p-20f, b)) EXPECT_EQ(d, 64 * 6 * 0x1p105f);
  for (const float d : product(0x1p100f, b, 0x1p-126f)) EXPECT_EQ(d, 64 * 6 * 0x1p99f);
}

TEST_P(Bf16GemmTest, ZerosStayZeros) {
  Random random(25);
  TestOperand mx(random, Recipe::mxfp4, 3, 64, InputFamily::normal);
  for (const std::uint32_t code : {0x0u, 0x8u}) {
    for (const std::uint32_t scale : {40u, 127u, 240u}) {
      set_all(mx, code, scale);
      for (const float d : product(3.0f, mx)) EXPECT_EQ(d, 0.0f);
    }
  }
  // A scale of 0 beside others.
  TestOperand nv(random, Recipe::nvfp4, 3, 64, InputFamily::normal);
  set_all(nv, 0xF, 0x38);  // -6, 1
  for (std::int64_t j = 0; j < 3; ++j) nv.set_scale(1, j, 0);
  const std::vector<float> d = product(2.0f, nv);
  const double factor = 1.0 / double{*nv.view().tensor_scale};
  EXPECT_FLOAT_EQ(d[0], static_cast<float>(-6 * 2 * 64 * factor));
  EXPECT_FLOAT_EQ(d[1], static_cast<float>(-6 * 2 * 16 * factor));
}

/// Codes that are no finite numbers, folded with their scales or not, on either side.
TEST_P(Bf16GemmTest, NanAndInfinityOfFp8Propagate) {
  Random random(26);
  for (const Recipe recipe :
       {Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2, Recipe::fp8_1x128, Recipe::fp8_tensor_e5m2}) {
    const Format element = recipe_traits(recipe).element;
    for (const std::uint32_t code : {format_traits(element).nan_code, 0x7Cu}) {
      TestOperand a(random, recipe, kRows, 96, InputFamily::normal);
      TestOperand b(random, recipe, 5, 96, InputFamily::normal);
      for (TestOperand* x : {&a, &b}) {
        static_cast<std::uint8_t*>(x->mutable_view().values)[96 + 7] =
            static_cast<std::uint8_t>(code);
        TestMatrix d(Format::f32, kRows, 5);
        GemmArguments arguments;
        arguments.a = a.view();
        arguments.b = b.view();
        arguments.d = d.view();
        gemm(arguments);
        EXPECT_EQ(
            test::compare(arguments, gemm_detail::usual_error(gemm_detail::cpu_path())).violations,
            0)
            << recipe_traits(recipe).name << ", code " << code;
      }
    }
  }
}

/// alpha and tensor scales as one f32 factor, and where f32 does not hold it.
TEST_P(Bf16GemmTest, FactorsOfAllSizes) {
  Random random(27);
  const TestOperand a(random, Recipe::nvfp4, 7, 64, InputFamily::normal);
  const TestOperand b(random, Recipe::nvfp4, 70, 64, InputFamily::normal);
  const TestOperand rows(random, Recipe::bf16, 7, 64, InputFamily::normal);
  std::vector<float> bias;
  for (int i = 0; i < 70; ++i) bias.push_back(static_cast<float>(i) - 30.0f);
  for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
    for (const float alpha :
         {0.0f, 0x1p-149f, 0x1p-135f, 0x1p-120f, -3.0f, 0x1p20f, 0x1p124f, 0x1.fffffep127f}) {
      check(a, b, dtype, alpha);
      check(rows, b, dtype, alpha);
      check(rows, b, dtype, alpha, bias.data());
    }
  }
}

TEST_P(Bf16GemmTest, SameBitsForAnyNumberOfThreads) {
  Random random(28);
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e4m3, Recipe::fp8_1x128}) {
    const TestOperand a(random, recipe, 300, 160, InputFamily::normal);
    const TestOperand b(random, recipe, 200, 160, InputFamily::normal);
    std::vector<std::uint8_t> once;
    for (const int threads : {1, 2, 5, 0}) {
      TestMatrix d(Format::f32, 300, 200);
      GemmArguments x;
      x.a = a.view();
      x.b = b.view();
      x.d = d.view();
      gemm(x, {threads});
      if (once.empty()) once = d.bytes();
      EXPECT_EQ(d.bytes(), once) << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Bf16GemmTest, testing::ValuesIn(test::product_targets()),
                         [](const auto& param_info) {
                           return test::target_name(param_info.param);
                         });

}  // namespace
}  // namespace blockscale
