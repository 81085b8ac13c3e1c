// Every argument that route and moe_sort refuse, by name, and that nothing is written when they do.
#include "ops/moe/validate_routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "blockscale/moe.h"
#include "ops/moe/test/routing_problem.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::kPoison;

template <class T>
T* misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
}

/// A valid call that each test spoils in one way.
class RouteValidateTest : public testing::Test {
 protected:
  RouteValidateTest() {
    x_.logits = {logits_.data(), Format::f32, 5, 12};
    x_.correction_bias = bias_.data();
    x_.top_k = 4;
    x_.groups = 3;
    x_.top_groups = 2;
    x_.ids = ids_.data();
    x_.weights = weights_.data();
  }

  void expect_invalid(const char* argument, const char* text) {
    test::expect_invalid(argument, text, [&] { route(x_); });
    EXPECT_THAT(ids_, testing::Each(kPoison));
    EXPECT_THAT(weights_, testing::Each(bit_cast<float>(kPoison)));
  }

  std::vector<float> logits_ = std::vector<float>(5 * 12), bias_ = std::vector<float>(12);
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(5 * 4, kPoison);
  std::vector<float> weights_ = std::vector<float>(5 * 4, bit_cast<float>(kPoison));
  RouteArguments x_;
};

TEST_F(RouteValidateTest, TakesWhatIsValid) {
  const RouteArguments x = moe_detail::validated(x_);
  EXPECT_EQ(x.logits.row_stride, 12);
  route(x_);
  EXPECT_THAT(ids_, testing::Each(testing::Lt(12)));
  x_.correction_bias = nullptr;
  route(x_);
  x_.logits.rows = 0;
  x_.ids = nullptr;
  x_.weights = nullptr;
  route(x_);
  // Without groups a group's best two are not asked for.
  x_.logits.columns = x_.groups = x_.top_groups = x_.top_k = 1;
  route(x_);
}

TEST_F(RouteValidateTest, Logits) {
  x_.logits.data = nullptr;
  expect_invalid("logits.data", "is null");
  x_.logits.data = misaligned(logits_.data());
  expect_invalid("logits.data", "is misaligned");
  x_.logits.data = logits_.data();
  x_.logits.dtype = Format::e4m3;
  expect_invalid("logits.dtype", "is e4m3, must be f32, f16 or bf16");
  x_.logits.dtype = Format::f32;
  x_.logits.rows = -1;
  expect_invalid("logits.rows", "is -1, must be the tokens, in 0..1048576");
  x_.logits.rows = (1 << 20) + 1;
  expect_invalid("logits.rows", "is 1048577");
  x_.logits.rows = 5;
  x_.logits.columns = 0;
  expect_invalid("logits.columns", "is 0, must be the experts, in 1..1024");
  x_.logits.columns = 1025;
  expect_invalid("logits.columns", "is 1025");
  x_.logits.columns = 12;
  x_.logits.row_stride = 11;
  expect_invalid("logits.row_stride", "is 11");
  x_.logits.row_stride = 0;
  x_.logits.batch = 2;
  expect_invalid("logits.batch", "is 2, must be 1");
}

TEST_F(RouteValidateTest, Rule) {
  x_.groups = 5;
  expect_invalid("groups", "is 5, must be a divisor of the 12 experts");
  x_.groups = 0;
  expect_invalid("groups", "is 0, must be in 1..32");
  x_.groups = 33;
  expect_invalid("groups", "is 33, must be in 1..32");
  x_.groups = 3;
  x_.top_groups = 4;
  expect_invalid("top_groups", "is 4, must be in 1..3");
  x_.top_groups = 0;
  expect_invalid("top_groups", "is 0");
  x_.top_groups = 1;
  x_.top_k = 5;
  expect_invalid("top_k", "is 5, must be at most the experts of top_groups groups, in 1..4");
  x_.top_k = 0;
  expect_invalid("top_k", "is 0");
  x_.groups = x_.top_groups = 1;
  x_.top_k = 13;
  expect_invalid("top_k", "is 13");
  x_.top_k = 4;
  x_.best_of_group = 3;
  expect_invalid("best_of_group", "is 3, must be in 1..2");
  x_.best_of_group = 0;
  expect_invalid("best_of_group", "is 0");
  x_.best_of_group = 2;
  x_.groups = x_.top_groups = 12;
  expect_invalid("best_of_group", "is 2, must be 1, as groups have one expert each");
  x_.groups = x_.top_groups = 1;
  x_.score = static_cast<RouterScore>(2);
  expect_invalid("score", "is 2, must be softmax or sigmoid");
  x_.score = RouterScore::softmax;
  for (const float scale :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    x_.scale = scale;
    expect_invalid("scale", "is not finite");
  }
  x_.scale = 1;
  test::expect_invalid("threads", "is -1", [&] { route(x_, -1); });
}

TEST_F(RouteValidateTest, MoreThanTheMostChoices) {
  x_.logits.rows = 1;
  x_.logits.columns = 60;
  x_.top_k = 17;
  expect_invalid("top_k", "is 17, must be in 1..16");
}

TEST_F(RouteValidateTest, Memory) {
  x_.ids = nullptr;
  expect_invalid("ids", "is null");
  x_.ids = misaligned(ids_.data());
  expect_invalid("ids", "is misaligned");
  x_.ids = ids_.data();
  x_.weights = nullptr;
  expect_invalid("weights", "is null");
  x_.weights = misaligned(weights_.data());
  expect_invalid("weights", "is misaligned");
  x_.weights = weights_.data();
  x_.correction_bias = misaligned(bias_.data());
  expect_invalid("correction_bias", "is misaligned");
}

