// check_groups, and check_grouped_gemm: it accepts the library's results and rejects those of wrong
// groups, scales and rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/grouped_gemm/test/grouped_problem.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::GroupedProblem;
using test::InputFamily;
using test::Random;
using test::TestMatrix;

constexpr std::int64_t kM = 40, kN = 24, kK = 256, kGroups = 4;

struct Pair {
  Recipe a, b;
};
constexpr Pair kPairs[] = {{Recipe::bf16, Recipe::nvfp4},
                           {Recipe::fp8_1x128, Recipe::fp8_128x128},
                           {Recipe::mxfp8_e4m3, Recipe::mxfp4},
                           {Recipe::nvfp4, Recipe::nvfp4}};

/// A grouped product and its D.
class Checked {
 public:
  explicit Checked(const Pair& pair)
      : problem_(random_, pair.a, pair.b, {kGroups, kM, kN, kK}, InputFamily::normal) {
    problem_.set_offsets({0, 13, 13, 30, 40});
    problem_.use_factors();
    problem_.use_bias();
    x().d = d_.view();
  }
  GroupedGemmArguments& x() { return problem_.x(); }
  GroupedProblem& problem() { return problem_; }
  GemmCheck check(std::int64_t samples = kM * kN) { return check_grouped_gemm(x(), samples); }

 private:
  Random random_{1};
  GroupedProblem problem_;
  TestMatrix d_{Format::f32, kM, kN};
};

TEST(CheckGroupedGemm, AcceptsTheLibrarysResults) {
  for (const Pair& pair : kPairs) {
    Checked c(pair);
    grouped_gemm(c.x());
    const GemmCheck result = c.check();
    EXPECT_TRUE(result.passed()) << recipe_traits(pair.a).name << result.of_usual;
    EXPECT_EQ(result.elements, kM * kN);
    EXPECT_GT(result.proven_error, 0);
    EXPECT_EQ(c.check(100).elements, 100);
    EXPECT_TRUE(c.check(100).passed());
  }
}

