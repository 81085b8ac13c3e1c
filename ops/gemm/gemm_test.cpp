// The CPU GEMM against the float64 reference: every pair, layout and option.
#include "blockscale/gemm.h"

#include <gtest/gtest.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/system.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/error_bound.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::InputFamily;
using test::OperandOptions;
using test::Random;
using test::TestMatrix;
using test::TestOperand;
using test::uniform;

constexpr InputFamily kFamilies[] = {InputFamily::normal, InputFamily::positive,
                                     InputFamily::adversarial};
constexpr Format kDtypes[] = {Format::f32, Format::f16, Format::bf16};

gemm_detail::ErrorLimit usual_error() {
  return gemm_detail::usual_error(gemm_detail::cpu_path());
}

bool allows(Recipe recipe, ScaleLayout layout) {
  if (is_plain(recipe)) return layout == ScaleLayout::row_major;
  return !is_swizzled(layout) || has_swizzled_scales(recipe_traits(recipe));
}

/// k of a test: a multiple of 32, or odd where both recipes allow it.
std::int64_t odd_k(Recipe a, Recipe b, std::int64_t k) {
  return recipe_traits(a).ragged && recipe_traits(b).ragged ? k - 5 : k;
}

OperandOptions random_options(Random& random, Recipe recipe, ScaleLayout layout,
                              std::int64_t batch) {
  const int bits = format_traits(recipe_traits(recipe).element).bits;
  OperandOptions options;
  options.layout = layout;
  options.batch = test::chance(random, 0.3) ? 1 : batch;
  options.extra_row_bytes = uniform(random, 0, 3) * std::max(1, bits / 8);
  options.extra_leading = uniform(random, 0, 3);
  options.extra_batch = uniform(random, 0, 5);
  options.sense =
      test::chance(random, 0.5) ? TensorScaleSense::divisor : TensorScaleSense::multiplier;
  options.tensor_scale = test::chance(random, 0.8);
  options.tensor_scale_each_batch = test::chance(random, 0.5);
  return options;
}

struct Shape {
  std::int64_t m, n, k, batch;
};

/// One GEMM with options drawn from `random`, checked against the bound of its family.
void check_random_gemm(Random& random, Recipe recipe_a, Recipe recipe_b, ScaleLayout layout_a,
                       ScaleLayout layout_b, InputFamily family, const Shape& shape) {
  const TestOperand a(random, recipe_a, shape.m, shape.k, family,
                      random_options(random, recipe_a, layout_a, shape.batch));
  const TestOperand b(random, recipe_b, shape.n, shape.k, family,
                      random_options(random, recipe_b, layout_b, shape.batch));
  const Format dtype = kDtypes[uniform(random, 0, 2)];
  const bool in_place = test::chance(random, 0.3);
  TestMatrix d(dtype, shape.m, shape.n, shape.batch, uniform(random, 0, 7), uniform(random, 0, 3));
  TestMatrix c(in_place ? dtype : kDtypes[uniform(random, 0, 2)], shape.m, shape.n,
               in_place || test::chance(random, 0.5) ? shape.batch : 1, uniform(random, 0, 7));
  TestMatrix bias(kDtypes[uniform(random, 0, 2)], 1, shape.n);
  c.fill(random, InputFamily::normal);
  bias.fill(random, InputFamily::normal);
  TestMatrix gate(kDtypes[uniform(random, 0, 2)], 1, shape.n);
  gate.fill(random, InputFamily::normal);

  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.d = d.view();
  x.alpha = static_cast<float>(test::uniform_real(random, -2, 2));
  x.beta = test::chance(random, 0.5) ? static_cast<float>(test::uniform_real(random, -2, 2)) : 0;
  x.c = c.view();
  if (test::chance(random, 0.5)) {
    x.bias = bias.view().data;
    x.bias_dtype = bias.view().dtype;
  }
  if (test::chance(random, 0.3)) {
    x.gate = gate.view().data;
    x.gate_dtype = gate.view().dtype;
  }
  GemmArguments call = x;
  if (in_place && x.beta != 0) {
    // C lies where D does; `c` keeps what it was.
    d.copy_elements_from(c);
    call.c = d.view();
  }
  gemm(call, {static_cast<int>(uniform(random, 0, 3))});

  const test::ErrorReport report = test::compare(x, usual_error());
  EXPECT_EQ(report.violations, 0) << recipe_traits(recipe_a).name << " ("
                                  << scale_layout_traits(layout_a).name << ") x "
                                  << recipe_traits(recipe_b).name << " ("
                                  << scale_layout_traits(layout_b).name << "), " << shape.m << "x"
                                  << shape.n << "x" << shape.k << ", largest ratio "
                                  << report.largest_ratio;
  EXPECT_TRUE(d.is_poison_intact());
}

