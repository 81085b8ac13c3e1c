// Every argument that grouped products refuse, by name, and that nothing is written when they do.
#include "ops/grouped_gemm/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

constexpr std::int64_t kM = 6, kN = 128, kK = 64, kGroups = 3;

float poison() {
  return bit_cast<float>(0x3C3C3C3Cu);
}

/// A valid product that each test spoils in one way.
class GroupedValidateTest : public testing::Test {
 protected:
  GroupedValidateTest() {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = {d_.data(), Format::f32, kM, kN};
    x_.offsets = offsets_.data();
    x_.alpha_factors = factors_.data();
    x_.bias = bias_.data();
  }

  void expect_error(ErrorCode code, const char* argument, const char* text,
                    const GroupedGemmOptions& options = {}) {
    test::expect_error(code, argument, text, [&] { grouped_gemm(x_, options); });
    EXPECT_THAT(d_, testing::Each(poison()));
  }
  void expect_invalid(const char* argument, const char* text) {
    expect_error(ErrorCode::invalid_argument, argument, text);
  }
  void expect_unsupported(const char* argument, const char* text) {
    expect_error(ErrorCode::unsupported, argument, text);
  }
  /// Rows of d go where destinations_ says.
  void scatter() {
    x_.destinations = destinations_.data();
    x_.rows = kM;
  }
  /// Of matrices of A and D.
  void mask() {
    x_.a = masked_a_.view();
    x_.offsets = nullptr;
    x_.lengths = lengths_.data();
    x_.d.batch = kGroups;
  }
  void quantize_into(ScaledTensor& result) { x_.quantized = {result.view()}; }

  ScaledTensor a_{Recipe::nvfp4, kM, kK};
  ScaledTensor b_{Recipe::nvfp4, kN, kK, ScaleLayout::swizzled_128x4, kGroups};
  ScaledTensor masked_a_{Recipe::nvfp4, kM, kK, ScaleLayout::row_major, kGroups};
  std::vector<float> d_ = std::vector<float>(kGroups * kM * kN, poison());
  std::vector<float> bias_ = std::vector<float>(kGroups * kN, 1.0f);
  std::vector<float> factors_ = std::vector<float>(kGroups, 2.0f);
  std::vector<float> weights_ = std::vector<float>(kM, 1.0f);
  std::vector<std::int32_t> offsets_ = {0, 2, 2, 6};
  std::vector<std::int32_t> lengths_ = {1, 0, 2};
  std::vector<std::int32_t> index_ = {0, 1, 2, 3, 4, 5};
  std::vector<std::int32_t> destinations_ = {5, 4, 3, 2, 1, 0};
  GroupedGemmArguments x_;
};

TEST_F(GroupedValidateTest, AcceptsTheValidOnes) {
  EXPECT_NO_THROW(grouped_gemm(x_));
  EXPECT_EQ(d_[0], 1.0f);
  x_.lengths = lengths_.data();
  EXPECT_NO_THROW(grouped_gemm(x_));
  x_.index = index_.data();
  x_.rows = 3;
  x_.d.rows = 3;
  EXPECT_NO_THROW(grouped_gemm(x_));
  x_.destinations = destinations_.data();
  x_.weights = weights_.data();
  x_.adds = true;
  x_.d.rows = 2;
  EXPECT_NO_THROW(grouped_gemm(x_));
}
TEST_F(GroupedValidateTest, AcceptsMaskedGroups) {
  mask();
  EXPECT_NO_THROW(grouped_gemm(x_));
  EXPECT_EQ(d_[0], 1.0f);
  EXPECT_EQ(d_[kN], poison());
}

