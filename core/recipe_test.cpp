// The recipe table against the one that the project settled on, and what is derived from it.
#include "core/recipe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

namespace blockscale {
namespace {

/// The settled table. 0: whole tensor (rows) or whole row (k).
struct Settled {
  Recipe recipe;
  const char* name;
  Format element, scale;
  int block_rows, block_k;
  bool power_of_two, tensor_scale;
};
constexpr Format kE4m3 = Format::e4m3, kE5m2 = Format::e5m2, kE2m1 = Format::e2m1;
constexpr Format kF32 = Format::f32, kUe8m0 = Format::ue8m0;
constexpr Settled kSettled[] = {
    {Recipe::fp8_tensor, "fp8_tensor", kE4m3, kF32, 0, 0, false, false},
    {Recipe::fp8_tensor_e5m2, "fp8_tensor_e5m2", kE5m2, kF32, 0, 0, false, false},
    {Recipe::fp8_row, "fp8_row", kE4m3, kF32, 1, 0, false, false},
    {Recipe::fp8_1x128, "fp8_1x128", kE4m3, kF32, 1, 128, false, false},
    {Recipe::fp8_32x128, "fp8_32x128", kE4m3, kF32, 32, 128, false, false},
    {Recipe::fp8_64x128, "fp8_64x128", kE4m3, kF32, 64, 128, false, false},
    {Recipe::fp8_128x128, "fp8_128x128", kE4m3, kF32, 128, 128, false, false},
    {Recipe::fp8_1x128_pow2, "fp8_1x128_pow2", kE4m3, kF32, 1, 128, true, false},
    {Recipe::fp8_32x128_pow2, "fp8_32x128_pow2", kE4m3, kF32, 32, 128, true, false},
    {Recipe::fp8_64x128_pow2, "fp8_64x128_pow2", kE4m3, kF32, 64, 128, true, false},
    {Recipe::fp8_128x128_pow2, "fp8_128x128_pow2", kE4m3, kF32, 128, 128, true, false},
    {Recipe::fp8_1x128_ue8m0, "fp8_1x128_ue8m0", kE4m3, kUe8m0, 1, 128, true, false},
    {Recipe::fp8_32x128_ue8m0, "fp8_32x128_ue8m0", kE4m3, kUe8m0, 32, 128, true, false},
    {Recipe::fp8_64x128_ue8m0, "fp8_64x128_ue8m0", kE4m3, kUe8m0, 64, 128, true, false},
    {Recipe::fp8_128x128_ue8m0, "fp8_128x128_ue8m0", kE4m3, kUe8m0, 128, 128, true, false},
    {Recipe::mxfp8_e4m3, "mxfp8_e4m3", kE4m3, kUe8m0, 1, 32, true, false},
    {Recipe::mxfp8_e5m2, "mxfp8_e5m2", kE5m2, kUe8m0, 1, 32, true, false},
    {Recipe::mxfp6_e2m3, "mxfp6_e2m3", Format::e2m3, kUe8m0, 1, 32, true, false},
    {Recipe::mxfp6_e3m2, "mxfp6_e3m2", Format::e3m2, kUe8m0, 1, 32, true, false},
    {Recipe::mxfp4, "mxfp4", kE2m1, kUe8m0, 1, 32, true, false},
    {Recipe::nvfp4, "nvfp4", kE2m1, Format::ue4m3, 1, 16, false, true},
};

TEST(Recipes, AreTheSettledOnes) {
  int scaled = 0;
  for (const RecipeTraits& t : kRecipes) scaled += t.family != Family::plain;
  EXPECT_EQ(scaled, static_cast<int>(std::size(kSettled)));
  for (const Settled& s : kSettled) {
    const RecipeTraits& t = recipe_traits(s.recipe);
    EXPECT_STREQ(t.name, s.name);
    EXPECT_EQ(t.element, s.element) << s.name;
    EXPECT_EQ(t.scale, s.scale) << s.name;
    EXPECT_EQ(t.block_rows, s.block_rows) << s.name;
    EXPECT_EQ(t.block_k, s.block_k) << s.name;
    EXPECT_EQ(t.power_of_two, s.power_of_two) << s.name;
    EXPECT_EQ(t.tensor_scale, s.tensor_scale) << s.name;
    // FP8 may be ragged; MX and NVFP4 ask k to be a multiple of the block.
    EXPECT_EQ(t.ragged, t.family == Family::fp8) << s.name;
  }
}

TEST(Recipes, NamesAreUnique) {
  std::set<std::string> names;
  for (const RecipeTraits& t : kRecipes) EXPECT_TRUE(names.insert(t.name).second) << t.name;
}

TEST(Recipes, PlainOnesHoldNoScales) {
  for (const Format format : {Format::f32, Format::f16, Format::bf16}) {
    const Recipe recipe = plain_recipe(format);
    EXPECT_TRUE(is_plain(recipe));
    EXPECT_EQ(recipe_traits(recipe).element, format);
    EXPECT_EQ(scale_grid(recipe, 7, 9).rows, 0);
    EXPECT_EQ(row_bytes(recipe, 9), 9 * format_traits(format).bits / 8);
  }
}

TEST(Recipes, GridsAndBytesFollowTheTable) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::plain) continue;
    for (const std::int64_t rows : {1, 31, 128, 129, 300}) {
      for (const std::int64_t k : {32, 128, 416, 1024}) {
        const ScaleGrid grid = scale_grid(t.recipe, rows, k);
        const std::int64_t block_rows = t.block_rows == 0 ? rows : t.block_rows;
        const std::int64_t block_k = t.block_k == 0 ? k : t.block_k;
        EXPECT_EQ(grid.rows, (rows + block_rows - 1) / block_rows) << t.name;
        EXPECT_EQ(grid.columns, (k + block_k - 1) / block_k) << t.name;
        EXPECT_EQ(row_bytes(t.recipe, k) * 8, k * format_traits(t.element).bits) << t.name;
      }
    }
    EXPECT_EQ(scale_grid(t.recipe, 0, 128).rows, 0);
    EXPECT_EQ(scale_grid(t.recipe, 128, 0).columns, 0);
  }
}

}  // namespace
}  // namespace blockscale
