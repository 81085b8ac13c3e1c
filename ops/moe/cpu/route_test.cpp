// route against a reference in double that is written from its contract, and by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "blockscale/moe.h"
#include "core/sanitizer_test_share.h"
#include "ops/moe/test/routing_problem.h"

namespace blockscale {
namespace {

using test::LogitFamily;
using test::Random;
using test::RouteProblem;
using test::RouteResults;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kNone = -std::numeric_limits<double>::infinity();

RouteResults routed(const RouteProblem& problem, int threads = 1) {
  RouteArguments x = problem.arguments();
  RouteResults results(x);
  results.set(x);
  route(x, threads);
  return results;
}

/// What a token's routing should be, of finite logits, in double.
class Reference {
 public:
  Reference(const RouteProblem& problem, std::int64_t token) : x_(problem.x) {
    std::vector<double> logits;
    for (std::int64_t e = 0; e < x_.logits.columns; ++e) {
      logits.push_back(static_cast<double>(problem.logit(token, e)));
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - largest);
    for (std::size_t e = 0; e < logits.size(); ++e) {
      scores_.push_back(x_.score == RouterScore::softmax ? std::exp(logits[e] - largest) / sum
                                                         : 1 / (1 + std::exp(-logits[e])));
      const double bias = problem.bias().empty() ? 0 : static_cast<double>(problem.bias()[e]);
      choices_.push_back(scores_[e] + bias);
    }
    if (x_.groups > 1) leave_groups();
    ids_ = largest_of(choices_, x_.top_k);
  }

  const std::vector<int>& ids() const { return ids_; }
  /// How far what was chosen is above what was not, or is chosen later: the least of all.
  double gap() const { return gap_; }

  std::vector<double> weights() const {
    double sum = 1e-20;
    for (const int id : ids_) sum += score(id);
    std::vector<double> weights;
    for (const int id : ids_) {
      weights.push_back(score(id) / (x_.renormalize ? sum : 1) * static_cast<double>(x_.scale));
    }
    return weights;
  }

 private:
  double score(int id) const { return scores_[static_cast<std::size_t>(id)]; }

  std::vector<int> largest_of(const std::vector<double>& numbers, int count) {
    std::vector<int> order;
    for (int i = 0; i < static_cast<int>(numbers.size()); ++i) order.push_back(i);
    const auto at = [&](int i) { return numbers[static_cast<std::size_t>(i)]; };
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
    for (std::size_t i = 0; i + 1 < order.size() && i < static_cast<std::size_t>(count); ++i) {
      gap_ = std::min(gap_, at(order[i]) - at(order[i + 1]));
    }
    order.resize(static_cast<std::size_t>(count));
    return order;
  }

  void leave_groups() {
    const auto size = choices_.size() / static_cast<std::size_t>(x_.groups);
    std::vector<double> of_groups;
    for (std::size_t first = 0; first < choices_.size(); first += size) {
      std::vector<double> sorted(choices_.begin() + static_cast<std::ptrdiff_t>(first),
                                 choices_.begin() + static_cast<std::ptrdiff_t>(first + size));
      std::sort(sorted.rbegin(), sorted.rend());
      of_groups.push_back(x_.best_of_group == 2 ? sorted[0] + sorted[1] : sorted[0]);
    }
    // Their order does not matter, but which they are.
    const double gap = gap_;
    const std::vector<int> best = largest_of(of_groups, x_.top_groups);
    gap_ = gap;
    std::sort(of_groups.rbegin(), of_groups.rend());
    const auto chosen = static_cast<std::size_t>(x_.top_groups);
    if (chosen < of_groups.size()) {
      gap_ = std::min(gap_, of_groups[chosen - 1] - of_groups[chosen]);
    }
    for (std::size_t e = 0; e < choices_.size(); ++e) {
      const int group = static_cast<int>(e / size);
      if (std::find(best.begin(), best.end(), group) == best.end()) choices_[e] = kNone;
    }
  }

