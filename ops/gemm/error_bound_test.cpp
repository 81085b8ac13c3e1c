// The committed error bounds of the CPU: measured over 10^7 elements, tight, and the ones that the
// docs show. (proven_error_test.cpp has those that are proven.)
#include "ops/gemm/error_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "blockscale/system.h"
#include "ops/gemm/cpu/path.h"
#include "tests/gemm_problem.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using gemm_detail::kUsualErrors;
using gemm_detail::UsualError;
using test::Random;

constexpr test::InputFamily kFamilies[] = {test::InputFamily::normal, test::InputFamily::positive,
                                           test::InputFamily::adversarial};

/// The largest parts of the usual and of the proven error that errors are.
struct Shares {
  double usual = 0;
  double proven = 0;
};

/// Of `family` over products of random pairs, in all at least `elements` of D. D is f32, where
/// rounding the result hides least. K covers one slab, less and more.
Shares largest_shares(test::InputFamily family, std::int64_t elements, Random& random) {
  std::vector<std::pair<Recipe, Recipe>> pairs;
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      if (gemm_supports(a.recipe, b.recipe)) pairs.emplace_back(a.recipe, b.recipe);
    }
  }
  const gemm_detail::GemmPath path = gemm_detail::cpu_path();
  Shares largest;
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
    const test::ErrorReport report = test::compare(x, gemm_detail::usual_error(path));
    largest.usual = std::max(largest.usual, report.largest_share);
    const double proven = gemm_detail::proven_error(path, recipe_a, recipe_b, k);
    largest.proven = std::max(largest.proven, report.largest_ratio / proven);
    seen += m * n;
  }
  return largest;
}

/// body(entry) for each instruction set, in use meanwhile, that this machine has.
template <class Body>
void for_each_target(const Body& body) {
  for (const std::int64_t target : test::product_targets()) {
    if (!test::has_target(target)) continue;
    const test::UseSimdTarget use(target);
    SCOPED_TRACE(test::target_name(target));
    body(kUsualErrors[static_cast<std::size_t>(gemm_detail::cpu_path())],
         test::target_name(target));
  }
}

/// Prints what error_bound.h commits: run with --gtest_also_run_disabled_tests (minutes).
TEST(ErrorBound, DISABLED_Measure) {
  for_each_target([](const UsualError& entry, const std::string& target) {
    for (const test::InputFamily family : kFamilies) {
      Random random(7);
      const Shares shares = largest_shares(family, 10'000'000, random);
      std::printf("%s (%s), family %d: %.2f of usual, %.4f of proven\n", target.c_str(),
                  entry.path_name, static_cast<int>(family), shares.usual, shares.proven);
      std::fflush(stdout);
    }
  });
}

TEST(ErrorBound, HoldsOverFreshInputs) {
  for_each_target([](const UsualError&, const std::string&) {
    for (const test::InputFamily family : kFamilies) {
      Random random(8);
      const Shares shares = largest_shares(family, 100'000, random);
      EXPECT_LE(shares.usual, 1) << static_cast<int>(family);
      EXPECT_LE(shares.proven, 1) << static_cast<int>(family);
    }
  });
}

TEST(ErrorBound, UsualErrorsAreAtMostFourTimesWhatWasMeasured) {
  for (const UsualError& entry : kUsualErrors) {
    EXPECT_LE(entry.measured, 1) << entry.path_name;
    EXPECT_GE(entry.measured, 0.25) << entry.path_name;
    EXPECT_EQ(&entry, &kUsualErrors[static_cast<std::size_t>(entry.path)]);
  }
}

TEST(ErrorBound, LimitsFollowCancellation) {
  const gemm_detail::ErrorLimit limit = {2, 10};
  EXPECT_EQ(limit({0, 4}), 2);
  EXPECT_EQ(limit({-4, 4}), 12);
  EXPECT_EQ(limit({0, 0}), 2);  // no products
  EXPECT_EQ(limit({std::numeric_limits<double>::infinity(), 1}), 2);
}

TEST(ErrorBound, IsTheOneThatTheDocsShow) {
  std::ifstream file(std::string(BLOCKSCALE_SOURCE_DIR) + "/docs/numerics.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const UsualError& entry : kUsualErrors) {
    char row[128];
    std::snprintf(row, sizeof(row), "| %s | %.0f | %.0f | %.2f |\n", entry.path_name,
                  entry.limit.cancelling, entry.limit.same_sign, entry.measured);
    EXPECT_NE(text.str().find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace blockscale