/// Every supported pair in every combination of layouts.
template <class Body>
void for_each_pair_and_layout(Body body) {
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      if (!gemm_supports(a.recipe, b.recipe)) continue;
      for (const ScaleLayoutTraits& layout_a : kScaleLayouts) {
        for (const ScaleLayoutTraits& layout_b : kScaleLayouts) {
          if (!allows(a.recipe, layout_a.layout) || !allows(b.recipe, layout_b.layout)) continue;
          body(a.recipe, b.recipe, layout_a.layout, layout_b.layout);
        }
      }
    }
  }
}

class GemmTest : public test::OnSimdTarget {};

TEST_P(GemmTest, EveryPairLayoutAndFamily) {
  Random random(1);
  for_each_pair_and_layout([&](Recipe a, Recipe b, ScaleLayout layout_a, ScaleLayout layout_b) {
    for (const InputFamily family : kFamilies) {
      // All combinations on the instruction set that is used, a tenth of them elsewhere.
      if (!tries_all() && !test::chance(random, 0.1)) continue;
      const std::int64_t k = odd_k(a, b, test::chance(random, 0.3) ? 288 : 96);
      const Shape shape{uniform(random, 1, 20), uniform(random, 1, 40), k, 2};
      check_random_gemm(random, a, b, layout_a, layout_b, family, shape);
    }
  });
}

TEST_P(GemmTest, ShapesAroundEveryTile) {
  Random random(2);
  const std::pair<Recipe, Recipe> pairs[] = {{Recipe::nvfp4, Recipe::nvfp4},
                                             {Recipe::fp8_1x128, Recipe::fp8_128x128},
                                             {Recipe::bf16, Recipe::mxfp6_e2m3}};
  for (const auto& [a, b] : pairs) {
    for (const std::int64_t m : {1, 6, 7, 13, 14, 15, 29, 130}) {
      for (const std::int64_t n : {1, 8, 17, 31, 32, 33, 64, 65, 129}) {
        const std::int64_t k = odd_k(a, b, 32 * uniform(random, 1, 9));
        check_random_gemm(random, a, b, ScaleLayout::row_major, ScaleLayout::mn_major,
                          InputFamily::normal, {m, n, k, 1});
      }
    }
  }
}

/// Rows of B are read as they lie: chunks that are not whole, several spans of k, columns that are
/// no multiple of what is gone through together, every layout of scales.
TEST_P(GemmTest, FewRowsOfEveryRecipe) {
  Random random(12);
  for (const RecipeTraits& b : kRecipes) {
    const Recipe a = is_plain(b.recipe) ? b.recipe : Recipe::bf16;
    for (const ScaleLayoutTraits& layout : kScaleLayouts) {
      if (!allows(b.recipe, layout.layout)) continue;
      for (const InputFamily family : kFamilies) {
        for (const std::int64_t m : {1, 2, 3, 4, 5}) {
          if (!tries_all() && !test::chance(random, 0.3)) continue;
          const std::int64_t n = uniform(random, 1, 70);
          const std::int64_t k = odd_k(a, b.recipe, 32 * uniform(random, 1, 20));
          check_random_gemm(random, a, b.recipe, ScaleLayout::row_major, layout.layout, family,
                            {m, n, k, test::chance(random, 0.2) ? 2 : 1});
        }
      }
      const std::int64_t k = odd_k(a, b.recipe, 32 * uniform(random, 129, 300));
      check_random_gemm(random, a, b.recipe, ScaleLayout::row_major, layout.layout,
                        InputFamily::positive, {uniform(random, 1, 4), 7, k, 1});
    }
  }
}

