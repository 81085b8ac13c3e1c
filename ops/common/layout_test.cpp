// Scale layouts in words, and what is refused.
#include "blockscale/layout.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "blockscale/error.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::expect_invalid;

TEST(DescribeScaleLayout, PrintsWhatTheFieldPrints) {
  EXPECT_EQ(describe_scale_layout(ScaleLayout::swizzled_128x4, 256, 128, 1, 16),
            "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))");
  EXPECT_EQ(describe_scale_layout(ScaleLayout::mn_major, 256, 1024, 1, 128),
            "((1,256),(128,8),1):((0,1),(0,256),2048)");
  EXPECT_EQ(describe_scale_layout(ScaleLayout::row_major, 256, 1024, 128, 128),
            "((128,2),(128,8),1):((0,8),(0,1),16)");
  EXPECT_EQ(describe_scale_layout(ScaleLayout::swizzled_8x4, 256, 128, 1, 16),
            "((8,32),((16,4),2),(1,1)):((4,64),((0,1),32),(0,2048))");
}

TEST(DescribeScaleLayout, OfAnMnMajorOperandHasKFirst) {
  const auto text = [](ScaleLayout layout, std::int64_t rows, std::int64_t k, std::int64_t batch,
                       Notation notation = Notation::plain) {
    return describe_scale_layout(layout, rows, k, 1, 16, 0, batch, notation, OperandMajor::mn);
  };
  EXPECT_EQ(text(ScaleLayout::swizzled_128x4, 128, 64, 1),
            "(((16,4),1),((32,4),1),(1,1)):(((0,1),512),((16,4),512),(0,512))");
  EXPECT_EQ(text(ScaleLayout::swizzled_128x4, 256, 128, 3),
            "(((16,4),2),((32,4),2),(1,3)):(((0,1),512),((16,4),1024),(0,2048))");
  EXPECT_EQ(text(ScaleLayout::swizzled_128x4, 256, 128, 3, Notation::cutlass),
            "(((16,_4),2),((_32,_4),2),(_1,3)):(((_0,_1),_512),((_16,_4),1024),(_0,2048))");
  EXPECT_EQ(text(ScaleLayout::row_major, 4, 32, 1), "((16,2),(1,4),1):((0,1),(0,2),8)");
}

TEST(DescribeScaleLayout, RaggedPaddedAndBatched) {
  EXPECT_EQ(describe_scale_layout(ScaleLayout::mn_major, 100, 300, 64, 128, 16, 5),
            "((64,2),(128,3),5):((0,1),(0,16),48)");
  EXPECT_EQ(describe_scale_layout(ScaleLayout::row_major, 100, 300, 1, 128, 4, 5),
            "((1,100),(128,3),5):((0,4),(0,1),400)");
  EXPECT_EQ(describe_scale_layout(ScaleLayout::swizzled_128x4, 129, 160, 1, 32, 2, 7),
            "(((32,4),2),((32,4),2),(1,7)):(((16,4),1024),((0,1),512),(0,2048))");
  EXPECT_EQ(
      describe_scale_layout(ScaleLayout::swizzled_128x4, 129, 160, 1, 32, 0, 7, Notation::cutlass),
      "(((_32,_4),2),((32,_4),2),(_1,7)):(((_16,_4),1024),((_0,_1),_512),(_0,2048))");
}

TEST(DescribeScaleLayout, OfTensors) {
  const ScaledTensor nvfp4(Recipe::nvfp4, 256, 128, ScaleLayout::swizzled_128x4);
  EXPECT_EQ(describe_scale_layout(nvfp4.view()),
            "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))");
  const ScaledTensor blocks(Recipe::fp8_128x128, 300, 200, ScaleLayout::mn_major, 2);
  EXPECT_EQ(describe_scale_layout(blocks.view()), "((128,3),(128,2),2):((0,1),(0,3),6)");
  const ScaledTensor whole(Recipe::fp8_tensor, 300, 200);
  EXPECT_EQ(describe_scale_layout(whole.view()), "((300,1),(200,1),1):((0,1),(0,1),1)");
  ScaledTensorView spread = blocks.view();
  spread.scale_batch_stride = 100;
  spread.scale_leading_stride = 8;
  EXPECT_EQ(describe_scale_layout(spread), "((128,3),(128,2),2):((0,1),(0,8),100)");
}

TEST(DescribeScaleLayout, RejectsEachBadArgument) {
  constexpr ScaleLayout kRows = ScaleLayout::row_major;
  constexpr ScaleLayout kSwizzled = ScaleLayout::swizzled_128x4;
  constexpr std::int64_t kHuge = std::int64_t{1} << 57;
  const auto check = [](const char* argument, auto... arguments) {
    expect_invalid(argument, [=] { (void)describe_scale_layout(arguments...); });
  };
  check("layout", static_cast<ScaleLayout>(9), 1, 1, 1, 1);
  check("rows", kRows, 0, 16, 1, 16);
  check("rows", kRows, -4, 16, 1, 16);
  check("rows", kRows, kHuge + 1, 16, 1, 16);
  check("k", kRows, 16, 0, 1, 16);
  check("rows_per_scale", kRows, 16, 16, 0, 16);
  check("rows_per_scale", kSwizzled, 16, 16, 2, 16);
  check("group", kRows, 16, 16, 1, 0);
  check("batch", kRows, 16, 16, 1, 16, 0, 0);
  check("leading_stride", kRows, 16, 64, 1, 16, 3);
  check("leading_stride", kRows, 16, 64, 1, 16, -1);
  check("leading_stride", kSwizzled, 16, 64, 1, 16, 2);
  check("rows", kRows, kHuge, kHuge, 1, 1);
  check("rows", kSwizzled, 1, kHuge, 1, 1);
  check("batch", kRows, std::int64_t{1} << 30, std::int64_t{1} << 20, 1, 1, 0,
        std::int64_t{1} << 20);
  expect_invalid("tensor.recipe", [] {
    float x[4] = {};
    (void)describe_scale_layout(as_scaled({x, Format::f32, 2, 2}));
  });
  expect_invalid("tensor.rows",
                 [] { (void)describe_scale_layout(ScaledTensor(Recipe::nvfp4, 0, 32).view()); });
}

}  // namespace
}  // namespace blockscale
