// Views: defaults, every rejected field, sizes derived from the recipe table.
#include "blockscale/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockscale/error.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

using test::expect_invalid;

TEST(ScaledTensor, SizesFollowTheRecipe) {
  EXPECT_EQ(value_bytes(Recipe::nvfp4, 3, 32), 48);
  EXPECT_EQ(value_bytes(Recipe::mxfp6_e2m3, 2, 32), 48);
  EXPECT_EQ(value_bytes(Recipe::fp8_128x128, 3, 129), 387);
  EXPECT_EQ(scale_bytes(Recipe::fp8_128x128, ScaleLayout::row_major, 129, 257), 2 * 3 * 4);
  EXPECT_EQ(scale_bytes(Recipe::nvfp4, ScaleLayout::swizzled_128x4, 129, 80), 256 * 8);
  EXPECT_EQ(scale_bytes(Recipe::mxfp4, ScaleLayout::swizzled_8x4, 9, 160), 16 * 8);
}

TEST(ScaledTensor, StartsZeroedWithUnitTensorScale) {
  const ScaledTensor tensor(Recipe::nvfp4, 4, 32, ScaleLayout::swizzled_8x4, 2);
  const ScaledTensorView view = tensor.view();
  EXPECT_EQ(view.tensor_scale[0], 1.0f);
  EXPECT_EQ(view.tensor_scale[1], 1.0f);
  EXPECT_EQ(view.value_row_stride, 16);
  EXPECT_EQ(view.scale_leading_stride, 1);
  EXPECT_EQ(static_cast<const unsigned char*>(view.scales)[63], 0);
}

TEST(ScaledTensor, StartsZeroedWhereItIsLarge) {
  constexpr std::int64_t kRows = 3000, kColumns = 4096;  // 12 MB
  for (int i = 0; i < 3; ++i) {                          // what was written is not found again
    ScaledTensor tensor(Recipe::mxfp8_e4m3, kRows, kColumns, ScaleLayout::swizzled_128x4);
    const std::int64_t values = kRows * kColumns;
    const std::int64_t scales =
        scale_bytes(Recipe::mxfp8_e4m3, ScaleLayout::swizzled_128x4, kRows, kColumns);
    const ScaledTensor moved = std::move(tensor);
    auto* const first = static_cast<std::uint8_t*>(const_cast<void*>(moved.view().values));
    auto* const of_scales = static_cast<std::uint8_t*>(const_cast<void*>(moved.view().scales));
    EXPECT_EQ(std::count(first, first + values, 0), values);
    EXPECT_EQ(std::count(of_scales, of_scales + scales, 0), scales);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
    std::fill_n(first, values, std::uint8_t{0xA5});
    std::fill_n(of_scales, scales, std::uint8_t{0xA5});
  }
}

TEST(ScaledTensor, RejectsWhatItsRecipeCannotHold) {
  expect_invalid("values.k", [] { ScaledTensor(Recipe::nvfp4, 4, 24); });
  expect_invalid("values.rows", [] { ScaledTensor(Recipe::nvfp4, -1, 32); });
  expect_invalid("values.rows",
                 [] { ScaledTensor(Recipe::fp8_row, std::int64_t{1} << 40, 1 << 30); });
  expect_invalid("values.batch", [] {
    ScaledTensor(Recipe::nvfp4, 1 << 20, 1 << 20, ScaleLayout::row_major, 1 << 30);
  });
  expect_invalid("scales.layout",
                 [] { ScaledTensor(Recipe::fp8_1x128, 4, 128, ScaleLayout::swizzled_8x4); });
  expect_invalid("values.recipe", [] { ScaledTensor(static_cast<Recipe>(99), 4, 128); });
}

TEST(MatrixView, RejectsEachBadField) {
  float data[16] = {};
  const MatrixView good{data, Format::f32, 2, 4, 0, 2, 0};
  EXPECT_EQ(resolved(good, "x").row_stride, 4);
  EXPECT_EQ(resolved(good, "x").batch_stride, 8);
  const auto with = [&](auto edit) {
    return [good, edit] {
      MatrixView view = good;
      edit(view);
      (void)resolved(view, "x");
    };
  };
  expect_invalid("x.dtype", with([](MatrixView& v) { v.dtype = Format::e4m3; }));
  expect_invalid("x.rows", with([](MatrixView& v) { v.rows = -2; }));
  expect_invalid("x.columns", with([](MatrixView& v) { v.columns = -1; }));
  expect_invalid("x.row_stride", with([](MatrixView& v) { v.row_stride = 3; }));
  expect_invalid("x.row_stride", with([](MatrixView& v) { v.row_stride = -4; }));
  expect_invalid("x.batch_stride", with([](MatrixView& v) { v.batch_stride = 7; }));
  expect_invalid("x.data", with([](MatrixView& v) { v.data = nullptr; }));
  expect_invalid("x.data",
                 with([](MatrixView& v) { v.data = static_cast<const char*>(v.data) + 1; }));
}

/// The stride of one row may be anything, and says nothing of where the next matrix lies.
TEST(MatrixView, TakesAnyStrideOfOneRow) {
  float data[8] = {};
  MatrixView view{data, Format::f32, 1, 4, 1, 2, 0};
  EXPECT_EQ(resolved(view, "x").row_stride, 4);
  EXPECT_EQ(resolved(view, "x").batch_stride, 4);
  view.batch_stride = 3;
  expect_invalid("x.batch_stride", [&] { (void)resolved(view, "x"); });
}

TEST(ScaledTensorView, HasMatricesOfOneRowApart) {
  std::uint8_t values[64] = {}, scales[4] = {};
  MutableScaledTensorView view;
  view.recipe = Recipe::mxfp4;
  view.rows = 1;
  view.k = 64;
  view.batch = 2;
  view.values = values;
  view.scales = scales;
  view.value_row_stride = 8;
  EXPECT_EQ(resolved(view, "x").value_batch_stride, 32);
  view.value_batch_stride = 16;
  expect_invalid("x.value_batch_stride", [&] { (void)resolved(view, "x"); });
}

}  // namespace
}  // namespace blockscale