/// FP4 on both sides: several slabs and spans, tasks of several register tiles, words that are not
/// whole.
TEST_P(GemmTest, Fp4TimesFp4) {
  Random random(14);
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4}) {
    const std::int64_t block = recipe_traits(recipe).block_k;
    for (const ScaleLayoutTraits& layout : kScaleLayouts) {
      for (const InputFamily family : kFamilies) {
        const Shape shapes[] = {{uniform(random, 2, 40), uniform(random, 1, 150), block, 1},
                                {uniform(random, 2, 9), 33, block * uniform(random, 60, 150), 2},
                                {13, 65, 1024 + block, 1}};
        for (const Shape& shape : shapes) {
          check_random_gemm(random, recipe, recipe, layout.layout, layout.layout, family, shape);
        }
      }
    }
    check_random_gemm(random, recipe, recipe, ScaleLayout::row_major, ScaleLayout::mn_major,
                      InputFamily::positive, {3, 17, 8192 + 3 * block, 1});
  }
}

/// Sums of integers are exact: nothing but D's own rounding is allowed.
TEST_P(GemmTest, Fp4BlocksAreSummedExactly) {
  Random random(15);
  TestOperand a(random, Recipe::mxfp4, 7, 1056, InputFamily::normal);
  TestOperand b(random, Recipe::mxfp4, 40, 1056, InputFamily::normal);
  for (TestOperand* x : {&a, &b}) {
    for (std::int64_t row = 0; row < x->view().rows; ++row) {
      for (std::int64_t j = 0; j < 33; ++j) x->set_scale(row, j, 127);
    }
  }
  TestMatrix d(Format::f32, 7, 40);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.d = d.view();
  gemm(x);
  EXPECT_EQ(test::compare(x, {}).violations, 0);
}

/// A block of zeros has the smallest scale, and a huge one beside it must not hide it.
TEST_P(GemmTest, FewRowsWithScalesAtTheEndsOfTheirRange) {
  Random random(13);
  for (const Recipe recipe :
       {Recipe::mxfp4, Recipe::mxfp8_e5m2, Recipe::mxfp6_e3m2, Recipe::fp8_row}) {
    const bool is_f32 = recipe_traits(recipe).scale == Format::f32;
    for (const std::uint32_t scale : {0u, 1u, 20u, 120u, 200u, 240u, 254u}) {
      const TestOperand a(random, Recipe::bf16, 2, 160, InputFamily::normal);
      TestOperand b(random, recipe, 9, 160, InputFamily::normal);
      for (std::int64_t row = 0; row < 9; row += 2) {
        b.set_scale(row, is_f32 ? 0 : row % 5, is_f32 ? scale << 23 : scale);
      }
      TestMatrix d(Format::f32, 2, 9);
      GemmArguments x;
      x.a = a.view();
      x.b = b.view();
      x.d = d.view();
      x.alpha = scale > 127 ? 0x1p-100f : 1.0f;
      gemm(x);
      const test::ErrorReport report = test::compare(x, usual_error());
      EXPECT_EQ(report.violations, 0)
          << recipe_traits(recipe).name << ", scale " << scale << ": " << report.largest_ratio;
    }
  }
}

TEST_P(GemmTest, SeveralBandsOfRows) {
  Random random(3);
  check_random_gemm(random, Recipe::fp8_128x128, Recipe::fp8_1x128, ScaleLayout::row_major,
                    ScaleLayout::mn_major, InputFamily::normal, {1100, 33, 131, 1});
  check_random_gemm(random, Recipe::mxfp8_e4m3, Recipe::mxfp4, ScaleLayout::swizzled_128x4,
                    ScaleLayout::swizzled_8x4, InputFamily::adversarial, {700, 70, 64, 2});
}

/// D as bytes of one GEMM with `threads` threads.
std::vector<std::uint8_t> bytes_of_d(Recipe recipe_a, Recipe recipe_b, const Shape& shape,
                                     int threads) {
  Random random(4);
  OperandOptions options;
  options.batch = shape.batch;
  const TestOperand a(random, recipe_a, shape.m, shape.k, InputFamily::adversarial, options);
  const TestOperand b(random, recipe_b, shape.n, shape.k, InputFamily::adversarial, options);
  TestMatrix d(Format::f32, shape.m, shape.n, shape.batch);
  GemmArguments x;
  x.a = a.view();
  x.b = b.view();
  x.d = d.view();
  gemm(x, {threads});
  return d.bytes();
}