TEST(CheckGroupedGemm, LooksAtRowsOfGroupsOnly) {
  for (const bool is_masked : {false, true}) {
    Random random(2);
    test::OperandOptions of_a;
    of_a.batch = is_masked ? kGroups : 1;
    GroupedProblem problem(random, Recipe::nvfp4, Recipe::nvfp4, {kGroups, kM, kN, 64},
                           InputFamily::normal, of_a);
    TestMatrix d(Format::bf16, kM, kN, of_a.batch);  // poison is no product
    GroupedGemmArguments& x = problem.x();
    if (!is_masked) problem.set_offsets({30, 2, 8, 20});
    problem.set_lengths({10, 3, 0, 7});
    x.d = d.view();
    grouped_gemm(x);
    const GemmCheck result = check_grouped_gemm(x, 100'000);
    EXPECT_TRUE(result.passed());
    EXPECT_EQ(result.elements, 20 * kN);
  }
}

TEST(CheckGroupedGemm, FollowsAnIndex) {
  Checked c(kPairs[1]);
  const std::vector<std::int32_t> index = {5, 3, -1, 39, 39, 0};
  TestMatrix d(Format::f32, 6, kN);
  c.problem().set_offsets({0, 2, 2, 5, 6});
  c.x().index = index.data();
  c.x().rows = 6;
  c.x().d = d.view();
  grouped_gemm(c.x());
  EXPECT_TRUE(c.check().passed());
  const std::vector<std::int32_t> wrong = {5, 3, -1, 39, 38, 0};
  c.x().index = wrong.data();
  EXPECT_FALSE(c.check().passed());
}

TEST(CheckGroupedGemm, RejectsAnotherGroupsB) {
  for (const Pair& pair : kPairs) {
    Checked c(pair);
    c.problem().set_offsets({0, 13, 14, 30, 40});  // group 1 has the row of another
    grouped_gemm(c.x());
    c.problem().set_offsets({0, 13, 13, 30, 40});
    EXPECT_FALSE(c.check().passed()) << recipe_traits(pair.a).name;
  }
}

/// Gives the first scale that differs from its neighbour along k that one.
void take_neighbours_scale(test::TestOperand& operand) {
  const MutableScaledTensorView x = operand.mutable_view();
  const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  auto* scale = static_cast<std::uint8_t*>(x.scales);
  while (std::equal(scale, scale + size, scale + size)) scale += size;
  std::copy(scale + size, scale + 2 * size, scale);
}

TEST(CheckGroupedGemm, RejectsANeighboursScale) {
  for (const Pair& pair : kPairs) {
    Checked c(pair);
    grouped_gemm(c.x());
    // D stays what the unchanged operands give; the reference sees one scale replaced.
    take_neighbours_scale(is_plain(pair.a) ? c.problem().b() : c.problem().a());
    EXPECT_FALSE(c.check().passed()) << recipe_traits(pair.a).name;
  }
}

TEST(CheckGroupedGemm, RejectsRowsThatAreShiftedByOne) {
  for (const Pair& pair : kPairs) {
    Checked c(pair);
    grouped_gemm(c.x());
    auto* const d = static_cast<float*>(c.x().d.data);
    std::memmove(d + 14 * kN, d + 13 * kN, 16 * kN * sizeof(float));
    EXPECT_FALSE(c.check().passed()) << recipe_traits(pair.a).name;
  }
}

TEST(CheckGroupedGemm, RejectsAnotherGroupsFactorAndBias) {
  Checked c(kPairs[3]);
  grouped_gemm(c.x());
  const auto* const factors = c.x().alpha_factors;
  std::vector<float> wrong(factors, factors + kGroups);
  wrong[3] = wrong[2];
  c.x().alpha_factors = wrong.data();
  EXPECT_FALSE(c.check().passed());
  c.x().alpha_factors = factors;
  EXPECT_TRUE(c.check().passed());
  const auto* const bias = static_cast<const float*>(c.x().bias);
  std::vector<float> of_neighbour(bias, bias + kGroups * kN);
  std::copy_n(bias, kN, of_neighbour.begin() + 2 * kN);
  c.x().bias = of_neighbour.data();
  EXPECT_FALSE(c.check().passed());
}

TEST(CheckGroupedGemm, RefusesWhatHasNoBound) {
  Checked c(kPairs[0]);
  test::expect_invalid("samples", "is 0, must be at least 1", [&] { (void)c.check(0); });
  const auto refuses = [&](const char* argument) {
    test::expect_error(ErrorCode::unsupported, argument, "is given, must not be",
                       [&] { (void)c.check(); });
  };
  c.x().transform = Gelu{};
  refuses("transform");
  c.x().transform = Identity{};
  const std::vector<std::int32_t> destinations(kM);
  c.x().destinations = destinations.data();
  c.x().rows = kM;
  refuses("destinations");
  ScaledTensor result(Recipe::mxfp8_e4m3, kM, 32);
  c.x().quantized = {result.view()};
  refuses("quantized");
}

class CheckGroups : public testing::Test {
 protected:
  void expect_invalid(const char* argument, const char* text) {
    test::expect_invalid(argument, text, [&] { check_groups(c_.x()); });
  }
  Checked c_{kPairs[0]};
};

TEST_F(CheckGroups, AcceptsWhatIsInOrder) {
  EXPECT_NO_THROW(check_groups(c_.x()));
  c_.problem().set_offsets({20, 0, 40, 10});
  c_.problem().set_lengths({20, 10, 0, 10});
  EXPECT_NO_THROW(check_groups(c_.x()));
}

TEST_F(CheckGroups, Offsets) {
  c_.problem().set_offsets({0, 13, 12, 30, 40});
  expect_invalid("offsets", "descends from 13 to 12 at the end of group 1");
  c_.problem().set_offsets({-1, 13, 13, 30, 40});
  expect_invalid("offsets", "is -1 for group 0, must be in 0..40");
  c_.problem().set_offsets({0, 13, 13, 30, 41});
  expect_invalid("offsets", "is 41 for group 4, must be in 0..40");
}

TEST_F(CheckGroups, Lengths) {
  c_.problem().set_lengths({1, -1, 1, 1});
  expect_invalid("lengths", "is -1 for group 1, must be in 0..27");
  c_.problem().set_lengths({1, 1, 1, 11});
  expect_invalid("lengths", "is 11 for group 3, must be in 0..10");
  c_.problem().set_lengths({14, 0, 1, 10});
  expect_invalid("lengths", "gives row 13 to groups 0 and 2");
}

TEST_F(CheckGroups, LengthsOfMaskedGroups) {
  Random random(3);
  test::OperandOptions of_a;
  of_a.batch = kGroups;
  GroupedProblem problem(random, Recipe::bf16, Recipe::bf16, {kGroups, kM, kN, 16},
                         InputFamily::normal, of_a);
  TestMatrix d(Format::f32, kM, kN, kGroups);
  problem.x().d = d.view();
  problem.set_lengths({40, 0, 40, 40});
  EXPECT_NO_THROW(check_groups(problem.x()));
  problem.set_lengths({40, 0, 41, 40});
  test::expect_invalid("lengths", "is 41 for group 2, must be in 0..40",
                       [&] { check_groups(problem.x()); });
}

TEST_F(CheckGroups, IndexAndDestinations) {
  std::vector<std::int32_t> index(kM, -5), destinations(kM, -1);
  c_.x().index = index.data();
  c_.x().destinations = destinations.data();
  c_.x().rows = kM;
  EXPECT_NO_THROW(check_groups(c_.x()));
  index[29] = kM;
  expect_invalid("index", "is 40 for row 29, must be less than 40, the rows of a");
  index[29] = kM - 1;
  destinations[3] = std::numeric_limits<std::int32_t>::max();
  expect_invalid("destinations", "for row 3, must be less than 40, the rows of d");
}

}  // namespace
}  // namespace blockscale