  const RouteArguments& x_;
  std::vector<double> scores_, choices_;
  std::vector<int> ids_;
  double gap_ = std::numeric_limits<double>::infinity();
};

/// How many tokens were compared: those whose choice is not within what rounding changes.
int check(const RouteProblem& problem) {
  const RouteResults results = routed(problem);
  int compared = 0;
  for (std::int64_t t = 0; t < problem.x.logits.rows; ++t) {
    const Reference reference(problem, t);
    if (reference.gap() < 1e-6) continue;
    ++compared;
    const std::vector<double> weights = reference.weights();
    for (int j = 0; j < problem.x.top_k; ++j) {
      const auto at = static_cast<std::size_t>(t * moe_detail::choices_of(problem.x) + j);
      EXPECT_EQ(results.ids[at], reference.ids()[static_cast<std::size_t>(j)])
          << problem.text() << ", token " << t << ", choice " << j;
      const double weight = weights[static_cast<std::size_t>(j)];
      EXPECT_NEAR(static_cast<double>(results.weights[at]), weight,
                  1e-6 * std::fabs(weight) + 1e-30)
          << problem.text() << ", token " << t << ", choice " << j;
    }
    for (int j = 0; j < problem.x.shared_experts; ++j) {
      const auto at =
          static_cast<std::size_t>(t * moe_detail::choices_of(problem.x) + problem.x.top_k + j);
      EXPECT_EQ(results.ids[at], problem.x.logits.columns + j);
      EXPECT_EQ(results.weights[at], 1.0f);
    }
  }
  return compared;
}

RouteArguments shape(std::int64_t tokens, std::int64_t experts, int top_k) {
  RouteArguments x;
  x.logits.rows = tokens;
  x.logits.columns = experts;
  x.top_k = top_k;
  return x;
}
RouteArguments deepseek(std::int64_t tokens) {
  RouteArguments x = shape(tokens, 256, 8);
  x.score = RouterScore::sigmoid;
  x.groups = 8;
  x.top_groups = 4;
  x.scale = 2.5f;
  return x;
}

/// Of f32 logits that are given, one token.
RouteResults routed(RouteArguments x, const std::vector<float>& logits,
                    const std::vector<float>& bias = {}) {
  x.logits.rows = 1;
  x.logits.columns = std::ssize(logits);
  x.logits.data = logits.data();
  x.correction_bias = bias.empty() ? nullptr : bias.data();
  RouteResults results(x);
  results.set(x);
  route(x);
  return results;
}

TEST(Route, IsWhatTheReferenceSays) {
  Random random(1);
  int compared = 0;
  for (int i = 0; i < test::cases_of(2000); ++i) {
    const RouteProblem any(random);
    const RouteProblem finite(random, any.x, LogitFamily::normal, i % 2 == 0);
    compared += check(finite);
  }
  EXPECT_GT(compared, test::cases_of(5000));
}

TEST(Route, OfDeepSeek) {
  Random random(2);
  EXPECT_GT(check(RouteProblem(random, deepseek(200), LogitFamily::normal, true)), 150);
  RouteArguments one = deepseek(200);
  one.best_of_group = 1;
  EXPECT_GT(check(RouteProblem(random, one, LogitFamily::normal, true)), 150);
}

TEST(Route, OfTheLargestAndSmallestShapes) {
  Random random(3);
  EXPECT_GT(check(RouteProblem(random, shape(20, 1024, 16), LogitFamily::normal, false)), 5);
  EXPECT_EQ(check(RouteProblem(random, shape(20, 1, 1), LogitFamily::normal, true)), 20);
  EXPECT_EQ(check(RouteProblem(random, shape(0, 64, 4), LogitFamily::normal, true)), 0);
  RouteArguments groups = shape(20, 32, 16);
  groups.groups = 32;
  groups.top_groups = 16;
  groups.best_of_group = 1;
  EXPECT_GT(check(RouteProblem(random, groups, LogitFamily::normal, true)), 5);
}

TEST(Route, IsTheSameForAnyNumberOfThreads) {
  Random random(4);
  const RouteProblem problem(random, deepseek(500), LogitFamily::special, true);
  const RouteResults one = routed(problem, 1), many = routed(problem, 5);
  EXPECT_EQ(one.ids, many.ids);
  EXPECT_EQ(one.weight_bits(), many.weight_bits());
}

TEST(Route, OfEqualExpertsTheLowerOneIsFirst) {
  const std::vector<float> logits = {1, 3, 3, -2, 3, 1};
  EXPECT_EQ(routed(shape(1, 6, 5), logits).ids, (std::vector<std::int32_t>{1, 2, 4, 0, 5}));
  // Of scores that a bias makes equal: 0.5 + 0 and 0.5 + -0.
  RouteArguments x = shape(1, 3, 3);
  x.score = RouterScore::sigmoid;
  EXPECT_EQ(routed(x, {0, 0, 0}, {-0.5f, 0.0f, -0.0f}).ids, (std::vector<std::int32_t>{1, 2, 0}));
}

TEST(Route, OfEqualGroupsTheLowerOneIsChosen) {
  RouteArguments x = shape(1, 8, 2);
  x.groups = 4;
  x.best_of_group = 1;
  EXPECT_EQ(routed(x, {0, 1, 2, 5, 5, 4, 5, 5}).ids, (std::vector<std::int32_t>{3, 2}));
  x.best_of_group = 2;
  EXPECT_EQ(routed(x, {0, 1, 2, 5, 5, 4, 5, 5}).ids, (std::vector<std::int32_t>{6, 7}));
  x.top_groups = 2;
  EXPECT_EQ(routed(x, {0, 1, 2, 5, 5, 4, 5, 5}).ids, (std::vector<std::int32_t>{4, 6}));
}

TEST(Route, KeysAreOrderedAsNumbersAre) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-kInfinity, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, kInfinity};
  std::uint32_t below = routing::key_of(kNan);
  EXPECT_EQ(below, routing::key_of(-kNan));
  EXPECT_GT(below, routing::kTakenKey);
  EXPECT_TRUE(std::isnan(routing::number_of(below)));
  for (const float x : ascending) {
    EXPECT_GT(routing::key_of(x), below) << x;
    below = routing::key_of(x);
    EXPECT_EQ(routing::number_of(below), x);
  }
  EXPECT_EQ(routing::key_of(-0.0f), routing::key_of(0.0f));
}