TEST_F(GroupedValidateTest, ChecksEachView) {
  x_.a.values = nullptr;
  expect_invalid("a.values", "null");
  x_.a = a_.view();
  x_.b.scales = nullptr;
  expect_invalid("b.scales", "null");
  x_.b = b_.view();
  x_.d.data = nullptr;
  expect_invalid("d.data", "null");
  x_.d = {d_.data(), Format::e4m3, kM, kN};
  expect_invalid("d.dtype", "e4m3");
  x_.d = {d_.data(), Format::f32, kM, kN, kN - 1};
  expect_invalid("d.row_stride", "at least 128");
}
TEST_F(GroupedValidateTest, NumberOfGroups) {
  x_.b.batch = 0;
  expect_invalid("b.batch", "is 0, must be the number of groups, in 1..65535");
  x_.b.batch = 65536;
  expect_invalid("b.batch", "is 65536");
}
TEST_F(GroupedValidateTest, UnsupportedPair) {
  ScaledTensor a(Recipe::mxfp4, kM, kK);
  x_.a = a.view();
  expect_unsupported("b.recipe", "nvfp4 with a.recipe mxfp4");
}
TEST_F(GroupedValidateTest, Shapes) {
  ScaledTensor a(Recipe::nvfp4, kM, kK + 16);
  x_.a = a.view();
  expect_invalid("b.k", "is 64, must be 80, the k of a");
  x_.a = a_.view();
  x_.d.rows = kM - 1;
  expect_invalid("d.rows", "is 5, must be 6, the rows of a");
  x_.d.rows = kM;
  x_.d.columns = kN - 1;
  expect_invalid("d.columns", "is 127, must be 128, the rows of b");
  x_.d.columns = kN;
  x_.d.batch = 2;
  expect_invalid("d.batch", "is 2, must be 1");
  x_.d.batch = 1;
  x_.a = masked_a_.view();
  expect_invalid("a.batch", "is 3, must be 1");
}
TEST_F(GroupedValidateTest, RowsThatOffsetsDoNotReach) {
  x_.a = {Recipe::bf16, std::int64_t{1} << 31, 0};
  x_.b = {Recipe::bf16, kN, 0, kGroups};
  expect_invalid("a.rows", "is 2147483648, must be at most 2^31 - 1");
}
TEST_F(GroupedValidateTest, Rows) {
  x_.rows = kM - 1;
  expect_invalid("rows", "is 5, must be 6, the rows of a, as index is null");
  x_.rows = 0;
  x_.destinations = destinations_.data();
  expect_invalid("rows", "is 0, must be 6");
  x_.index = index_.data();
  x_.rows = -1;
  expect_invalid("rows", "-1");
  x_.destinations = nullptr;
  x_.rows = 4;
  expect_invalid("d.rows", "is 6, must be 4, as `rows` is");
}
TEST_F(GroupedValidateTest, MaskedGroups) {
  mask();
  x_.lengths = nullptr;
  expect_invalid("lengths", "is null as offsets is");
  mask();
  x_.index = index_.data();
  expect_invalid("index", "masked");
  x_.index = nullptr;
  x_.destinations = destinations_.data();
  expect_invalid("destinations", "masked");
  x_.destinations = nullptr;
  x_.a = a_.view();
  expect_invalid("a.batch", "is 1, must be 3");
  mask();
  x_.d.batch = 1;
  expect_invalid("d.batch", "is 1, must be 3");
}
TEST_F(GroupedValidateTest, WeightsAndAddsNeedDestinations) {
  x_.weights = weights_.data();
  expect_invalid("weights", "without destinations");
  x_.weights = nullptr;
  x_.adds = true;
  expect_invalid("adds", "without destinations");
}
TEST_F(GroupedValidateTest, WhatIsAdded) {
  scatter();
  x_.adds = true;
  x_.d.dtype = Format::bf16;
  x_.d.row_stride = kN + 1;
  expect_unsupported("d", "is bf16 whose rows do not begin and end at multiples of 16 bytes");
  x_.d.dtype = Format::f32;
  x_.transform = Gelu{};
  expect_unsupported("transform", "adds");
}
TEST_F(GroupedValidateTest, Transform) {
  x_.transform = RmsNorm{};
  expect_unsupported("transform", "is rms_norm, must be Identity, Gelu, Silu or Swiglu");
  x_.transform = Swiglu{};
  expect_invalid("b.rows", "is 128, must be 256");
  x_.d.columns = kN / 2;
  EXPECT_NO_THROW(grouped_gemm(x_));
}
TEST_F(GroupedValidateTest, Quantized) {
  ScaledTensor mxfp4(Recipe::mxfp4, kM, kN), short_one(Recipe::mxfp8_e4m3, kM - 1, kN);
  ScaledTensor many(Recipe::mxfp8_e4m3, kM, kN, ScaleLayout::row_major, 3);
  ScaledTensor mxfp8(Recipe::mxfp8_e4m3, kM, kN);
  quantize_into(mxfp4);
  expect_unsupported("quantized.out.recipe", "is mxfp4");
  quantize_into(short_one);
  expect_invalid("quantized.out.rows", "is 5, must be 6");
  quantize_into(many);
  expect_invalid("quantized.out.batch", "is 3, must be 1");
  quantize_into(mxfp8);
  x_.transform = Gelu{};
  expect_invalid("transform", "Identity with `quantized`");
  x_.transform = Identity{};
  x_.quantized->out.scales = offsets_.data();
  expect_invalid("quantized.out.scales", "overlaps offsets");
  quantize_into(mxfp8);
  scatter();
  expect_unsupported("quantized", "destinations");
}
TEST_F(GroupedValidateTest, Alignment) {
  const auto misaligned = [](auto*& pointer) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(
        reinterpret_cast<std::uintptr_t>(pointer) + 2);
  };
  misaligned(x_.offsets);
  expect_invalid("offsets", "multiple of 4");
  x_.offsets = offsets_.data();
  misaligned(x_.alpha_factors);
  expect_invalid("alpha_factors", "multiple of 4");
  x_.alpha_factors = nullptr;
  misaligned(x_.bias);
  expect_invalid("bias", "multiple of 4");
  x_.bias = nullptr;
  x_.lengths = lengths_.data();
  misaligned(x_.lengths);
  expect_invalid("lengths", "multiple of 4");
  x_.lengths = nullptr;
  scatter();
  misaligned(x_.destinations);
  expect_invalid("destinations", "multiple of 4");
  scatter();
  x_.weights = weights_.data();
  misaligned(x_.weights);
  expect_invalid("weights", "multiple of 4");
  x_.weights = nullptr;
  x_.index = index_.data();
  misaligned(x_.index);
  expect_invalid("index", "multiple of 4");
}
TEST_F(GroupedValidateTest, DtypeOfBias) {
  x_.bias_dtype = Format::e5m2;
  expect_invalid("bias_dtype", "e5m2, must be f32, f16 or bf16");
}
TEST_F(GroupedValidateTest, NegativeThreads) {
  expect_error(ErrorCode::invalid_argument, "options.threads", "-1", {-1});
}