TEST_P(GemmTest, SameBitsForAnyNumberOfThreads) {
  const Shape shapes[] = {{300, 200, 544, 1}, {5, 300, 800, 3}, {1, 1000, 320, 1}};
  for (const Shape& shape : shapes) {
    for (const Recipe recipe_a : {Recipe::mxfp8_e5m2, Recipe::nvfp4}) {
      const auto once = bytes_of_d(recipe_a, Recipe::nvfp4, shape, 1);
      for (const int threads : {1, 2, 3, 5, 0}) {
        EXPECT_EQ(bytes_of_d(recipe_a, Recipe::nvfp4, shape, threads), once) << threads;
      }
    }
  }
}

/// A plain f32 GEMM of one row of A and rows of B, given as values.
std::vector<float> multiply(const std::vector<float>& a, const std::vector<std::vector<float>>& b,
                            float alpha = 1.0f) {
  const std::int64_t k = std::ssize(a);
  std::vector<float> rows;
  for (const auto& row : b) rows.insert(rows.end(), row.begin(), row.end());
  std::vector<float> d(b.size(), -1.0f);
  GemmArguments x;
  x.a = as_scaled({a.data(), Format::f32, 1, k});
  x.b = as_scaled({rows.data(), Format::f32, std::ssize(b), k});
  x.d = {d.data(), Format::f32, 1, std::ssize(b)};
  x.alpha = alpha;
  gemm(x);
  return d;
}

TEST_P(GemmTest, ProductsBeyondF32DoNotOverflowOrVanish) {
  const std::vector<float> huge = {0x1p120f, 3.0f, -0x1p120f, 0x1p-140f};
  const std::vector<float> tiny = {0x1p-100f, 0x1p-149f, 0x1p-130f, 0.0f};
  const std::vector<float> d =
      multiply(huge, {huge, {0x1p-100f, 1.0f, 0x1p-100f, 0.0f}}, 0x1p-130f);
  EXPECT_EQ(d[0], 0x1p111f);       // 2 * 2^240 * 2^-130
  EXPECT_EQ(d[1], 3 * 0x1p-130f);  // the large products cancel exactly
  EXPECT_EQ(multiply(tiny, {tiny}, 0x1p100f)[0], 0x1p-100f);
  EXPECT_EQ(multiply({0x1p-149f}, {{0x1p-149f}}, 0x1p127f)[0], 0.0f);  // 2^-171 rounds to 0
}

TEST_P(GemmTest, CallersFlushToZeroChangesNothing) {
#if defined(__SSE2__)
  const std::vector<float> tiny = {0x1p-100f, 0x1p-149f, -0x1p-130f, 0x1p-60f};
  const std::vector<float> expected = multiply(tiny, {tiny, {1, 2, 3, 0x1p-80f}}, 0x1.8p10f);
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);  // FTZ and DAZ
  const std::vector<float> flushed = multiply(tiny, {tiny, {1, 2, 3, 0x1p-80f}}, 0x1.8p10f);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(after & 0x8040u, 0x8040u);
  EXPECT_EQ(std::memcmp(flushed.data(), expected.data(), expected.size() * sizeof(float)), 0);
  EXPECT_EQ(expected[1], 0x1.8p10f * (0x1p-100f - 3 * 0x1p-130f));
#else
  GTEST_SKIP() << "sets x86's MXCSR";
#endif
}

TEST_P(GemmTest, NanAndInfinityPropagateAsIeee) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(multiply({1, inf, 2}, {{1, 1, 1}})[0], inf);
  EXPECT_EQ(multiply({1, inf, 2}, {{1, -1, 1}})[0], -inf);
  EXPECT_TRUE(std::isnan(multiply({1, inf, 2}, {{1, 0, 1}})[0]));
  EXPECT_TRUE(std::isnan(multiply({inf, inf}, {{1, -1}})[0]));
  EXPECT_TRUE(std::isnan(multiply({1, nan, 2}, {{1, 0, 1}})[0]));
  const std::vector<float> d = multiply({1, 2, 3}, {{1, 1, 1}, {nan, 1, 1}, {1, 1, inf}});
  EXPECT_EQ(d[0], 6.0f);  // a neighbour's NaN stays there
  EXPECT_TRUE(std::isnan(d[1]));
  EXPECT_EQ(d[2], inf);
}