TEST(Route, WeightsByHand) {
  RouteArguments x = shape(1, 4, 2);
  const std::vector<float> logits = {0, std::log(3.0f), std::log(4.0f), -1000};
  x.renormalize = false;
  RouteResults r = routed(x, logits);
  EXPECT_EQ(r.ids, (std::vector<std::int32_t>{2, 1}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.5f);
  EXPECT_FLOAT_EQ(r.weights[1], 0.375f);
  x.renormalize = true;
  x.scale = 7;
  r = routed(x, logits);
  EXPECT_FLOAT_EQ(r.weights[0], 4);
  EXPECT_FLOAT_EQ(r.weights[1], 3);
  // The bias chooses, and is no part of weights.
  r = routed(x, logits, {9, 0, 0, 8});
  EXPECT_EQ(r.ids, (std::vector<std::int32_t>{0, 3}));
  EXPECT_FLOAT_EQ(r.weights[0], 7);
  EXPECT_EQ(r.weights[1], 0);
  // No score at all: 0 / 1e-20.
  x.score = RouterScore::sigmoid;
  r = routed(x, {-1000, -1000, -1000});
  EXPECT_EQ(r.weights, (std::vector<float>{0, 0}));
}

TEST(Route, NanIsOfItsTokenAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kNan, -kNan, kInfinity}) {
    RouteArguments x = shape(3, 40, 8);
    std::vector<float> logits(3 * 40);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
    logits[40 + 33] = bad;
    x.logits.data = logits.data();
    RouteResults results(x);
    results.set(x);
    route(x);
    for (std::size_t t = 0; t < 3; ++t) {
      std::set<std::int32_t> ids;
      for (std::size_t i = t * 8; i < t * 8 + 8; ++i) {
        ids.insert(results.ids[i]);
        EXPECT_TRUE(results.ids[i] >= 0 && results.ids[i] < 40);
        EXPECT_EQ(std::isnan(results.weights[i]), t == 1);
      }
      EXPECT_EQ(ids.size(), 8u);
    }
  }
  // A sigmoid's is one expert's, which is chosen last, after -infinity.
  RouteArguments x = shape(1, 4, 4);
  x.score = RouterScore::sigmoid;
  x.renormalize = false;
  const RouteResults r = routed(x, {kNan, 1, -kInfinity, 2});
  EXPECT_EQ(r.ids, (std::vector<std::int32_t>{3, 1, 2, 0}));
  EXPECT_EQ(r.weight_bits()[3], 0x7FC00000u);
}

}  // namespace
}  // namespace blockscale