TEST_F(RouteValidateTest, ResultsThatOverlap) {
  x_.correction_bias = weights_.data() + 19;  // its last number
  expect_invalid("weights", "correction_bias");
  x_.correction_bias = bias_.data();
  x_.logits.data = weights_.data() + 19;
  expect_invalid("weights", "logits");
  x_.logits.data = logits_.data();
  x_.weights = reinterpret_cast<float*>(ids_.data() + 19);
  expect_invalid("ids", "weights");
}

/// The same of a sort in tiles of 8.
class SortValidateTest : public testing::Test {
 protected:
  SortValidateTest() {
    x_.ids = ids_.data();
    x_.tokens = 6;
    x_.top_k = 2;
    x_.experts = 3;
    x_.tile = 8;
    x_.offsets = part(0);
    x_.row_of_entry = part(1);
    x_.entry_of_row = part(2);
    x_.token_of_row = part(3);
    x_.expert_of_tile = part(4);
    x_.row_limit_of_tile = part(5);
    x_.padded_rows = part(6);
    x_.tiles = part(7);
  }

  std::int32_t* part(std::size_t i) { return results_.data() + 64 * i; }

  void expect_invalid(const char* argument, const char* text) {
    test::expect_invalid(argument, text, [&] { moe_sort(x_); });
    EXPECT_THAT(results_, testing::Each(kPoison));
  }

  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(12, 1);
  std::vector<std::int32_t> results_ = std::vector<std::int32_t>(64 * 8, kPoison);
  MoeSortArguments x_;
};

TEST_F(SortValidateTest, TakesWhatIsValid) {
  moe_sort(x_);
  EXPECT_EQ(x_.offsets[3], 16);
  // Numbers of no expert are no error.
  ids_.assign(12, std::numeric_limits<std::int32_t>::min());
  moe_sort(x_);
  EXPECT_EQ(x_.offsets[3], 0);
  x_ = {};
  x_.experts = 1;
  moe_sort(x_);
}

TEST_F(SortValidateTest, Sizes) {
  x_.tokens = -1;
  expect_invalid("tokens", "is -1, must be in 0..1048576");
  x_.tokens = (1 << 20) + 1;
  expect_invalid("tokens", "is 1048577");
  x_.tokens = 6;
  x_.top_k = 0;
  expect_invalid("top_k", "is 0, must be in 1..16");
  x_.top_k = 17;
  expect_invalid("top_k", "is 17");
  x_.top_k = 2;
  x_.experts = 0;
  expect_invalid("experts", "is 0, must be in 1..1024");
  x_.experts = 1025;
  expect_invalid("experts", "is 1025");
  x_.experts = 3;
  for (const int tile : {0, -8, 2, 7, 257}) {
    x_.tile = tile;
    expect_invalid("tile", "must be 1 or in 8..256");
  }
  x_.tile = 8;
  x_.first_expert = -1;
  expect_invalid("first_expert", "is -1, must be in 0..2147483644");
  x_.first_expert = std::numeric_limits<std::int32_t>::max() - 2;
  expect_invalid("first_expert", "is 2147483645");
  x_.first_expert = 0;
  test::expect_invalid("threads", "is -1", [&] { moe_sort(x_, -1); });
  test::expect_invalid("tokens", [] { (void)moe_sort_rows(-1, 1, 1); });
  test::expect_invalid("top_k", [] { (void)moe_sort_rows(1, 17, 1); });
  test::expect_invalid("experts", [] { (void)moe_sort_rows(1, 1, 0); });
  test::expect_invalid("tile", [] { (void)moe_sort_rows(1, 1, 1, 4); });
}

TEST_F(SortValidateTest, TilesThatThereAreNot) {
  x_.tile = 1;
  expect_invalid("expert_of_tile", "is given, must not be without tiles");
  x_.expert_of_tile = nullptr;
  expect_invalid("row_limit_of_tile", "is given");
  x_.row_limit_of_tile = nullptr;
  expect_invalid("tiles", "is given");
  x_.tiles = nullptr;
  moe_sort(x_);
}

TEST_F(SortValidateTest, Memory) {
  x_.ids = nullptr;
  expect_invalid("ids", "is null");
  x_.ids = misaligned(ids_.data());
  expect_invalid("ids", "is misaligned");
  x_.ids = ids_.data();
  const auto expect_misaligned = [&](const char* name, std::int32_t*& pointer) {
    std::int32_t* const aligned = pointer;
    pointer = misaligned(aligned);
    expect_invalid(name, "is misaligned");
    pointer = aligned;
  };
  expect_misaligned("offsets", x_.offsets);
  expect_misaligned("row_of_entry", x_.row_of_entry);
  expect_misaligned("entry_of_row", x_.entry_of_row);
  expect_misaligned("token_of_row", x_.token_of_row);
  expect_misaligned("expert_of_tile", x_.expert_of_tile);
  expect_misaligned("row_limit_of_tile", x_.row_limit_of_tile);
  expect_misaligned("padded_rows", x_.padded_rows);
  expect_misaligned("tiles", x_.tiles);
}

TEST_F(SortValidateTest, ResultsThatOverlap) {
  x_.ids = part(0) + 3;  // the end
  expect_invalid("offsets", "ids");
  x_.ids = part(1) + 11;
  expect_invalid("row_of_entry", "ids");
  x_.ids = ids_.data();
  // 12 entries, and 7 rows of padding for each of 3 experts: 33, rounded down.
  x_.token_of_row = part(2) + 31;
  expect_invalid("entry_of_row", "token_of_row");
  x_.token_of_row = part(2) + 32;
  x_.tiles = part(5) + 3;
  expect_invalid("row_limit_of_tile", "tiles");
  x_.tiles = part(5) + 4;
  moe_sort(x_);
}

}  // namespace
}  // namespace blockscale
