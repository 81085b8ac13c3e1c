// check_gemm accepts what gemm computes and rejects one wrong element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "blockscale/gemm.h"

namespace blockscale {
namespace {

class CheckGemm : public ::testing::Test {
 protected:
  static constexpr std::int64_t kM = 7;
  static constexpr std::int64_t kN = 9;
  static constexpr std::int64_t kK = 64;
  static constexpr std::int64_t kBatch = 2;

  CheckGemm() {
    for (std::size_t i = 0; i < a_.size(); ++i) a_[i] = std::sin(static_cast<float>(i));
    for (std::size_t i = 0; i < b_.size(); ++i) b_[i] = std::cos(3.0f * static_cast<float>(i));
    arguments_.a = as_scaled({a_.data(), Format::f32, kM, kK, 0, kBatch});
    arguments_.b = as_scaled({b_.data(), Format::f32, kN, kK, 0, kBatch});
    arguments_.d = {d_.data(), Format::f32, kM, kN, 0, kBatch};
    gemm(arguments_);
  }

  std::vector<float> a_ = std::vector<float>(kBatch * kM * kK);
  std::vector<float> b_ = std::vector<float>(kBatch * kN * kK);
  std::vector<float> d_ = std::vector<float>(kBatch * kM * kN);
  GemmArguments arguments_;
};

TEST_F(CheckGemm, AcceptsTheResultOfGemm) {
  const GemmCheck check = check_gemm(arguments_, 1'000'000);
  EXPECT_EQ(check.elements, kBatch * kM * kN);
  EXPECT_TRUE(check.passed());
  EXPECT_LT(check.largest_error, 8);
  EXPECT_GT(check.of_usual, 0);
  EXPECT_LT(check.of_usual, 0.5);
  EXPECT_GT(check.proven_error, check.largest_error);
}

TEST_F(CheckGemm, RejectsAnyOneWrongElement) {
  for (float& element : d_) {
    const float right = element;
    element = right + 1e-3f;
    EXPECT_FALSE(check_gemm(arguments_, 1'000'000).passed());
    element = std::nanf("");
    EXPECT_FALSE(check_gemm(arguments_, 1'000'000).passed());
    element = right;
  }
}

TEST_F(CheckGemm, ChecksAsManyElementsAsAskedFor) {
  EXPECT_EQ(check_gemm(arguments_, 5).elements, 5);
  for (float& element : d_) element += 1e-3f;
  EXPECT_FALSE(check_gemm(arguments_, 1).passed());
}

TEST_F(CheckGemm, RefusesWhatGemmRefusesAndNoSamples) {
  try {
    check_gemm(arguments_, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.argument(), "samples");
  }
  arguments_.d.rows = kM + 1;
  EXPECT_THROW(check_gemm(arguments_), Error);
}

}  // namespace
}  // namespace blockscale