TEST_P(GemmTest, NanScaleSpoilsItsRowOnly) {
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_1x128_ue8m0}) {
    Random random(5);
    TestOperand a(random, recipe, 3, 128, InputFamily::normal);
    const TestOperand b(random, recipe, 4, 128, InputFamily::normal);
    a.set_scale(1, 0, format_traits(recipe_traits(recipe).scale).nan_code);
    float d[12];
    GemmArguments x;
    x.a = a.view();
    x.b = b.view();
    x.d = {d, Format::f32, 3, 4};
    gemm(x);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(d[i]), i / 4 == 1) << i;
    EXPECT_EQ(test::compare(x, usual_error()).violations, 0);
  }
}

TEST_P(GemmTest, BetaZeroReadsNoC) {
  Random random(6);
  const TestOperand a(random, Recipe::mxfp4, 3, 64, InputFamily::normal);
  TestMatrix c(Format::f32, 3, 3);
  TestMatrix d(Format::bf16, 3, 3);
  c.fill_code(0x7FC00000u);
  d.fill_code(0x7FC0u);
  GemmArguments x;
  x.a = a.view();
  x.b = a.view();
  x.c = c.view();
  x.d = d.view();
  gemm(x);
  EXPECT_EQ(test::compare(x, usual_error()).violations, 0);
}

TEST_P(GemmTest, EmptySizes) {
  TestMatrix d(Format::f32, 2, 3);
  TestMatrix c(Format::f32, 2, 3);
  c.fill_code(bit_cast<std::uint32_t>(5.0f));
  GemmArguments x;
  x.a.rows = 2;
  x.b.rows = 3;
  x.d = d.view();
  x.c = c.view();
  x.beta = 2.0f;
  gemm(x);  // K is 0: D = beta * C
  for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<const float*>(x.d.data)[i], 10.0f);
  EXPECT_TRUE(d.is_poison_intact());
  x.beta = 0;
  x.a.rows = x.d.rows = 0;
  const auto before = d.bytes();
  gemm(x);
  EXPECT_EQ(d.bytes(), before);
}

/// D's rounding, for sums that f32 and f64 hold exactly.
TEST_P(GemmTest, RoundsOnceToTheOutputDtype) {
  const auto as_dtype = [](float hi, float lo, Format dtype) {
    // hi comes from C, lo from the product: their sum needs more bits than f32 has.
    const float one = 1;
    std::uint32_t d = 0;
    GemmArguments x;
    x.a = as_scaled({&lo, Format::f32, 1, 1});
    x.b = as_scaled({&one, Format::f32, 1, 1});
    x.d = {&d, dtype, 1, 1};
    x.c = {&hi, Format::f32, 1, 1};
    x.beta = 1;
    gemm(x);
    return d;
  };
  // Ties, and ties with something far below f32's last place beside them.
  EXPECT_EQ(as_dtype(0x1.01p0f, 0, Format::bf16), 0x3F80u);
  EXPECT_EQ(as_dtype(0x1.01p0f, 0x1p-40f, Format::bf16), 0x3F81u);
  EXPECT_EQ(as_dtype(0x1.03p0f, 0, Format::bf16), 0x3F82u);
  EXPECT_EQ(as_dtype(0x1.03p0f, -0x1p-40f, Format::bf16), 0x3F81u);
  EXPECT_EQ(as_dtype(0x1.002p0f, 0, Format::f16), 0x3C00u);
  EXPECT_EQ(as_dtype(0x1.002p0f, 0x1p-40f, Format::f16), 0x3C01u);
  EXPECT_EQ(as_dtype(0x1.8p-24f, 0x1p-60f, Format::f16), 2u);  // subnormals
  EXPECT_EQ(as_dtype(0x1.8p-24f, -0x1p-60f, Format::f16), 1u);
  EXPECT_EQ(as_dtype(0x1p-25f, 0, Format::f16), 0u);
  EXPECT_EQ(as_dtype(0x1p-25f, 0x1p-70f, Format::f16), 1u);
  EXPECT_EQ(as_dtype(0x1.8p-133f, 0, Format::bf16), 2u);
  EXPECT_EQ(as_dtype(0x1.8p-133f, -0x1p-149f, Format::bf16), 1u);
  EXPECT_EQ(as_dtype(-0x1p-140f, 0, Format::bf16), 0x8000u);
  // Overflow begins half a unit above the largest value.
  EXPECT_EQ(as_dtype(65519.0f, 0, Format::f16), 0x7BFFu);
  EXPECT_EQ(as_dtype(65520.0f, 0, Format::f16), 0x7C00u);
  EXPECT_EQ(as_dtype(65520.0f, -0x1p-20f, Format::f16), 0x7BFFu);
  EXPECT_EQ(as_dtype(-0x1.ffp127f, 0, Format::bf16), 0xFF80u);
  EXPECT_EQ(as_dtype(0x1.fffffep127f, 0x1p103f, Format::f32), 0x7F800000u);
  EXPECT_EQ(as_dtype(0x1.fffffep127f, 0x1p102f, Format::f32), 0x7F7FFFFFu);
}

