// compare(): sums against ones worked out here, and what is left out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/checkpoint_testing.h"

namespace blockscale {
namespace {

using test::floats;
using test::TestTensor;

TEST(Compare, SumsOfEachTensorAndOfAll) {
  const test::ScratchFolder folder;
  test::write_checkpoint(folder / "a", {{"x", DType::F32, {2, 2}, floats({1, 2, 3, 4})},
                                        {"y", DType::F32, {4}, floats({1, 1, 1, 1})},
                                        {"only a", DType::F32, {1}, ""},
                                        {"reshaped", DType::F32, {4}, ""},
                                        {"ids", DType::I64, {2}, ""}});
  test::write_checkpoint(folder / "b", {{"x", DType::F32, {2, 2}, floats({1, 2.5f, 3, 3})},
                                        {"y", DType::BF16, {4}, "\x80\x3f\x80\x3f\x80\x3f\x80\x3f"},
                                        {"only b", DType::F32, {1}, ""},
                                        {"reshaped", DType::F32, {2, 2}, ""},
                                        {"ids", DType::I64, {2}, ""}});
  const CompareReport report = compare(folder / "a", folder / "b", 2);
  ASSERT_EQ(report.tensors.size(), 2u);
  const TensorComparison& x = report.tensors[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_DOUBLE_EQ(x.max_error, 1.0);
  EXPECT_DOUBLE_EQ(x.mean_error, 1.5 / 4);
  EXPECT_DOUBLE_EQ(x.sqnr_db, 10 * std::log10(30 / 1.25));
  EXPECT_EQ(x.bytes_a, 16u);
  const TensorComparison& y = report.tensors[1];
  EXPECT_EQ(y.recipe_a, "f32");
  EXPECT_EQ(y.recipe_b, "bf16");
  EXPECT_EQ(y.sqnr_db, std::numeric_limits<double>::infinity());
  EXPECT_EQ(y.max_error, 0);
  EXPECT_DOUBLE_EQ(report.total.sqnr_db, 10 * std::log10(34 / 1.25));
  EXPECT_EQ(report.total.bytes_b, 24u);
  EXPECT_EQ(report.only_a, (std::vector<std::string>{"only a"}));
  EXPECT_EQ(report.only_b, (std::vector<std::string>{"only b"}));
  EXPECT_EQ(report.different_shape, (std::vector<std::string>{"reshaped"}));
}

TEST(Compare, SumsDoNotDependOnThreadsAndAlignmentDoesNotMatter) {
  const test::ScratchFolder folder;
  const TestTensor a = test::f32_tensor("a", {1000, 1100}, 1);
  TestTensor b = test::f32_tensor("a", {1000, 1100}, 2);
  test::write_checkpoint(folder / "a", {a});
  test::write_checkpoint(folder / "b", {{"byte", DType::U8, {1}, ""}, b});  // misaligned
  const CompareReport one = compare(folder / "a", folder / "b", 1);
  const CompareReport three = compare(folder / "a", folder / "b", 3);
  ASSERT_EQ(one.tensors.size(), 1u);
  EXPECT_EQ(one.total.sqnr_db, three.total.sqnr_db);
  EXPECT_EQ(one.total.mean_error, three.total.mean_error);
  double squares = 0;
  double errors = 0;
  const auto x = test::normal_values(1100000, 1);
  const auto y = test::normal_values(1100000, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares += double{x[i]} * x[i];
    errors += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  }
  EXPECT_NEAR(one.total.sqnr_db, 10 * std::log10(squares / errors), 1e-9);
}

TEST(Compare, NaNIsNotHidden) {
  const test::ScratchFolder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  test::write_checkpoint(folder / "a", {{"x", DType::F32, {3}, floats({nan, 1, 2})}});
  test::write_checkpoint(folder / "b", {{"x", DType::F32, {3}, floats({0, 1, 2})}});
  const CompareReport report = compare(folder / "a", folder / "b");
  EXPECT_TRUE(std::isnan(report.total.max_error));
  EXPECT_TRUE(std::isnan(report.total.sqnr_db));
}

TEST(Compare, RefusesBadArguments) {
  const test::ScratchFolder folder;
  test::expect_error(ErrorCode::not_found, (folder / "no").string(), "",
                     [&] { compare(folder / "no", folder / "no"); });
  test::expect_error(ErrorCode::invalid_argument, "threads", "is -1",
                     [&] { compare(folder / "no", folder / "no", -1); });
}

}  // namespace
}  // namespace blockscale
