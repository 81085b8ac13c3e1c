// The committed error constants: measured over 10^7 elements, tight, and the ones the docs show.
#include "ops/gemm/error_bound.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "blockscale/system.h"
#include "ops/gemm/cpu/path.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using gemm_detail::ErrorConstant;
using gemm_detail::kErrorConstants;
using test::Random;

/// Largest error ratio of `family` over GEMMs of random pairs, in all at least `elements` of D. D
/// is f32, where rounding the result hides least. K covers one slab, less and more.
double largest_ratio(test::InputFamily family, std::int64_t elements, Random& random) {
  std::vector<std::pair<Recipe, Recipe>> pairs;
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      if (gemm_supports(a.recipe, b.recipe)) pairs.emplace_back(a.recipe, b.recipe);
    }
  }
  double largest = 0;
  for (std::int64_t seen = 0; seen < elements;) {
    const auto [recipe_a, recipe_b] =
        pairs[static_cast<std::size_t>(test::uniform(random, 0, std::ssize(pairs) - 1))];
    const std::int64_t m = test::uniform(random, 1, 60);
    const std::int64_t n = test::uniform(random, 1, 400);
    const std::int64_t k = test::chance(random, 0.5) ? 256 : 32 * test::uniform(random, 1, 24);
    const test::TestOperand a(random, recipe_a, m, k, family);
    const test::TestOperand b(random, recipe_b, n, k, family);
    test::TestMatrix d(Format::f32, m, n);
    GemmArguments x;
    x.a = a.view();
    x.b = b.view();
    x.d = d.view();
    gemm(x);
    largest = std::max(largest, test::compare(x, 0).largest_ratio);
    seen += m * n;
  }
  return largest;
}

/// Prints what error_bound.h commits: run with --gtest_also_run_disabled_tests (minutes).
TEST(ErrorConstants, DISABLED_Measure) {
  for (const std::int64_t target : test::product_targets()) {
    if (!test::has_target(target)) continue;
    const test::UseSimdTarget use(target);
    for (const ErrorConstant& entry : kErrorConstants) {
      if (entry.path != gemm_detail::cpu_path()) continue;
      Random random(7);
      const double ratio = largest_ratio(entry.family, 10'000'000, random);
      std::printf("%s, %s: %.2f\n", test::target_name(target).c_str(), entry.family_name, ratio);
      std::fflush(stdout);
    }
  }
}

TEST(ErrorConstants, HoldOverFreshInputs) {
  for (const std::int64_t target : test::product_targets()) {
    if (!test::has_target(target)) continue;
    const test::UseSimdTarget use(target);
    for (const ErrorConstant& entry : kErrorConstants) {
      if (entry.path != gemm_detail::cpu_path()) continue;
      Random random(8);
      EXPECT_LE(largest_ratio(entry.family, 100'000, random), entry.c)
          << test::target_name(target) << ", " << entry.family_name;
    }
  }
}

TEST(ErrorConstants, AreAtMostFourTimesWhatWasMeasured) {
  for (const ErrorConstant& entry : kErrorConstants) {
    EXPECT_GE(entry.c, entry.measured);
    EXPECT_LE(entry.c, 4 * entry.measured) << entry.path_name << ", " << entry.family_name;
  }
}

TEST(ErrorConstants, AreTheOnesThatTheDocsShow) {
  std::ifstream file(std::string(BLOCKSCALE_SOURCE_DIR) + "/docs/numerics.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const ErrorConstant& entry : kErrorConstants) {
    char row[128];
    std::snprintf(row, sizeof(row), "| %s | %s | %.2f | %.0f |\n", entry.path_name,
                  entry.family_name, entry.measured, entry.c);
    EXPECT_NE(text.str().find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace blockscale
