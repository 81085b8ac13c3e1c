// compare(): sums against ones worked out here, what counts in the total, and what is ruined.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::floats;
using test::TestTensor;

TEST(Compare, SumsOfEachTensorAndOfAll) {
  const test::ScratchFolder folder;
  test::write_checkpoint(folder / "a", {{"x", DType::F32, {2, 2}, floats({1, 2, 3, 4})},
                                        {"y", DType::F32, {4}, floats({1, 1, 1, 1})},
                                        {"only a", DType::F32, {1}, ""},
                                        {"norm", DType::F32, {2}, floats({100, 100})},
                                        {"reshaped", DType::F32, {4}, ""}});
  test::write_checkpoint(folder / "b", {{"x", DType::F32, {2, 2}, floats({1, 2.5f, 3, 3})},
                                        {"y", DType::BF16, {4}, "\x80\x3f\x80\x3f\x80\x3f\x80\x3f"},
                                        {"only b", DType::F32, {1}, ""},
                                        {"norm", DType::F32, {2}, floats({100, 100})},
                                        {"reshaped", DType::F32, {2, 2}, ""}});
  const CompareReport report = compare(folder / "a", folder / "b", 2);
  ASSERT_EQ(report.tensors.size(), 3u);
  const TensorComparison& norm = report.tensors[0];
  EXPECT_EQ(norm.name, "norm");
  EXPECT_EQ(norm.status, ComparisonStatus::equal);
  EXPECT_FALSE(norm.converted);
  const TensorComparison& x = report.tensors[1];
  EXPECT_EQ(x.status, ComparisonStatus::differs);
  EXPECT_TRUE(x.converted);
  EXPECT_DOUBLE_EQ(x.signal, 30);
  EXPECT_DOUBLE_EQ(x.noise, 1.25);
  EXPECT_EQ(x.name, "x");
  EXPECT_DOUBLE_EQ(x.max_error, 1.0);
  EXPECT_DOUBLE_EQ(x.mean_error, 1.5 / 4);
  EXPECT_DOUBLE_EQ(x.sqnr_db, 10 * std::log10(30 / 1.25));
  EXPECT_EQ(x.bytes_a, 16u);
  const TensorComparison& y = report.tensors[2];
  EXPECT_EQ(y.recipe_a, "f32");
  EXPECT_EQ(y.recipe_b, "bf16");
  EXPECT_EQ(y.sqnr_db, std::numeric_limits<double>::infinity());
  EXPECT_EQ(y.status, ComparisonStatus::equal);
  EXPECT_TRUE(y.converted);  // stored in another recipe
  EXPECT_EQ(y.max_error, 0);
  EXPECT_EQ(report.converted, 2);  // without `norm`
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

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// The comparison of two f32 vectors.
TensorComparison compare_values(const std::vector<float>& a, const std::vector<float>& b) {
  const test::ScratchFolder folder;
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(a.size())};
  test::write_checkpoint(folder / "a", {{"x", DType::F32, shape, floats(a)}});
  test::write_checkpoint(folder / "b", {{"x", DType::F32, shape, floats(b)}});
  const CompareReport report = compare(folder / "a", folder / "b");
  EXPECT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.total.status, report.tensors.front().status);
  return report.tensors.front();
}

TEST(Compare, WhatIsNotFiniteOnOneSideRuinsATensor) {
  for (const float lost : {kNan, kInf, -kInf}) {
    for (const bool in_a : {true, false}) {
      const std::vector<float> whole = {1, 2, 3, 4};
      const std::vector<float> broken = {1, lost, 3, 4};
      const TensorComparison x =
          in_a ? compare_values(broken, whole) : compare_values(whole, broken);
      EXPECT_EQ(x.status, ComparisonStatus::ruined);
      EXPECT_TRUE(x.converted);
      // What is infinitely far from finite values is minus infinity; all else is NaN.
      EXPECT_EQ(std::isnan(x.sqnr_db), in_a || std::isnan(lost));
      EXPECT_TRUE(std::isnan(x.sqnr_db) || x.sqnr_db == -kInf);
      EXPECT_FALSE(std::isfinite(x.max_error));
    }
  }
  EXPECT_EQ(compare_values({kInf}, {-kInf}).status, ComparisonStatus::ruined);
  const TensorComparison from_zeros = compare_values({0, 0}, {0, 1});
  EXPECT_EQ(from_zeros.status, ComparisonStatus::ruined);
  EXPECT_EQ(from_zeros.sqnr_db, -kInf);
}