TEST_F(GroupedValidateTest, ExpectedRows) {
  x_.expected_rows = -1;
  expect_invalid("expected_rows", "is -1, must be in 0..2^57");
}

TEST_F(GroupedValidateTest, EntriesAreForMoe) {
  x_.entries.ids = index_.data();
  expect_unsupported("entries", "must not be: it is for moe alone");
}

TEST_F(GroupedValidateTest, DOverWhatIsRead) {
  auto* const in_d = reinterpret_cast<std::int32_t*>(d_.data() + kM * kN - 3);
  const auto refuses = [&](const char* name, auto& pointer, auto* value) {
    const auto before = pointer;
    pointer = value;
    expect_invalid("d.data", (std::string("overlaps ") + name).c_str());
    pointer = before;
  };
  refuses("a.values", x_.a.values, static_cast<const void*>(d_.data()));
  refuses("a.scales", x_.a.scales, static_cast<const void*>(d_.data()));
  refuses("a.tensor_scale", x_.a.tensor_scale, static_cast<const float*>(d_.data()));
  refuses("b.values", x_.b.values, static_cast<const void*>(d_.data()));
  refuses("b.scales", x_.b.scales, static_cast<const void*>(d_.data()));
  refuses("b.tensor_scale", x_.b.tensor_scale, static_cast<const float*>(d_.data()));
  refuses("offsets", x_.offsets, in_d);
  refuses("lengths", x_.lengths, in_d);
  refuses("alpha_factors", x_.alpha_factors, static_cast<const float*>(d_.data()));
  refuses("bias", x_.bias, static_cast<const void*>(d_.data()));
  scatter();
  refuses("destinations", x_.destinations, in_d);
  refuses("weights", x_.weights, static_cast<const float*>(d_.data()));
  x_.index = index_.data();
  refuses("index", x_.index, in_d);
}