/// That UseSimdTarget reaches the products: the plan follows the instruction set.
TEST_P(GemmTest, RunsOnTheTargetOfTheTest) {
  Random random(16);
  const TestOperand a(random, Recipe::mxfp4, 9, 64, InputFamily::normal);
  TestMatrix d(Format::f32, 9, 9);
  GemmArguments x;
  x.a = x.b = a.view();
  x.d = d.view();
  if (GetParam() != test::kAmx) {
    EXPECT_EQ(simd_target(), hwy::TargetName(GetParam()));
  }
  const bool multiplies_bytes = simd_target() == "AVX3_DL" && GetParam() != test::kAmx;
  EXPECT_EQ(describe_gemm(x).find("1 x integers") == 0, multiplies_bytes) << describe_gemm(x);
}

/// Rows alone, a few of them and all give the same bits, even where some are beyond f32.
TEST_P(GemmTest, BatchInvariantRows) {
  constexpr std::int64_t kM = 70, kN = 77, kK = 1024;
  for (const Recipe recipe : {Recipe::mxfp4, Recipe::mxfp8_e4m3, Recipe::bf16}) {
    Random random(17);
    const TestOperand a(random, recipe, kM, kK, InputFamily::adversarial);
    const TestOperand b(random, Recipe::mxfp4, kN, kK, InputFamily::adversarial);
    std::vector<std::uint8_t> all;
    for (const std::int64_t m : {kM, std::int64_t{1}, std::int64_t{3}, std::int64_t{5}, kM / 2}) {
      TestMatrix d(Format::f32, kM, kN);
      GemmArguments x;
      x.a = a.view();
      x.b = b.view();
      x.d = d.view();
      x.a.rows = x.d.rows = m;
      x.batch_invariant = true;
      gemm(x);
      if (all.empty()) all = d.bytes();
      const auto bytes = static_cast<std::ptrdiff_t>(TestMatrix::kGuard) + m * kN * 4;
      EXPECT_TRUE(std::equal(all.begin(), all.begin() + bytes, d.bytes().begin()))
          << m << " rows of " << recipe_traits(recipe).name;
    }
  }
}

TEST(GemmPlan, IsSaid) {
  const ScaledTensor a(Recipe::mxfp8_e4m3, 16, 512), b(Recipe::mxfp4, 64, 512);
  ScaledTensor d(Recipe::bf16, 16, 64);
  GemmArguments arguments;
  arguments.a = a.view();
  arguments.b = b.view();
  arguments.d = {d.view().values, Format::bf16, 16, 64};
  const std::string plan = describe_gemm(arguments);
  for (const char* part : {"A (mxfp8_e4m3)", "B (mxfp4)", "16 rows", "x 64 of D"}) {
    EXPECT_NE(plan.find(part), std::string::npos) << plan;
  }
  EXPECT_NE(plan.find(simd_target()), std::string::npos) << plan;
  if (simd_target() == "AVX2" || simd_target() == "AVX3" || simd_target() == "AVX3_DL") {
    arguments.a.rows = arguments.d.rows = 4;
    EXPECT_NE(describe_gemm(arguments).find("rows (at most 14"), std::string::npos);
    arguments.a.rows = arguments.d.rows = 16;
  }
  arguments.a = arguments.b;
  arguments.d.rows = 64;
  const std::string of_fp4 = describe_gemm(arguments);
  EXPECT_EQ(of_fp4.starts_with("1 x integers"),
            simd_target() == "AVX3_DL" && of_fp4.find("with AMX") == std::string::npos)
      << of_fp4;
  arguments.d.columns = 65;
  EXPECT_THROW(describe_gemm(arguments), Error);
}

INSTANTIATE_TEST_SUITE_P(Targets, GemmTest, testing::ValuesIn(test::product_targets()),
                         [](const auto& param_info) {
                           return test::target_name(param_info.param);
                         });

}  // namespace
}  // namespace blockscale