TEST(Compare, WhatIsNotFiniteOnBothSidesIsEqual) {
  EXPECT_EQ(compare_values({kNan, kInf, -kInf, 1}, {kNan, kInf, -kInf, 1}).status,
            ComparisonStatus::equal);
  const TensorComparison x = compare_values({kNan, kInf, 3, 4}, {kNan, kInf, 3, 3});
  EXPECT_EQ(x.status, ComparisonStatus::differs);
  EXPECT_DOUBLE_EQ(x.sqnr_db, 10 * std::log10(25.0));
  EXPECT_EQ(x.max_error, 1);
}

TEST(Compare, RuinedTensorsComeFirst) {
  const test::ScratchFolder folder;
  std::vector<TestTensor> tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors.push_back({name, DType::F32, {2}, floats({1, 2})});
  }
  test::write_checkpoint(folder / "a", tensors);
  tensors[1].data = floats({kNan, 2});
  tensors[2].data = floats({1, 2.5f});
  tensors[3].data = floats({1, kInf});
  test::write_checkpoint(folder / "b", tensors);
  const CompareReport report = compare(folder / "a", folder / "b");
  std::string names;
  for (const TensorComparison& tensor : report.tensors) names += tensor.name;
  EXPECT_EQ(names, "bdac");
  EXPECT_EQ(report.converted, 3);
  EXPECT_EQ(report.total.status, ComparisonStatus::ruined);
}

/// One block of a converted layer that holds NaN: its scale says so.
TEST(Compare, AScaleOfNaNRuinsItsLayer) {
  const test::ScratchFolder folder;
  TestTensor weight = test::f32_tensor("m.weight", {16, 32}, 1);
  test::write_checkpoint(folder / "a", {weight});
  weight.data.replace(0, sizeof kNan, floats({kNan}));
  test::write_checkpoint(folder / "broken", {weight});
  ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::modelopt});
  options.allow_nonfinite = true;
  convert(folder / "broken", folder / "b", options);
  const CompareReport report = compare(folder / "a", folder / "b");
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors.front().status, ComparisonStatus::ruined);
  EXPECT_TRUE(std::isnan(report.total.sqnr_db));
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(Compare, EveryDtypeOfNumbersIsCompared) {
  const test::ScratchFolder folder;
  // Differences below the resolution of f64 and f32, beyond and below the range of their squares.
  const std::vector<TestTensor> a = {
      {"bool", DType::BOOL, {2}, bytes_of<std::uint8_t>({0, 1})},
      {"e4m3", DType::F8_E4M3, {2}, bytes_of<std::uint8_t>({0x38, 0x7F})},
      {"f64 huge", DType::F64, {2}, bytes_of<double>({1e300, 1})},
      {"f64 tiny", DType::F64, {2}, bytes_of<double>({1e-300, 1e-300})},
      {"i64", DType::I64, {2}, bytes_of<std::int64_t>({1LL << 62, -5})},
      {"u64", DType::U64, {1}, bytes_of<std::uint64_t>({~0ULL})},
      {"u8", DType::U8, {2}, bytes_of<std::uint8_t>({3, 4})}};
  std::vector<TestTensor> b = a;
  b[0].data = bytes_of<std::uint8_t>({1, 1});
  b[1].data = bytes_of<std::uint8_t>({0x40, 0x7F});
  b[2].data = bytes_of<double>({1.1e300, 1});
  b[3].data = bytes_of<double>({1e-300, 2e-300});
  b[4].data = bytes_of<std::int64_t>({(1LL << 62) + 1, -5});
  b[5].data = bytes_of<std::uint64_t>({~0ULL - 1});
  b[6] = {"u8", DType::F64, {2}, bytes_of<double>({3, 5})};
  test::write_checkpoint(folder / "a", a);
  test::write_checkpoint(folder / "b", b);
  const CompareReport report = compare(folder / "a", folder / "b");
  const std::vector<double> sqnr_db = {0,
                                       0,  // 1 became 2; NaN stayed
                                       20,
                                       10 * std::log10(2),
                                       20 * std::log10(std::ldexp(1.0, 62)),
                                       20 * std::log10(std::ldexp(1.0, 64)),
                                       10 * std::log10(25)};
  ASSERT_EQ(report.tensors.size(), a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const TensorComparison& tensor = report.tensors[i];
    EXPECT_EQ(tensor.name, a[i].name);
    EXPECT_EQ(tensor.recipe_a, dtype_name(a[i].dtype));
    EXPECT_EQ(tensor.status, ComparisonStatus::differs) << tensor.name;
    EXPECT_NEAR(tensor.sqnr_db, sqnr_db[i], 1e-9) << tensor.name;
  }
  const CompareReport same = compare(folder / "a", folder / "a");
  EXPECT_EQ(same.total.status, ComparisonStatus::equal);
  EXPECT_EQ(same.converted, 0);
}

