// The CPU's products whose k is divided into groups, against the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/gemm/cpu/path.h"
#include "ops/grouped_gemm/test/k_grouped_reference.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::InputFamily;
using test::OperandOptions;
using test::Random;
using test::TestMatrix;
using test::TestOperand;

struct Pair {
  Recipe a, b;
  ScaleLayout layout = ScaleLayout::row_major;
};
constexpr Pair kPairs[] = {
    {Recipe::bf16, Recipe::bf16},
    {Recipe::fp8_tensor, Recipe::fp8_tensor},
    {Recipe::fp8_row, Recipe::fp8_row},
    {Recipe::fp8_1x128, Recipe::fp8_1x128},
    {Recipe::fp8_1x128, Recipe::fp8_128x128, ScaleLayout::mn_major},
    {Recipe::fp8_1x128_ue8m0, Recipe::fp8_1x128_ue8m0, ScaleLayout::swizzled_128x4},
    {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, ScaleLayout::swizzled_8x4},
    {Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3},
    {Recipe::mxfp4, Recipe::mxfp4, ScaleLayout::swizzled_128x4},
    {Recipe::nvfp4, Recipe::nvfp4, ScaleLayout::swizzled_128x4},
    {Recipe::bf16, Recipe::nvfp4},
};

/// Of the CPU's arithmetic.
double of_usual(const KGroupedGemmArguments& arguments, const test::Rows& a, const test::Rows& b,
                const std::vector<float>& before, int wrong = 0) {
  return test::of_usual(gemm_detail::cpu_path(), arguments, a, b, before, wrong);
}

class KGroupedGemm : public test::OnSimdTarget {};

TEST_P(KGroupedGemm, GroupsBeginAnywhereInABlock) {
  Random random(1);
  const std::vector<std::int32_t> offsets = {1, 30, 30, 129, 130, 301, 576, 640};
  const auto groups = std::ssize(offsets) - 1;
  for (const Pair& pair : kPairs) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
      OperandOptions options;
      const bool has_layout = !is_plain(pair.a);
      if (has_layout) options.layout = pair.layout;
      options.extra_row_bytes = 8;
      const TestOperand a(random, pair.a, 19, 640, family, options);
      const bool is_swizzled_b = has_swizzled_scales(recipe_traits(pair.b));
      if (!has_layout || (is_swizzled(pair.layout) && !is_swizzled_b)) {
        options.layout = ScaleLayout::row_major;
      }
      const TestOperand b(random, pair.b, 70, 640, family, options);
      const test::Rows a_rows = test::rows_of(a.view()), b_rows = test::rows_of(b.view());
      for (const bool adds : {false, true}) {
        TestMatrix d(Format::f32, 19, 70, groups, 2, 3);
        std::vector<float> before(static_cast<std::size_t>(groups * 19 * 70));
        KGroupedGemmArguments x;
        x.a = a.view();
        x.b = b.view();
        x.d = d.view();
        x.offsets = offsets.data();
        x.alpha = -0.75f;
        x.adds = adds;
        if (adds) {
          d.fill(random, InputFamily::normal);
          for (std::int64_t i = 0; i < std::ssize(before); ++i) {
            before[static_cast<std::size_t>(i)] = static_cast<float>(
                gemm_detail::matrix_element(MatrixView(x.d), i / (19 * 70), i / 70 % 19, i % 70));
          }
        }
        k_grouped_gemm(x, {2});
        EXPECT_LE(of_usual(x, a_rows, b_rows, before), 1) << recipe_traits(pair.a).name;
        EXPECT_GT(of_usual(x, a_rows, b_rows, before, 1), 1) << "the test accepts neighbours";
        EXPECT_TRUE(d.is_poison_intact());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KGroupedGemm, testing::ValuesIn(test::product_targets()),
                         [](const auto& param_info) {
                           return test::target_name(param_info.param);
                         });

class KGroupedGemmOfOne : public testing::Test {
 protected:
  KGroupedGemmOfOne() {
    x_.a = a_.view();
    x_.b = b_.view();
  }
  std::vector<float> multiply(const std::vector<std::int32_t>& offsets, int threads = 2) {
    const auto groups = std::ssize(offsets) - 1;
    std::vector<float> d(static_cast<std::size_t>(groups * 5 * 9), 3.0f);
    x_.offsets = offsets.data();
    x_.d = {d.data(), Format::f32, 5, 9};
    x_.d.batch = groups;
    k_grouped_gemm(x_, {threads});
    return d;
  }

  Random random_{2};
  TestOperand a_{random_, Recipe::nvfp4, 5, 96, InputFamily::normal};
  TestOperand b_{random_, Recipe::nvfp4, 9, 96, InputFamily::normal};
  KGroupedGemmArguments x_;
};

TEST_F(KGroupedGemmOfOne, EmptyGroupsAreZeroOrAsTheyWere) {
  EXPECT_EQ(multiply({7, 7, 3}), std::vector<float>(2 * 45, 0.0f));
  x_.adds = true;
  EXPECT_EQ(multiply({7, 7, 3}), std::vector<float>(2 * 45, 3.0f));
  x_.adds = false;
  x_.alpha = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(multiply({96, 96}), std::vector<float>(45, 0.0f));
}

TEST_F(KGroupedGemmOfOne, OffsetsAreCut) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(multiply({-9, kMost}), multiply({0, 96}));
  EXPECT_EQ(multiply({-9, -3, 40, -kMost, 97, kMost}), multiply({0, 0, 40, 0, 96, 96}));
}

TEST_F(KGroupedGemmOfOne, SameBitsForAnyNumberOfThreads) {
  const std::vector<std::int32_t> offsets = {0, 13, 50, 96};
  const std::vector<float> once = multiply(offsets, 1);
  for (const int threads : {2, 5, 0}) EXPECT_EQ(multiply(offsets, threads), once);
}

/// More k than are decoded at once: D is added up.
TEST(KGroupedGemmOfManyK, IsAddedUp) {
  constexpr std::int64_t kM = 5, kN = 3000, kK = 6000;  // 4096 of k at once
  std::vector<std::uint16_t> a(kM * kK), b(kN * kK);
  Random random(3);
  for (std::vector<std::uint16_t>* const x : {&a, &b}) {
    // Small integers: sums in f32 are exact.
    for (std::uint16_t& code : *x) {
      code = static_cast<std::uint16_t>(encode<Format::bf16>(static_cast<float>(random() % 5) - 2));
    }
  }
  const std::vector<std::int32_t> offsets = {50, kK};
  KGroupedGemmArguments x;
  x.a = as_scaled({a.data(), Format::bf16, kM, kK});
  x.b = as_scaled({b.data(), Format::bf16, kN, kK});
  x.offsets = offsets.data();
  for (const bool adds : {false, true}) {
    std::vector<float> d(kM * kN, 8.0f);
    x.d = {d.data(), Format::f32, kM, kN};
    x.adds = adds;
    k_grouped_gemm(x);
    for (int i = 0; i < 50; ++i) {
      const std::int64_t m = test::uniform(random, 0, kM - 1), n = test::uniform(random, 0, kN - 1);
      float sum = adds ? 8.0f : 0.0f;
      for (std::int64_t k = 50; k < kK; ++k) {
        sum += decode<Format::bf16>(a[static_cast<std::size_t>(m * kK + k)]) *
               decode<Format::bf16>(b[static_cast<std::size_t>(n * kK + k)]);
      }
      EXPECT_EQ(d[static_cast<std::size_t>(m * kN + n)], sum) << m << ", " << n;
    }
  }
}

}  // namespace
}  // namespace blockscale