class KGroupedValidateTest : public testing::Test {
 protected:
  KGroupedValidateTest() {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = {d_.data(), Format::f32, kM, kN};
    x_.d.batch = kGroups;
    x_.offsets = offsets_.data();
  }
  void expect_error(ErrorCode code, const char* argument, const char* text) {
    test::expect_error(code, argument, text, [&] { k_grouped_gemm(x_); });
    EXPECT_THAT(d_, testing::Each(poison()));
  }
  void expect_invalid(const char* argument, const char* text) {
    expect_error(ErrorCode::invalid_argument, argument, text);
  }

  ScaledTensor a_{Recipe::nvfp4, kM, kK};
  ScaledTensor b_{Recipe::nvfp4, kN, kK};
  std::vector<float> d_ = std::vector<float>(kGroups * kM * kN, poison());
  std::vector<std::int32_t> offsets_ = {0, 5, 5, 64};
  KGroupedGemmArguments x_;
};

TEST_F(KGroupedValidateTest, AcceptsTheValidOne) {
  EXPECT_NO_THROW(k_grouped_gemm(x_));
  EXPECT_THAT(d_, testing::Each(0.0f));
}
TEST_F(KGroupedValidateTest, RefusesWithTheArgumentsName) {
  const auto spoil = [&](auto& member, auto value, const char* argument, const char* text) {
    const KGroupedGemmArguments before = x_;
    member = value;
    expect_invalid(argument, text);
    x_ = before;
  };
  ScaledTensor long_b(Recipe::nvfp4, kN, kK + 16), many(Recipe::nvfp4, kM, kK, {}, 2);
  ScaledTensor mxfp4(Recipe::mxfp4, kM, kK);
  spoil(x_.a.values, nullptr, "a.values", "null");
  spoil(x_.b, ScaledTensorView(long_b.view()), "b.k", "is 80, must be 64");
  spoil(x_.a, ScaledTensorView(many.view()), "a.batch", "is 2, must be 1");
  spoil(x_.d.rows, kM - 1, "d.rows", "is 5, must be 6");
  spoil(x_.d.columns, kN - 1, "d.columns", "is 127, must be 128");
  spoil(x_.d.dtype, Format::bf16, "d.dtype", "is bf16, must be f32");
  spoil(x_.d.batch, 0, "d.batch", "is 0, must be the number of groups");
  spoil(x_.d.batch, 65536, "d.batch", "is 65536");
  spoil(x_.offsets, nullptr, "offsets", "null");
  spoil(x_.offsets, reinterpret_cast<const std::int32_t*>(d_.data()), "d.data", "overlaps offsets");
  spoil(x_.b.values, static_cast<const void*>(d_.data()), "d.data", "overlaps b.values");
  x_.a = mxfp4.view();
  expect_error(ErrorCode::unsupported, "b.recipe", "nvfp4 with a.recipe mxfp4");
}
TEST_F(KGroupedValidateTest, NegativeThreads) {
  test::expect_invalid("options.threads", "-1", [&] { k_grouped_gemm(x_, {-1}); });
}

}  // namespace
}  // namespace blockscale