TEST(Compare, ANarrowWeightAgainstF64) {
  const test::ScratchFolder folder;
  const std::vector<float> values = test::normal_values(70000 * 32, 1);
  test::write_checkpoint(folder / "f32", {{"m.weight", DType::F32, {70000, 32}, floats(values)}});
  const std::vector<double> wide(values.begin(), values.end());
  test::write_checkpoint(folder / "f64", {{"m.weight", DType::F64, {70000, 32}, bytes_of(wide)}});
  convert(folder / "f32", folder / "mx",
          test::options_for({Recipe::mxfp8_e4m3, Dialect::compressed_tensors}));
  const CompareReport narrow = compare(folder / "f32", folder / "mx", 1);
  const CompareReport report = compare(folder / "f64", folder / "mx", 2);
  EXPECT_EQ(report.tensors.front().recipe_a, "F64");
  EXPECT_NEAR(report.total.sqnr_db, narrow.total.sqnr_db, 1e-9);
  EXPECT_EQ(compare(folder / "f64", folder / "f32").total.status, ComparisonStatus::equal);
}

TEST(Compare, OtherDtypesAreEqualOrNotCompared) {
  const test::ScratchFolder folder;
  test::write_checkpoint(folder / "a", {{"same", DType::F4, {2}, "\x12"},
                                        {"x", DType::F6_E2M3, {4}, "abc"},
                                        {"z", DType::C64, {1}, "12345678"}});
  test::write_checkpoint(folder / "b", {{"same", DType::F4, {2}, "\x12"},
                                        {"x", DType::F6_E2M3, {4}, "abd"},
                                        {"z", DType::F32, {1}, floats({1})}});
  const CompareReport report = compare(folder / "a", folder / "b");
  ASSERT_EQ(report.tensors.size(), 3u);
  EXPECT_EQ(report.tensors[0].status, ComparisonStatus::equal);
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_EQ(report.tensors[i].status, ComparisonStatus::not_compared);
    EXPECT_TRUE(std::isnan(report.tensors[i].sqnr_db));
    EXPECT_FALSE(report.tensors[i].converted);
  }
  EXPECT_EQ(report.tensors[1].recipe_a, "F6_E2M3");
  EXPECT_EQ(report.total.status, ComparisonStatus::not_compared);  // not "equal"
  EXPECT_STREQ(comparison_status_name(report.total.status), "not_compared");
}

TEST(Compare, NothingInCommonIsAnError) {
  const test::ScratchFolder folder;
  test::write_checkpoint(folder / "a", {{"x", DType::F32, {2}, ""}, {"z", DType::F32, {2}, ""}});
  test::write_checkpoint(folder / "b", {{"y", DType::F32, {2}, ""}, {"x", DType::F32, {3}, ""}});
  test::expect_error(
      ErrorCode::invalid_argument, (folder / "b").string(),
      "has no tensor of the same name and shape as one of " + (folder / "a").string(),
      [&] { compare(folder / "a", folder / "b"); });
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
