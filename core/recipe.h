// Recipes: element format + scale format + block shape + optional tensor scale, as one table.
//
// Everything that depends on a recipe is derived from kRecipes: sizes of values and scales, the
// Python enums, the names of the CLI and the table in docs/. To add one, see docs/add-a-format.md.
#pragma once

#include "core/config.h"
#include "core/format.h"
#include "core/packing.h"

namespace blockscale {

/// Identifies a row of kRecipes. `f32`, `f16` and `bf16` are the plain (unscaled) ones, so that an
/// operand of a GEMM is always described by a recipe.
enum class Recipe : uint8_t {
  f32,
  f16,
  bf16,
  fp8_tensor,
  fp8_tensor_e5m2,
  fp8_row,
  fp8_1x128,
  fp8_32x128,
  fp8_64x128,
  fp8_128x128,
  fp8_1x128_pow2,
  fp8_32x128_pow2,
  fp8_64x128_pow2,
  fp8_128x128_pow2,
  fp8_1x128_ue8m0,
  fp8_32x128_ue8m0,
  fp8_64x128_ue8m0,
  fp8_128x128_ue8m0,
  mxfp8_e4m3,
  mxfp8_e5m2,
  mxfp6_e2m3,
  mxfp6_e3m2,
  mxfp4,
  nvfp4,
};
inline constexpr int kRecipeCount = 24;

/// Families share their rules of scaling (docs/numerics.md).
enum class Family : uint8_t { plain, fp8, mx, nvfp4 };

struct RecipeTraits {
  Recipe recipe;
  const char* name;
  Family family;
  Format element;
  Format scale;       // f32 where there is none (Family::plain)
  int block_rows;     // rows that share a scale; 0: all of them
  int block_k;        // consecutive k that share a scale; 0: all of them
  bool power_of_two;  // FP8 only: scales are powers of two (ue8m0 always is)
  bool tensor_scale;  // one more f32 factor for the whole matrix
  bool ragged;        // rows and k need not be multiples of the block (else k must be)
};

/// Whether a scale depends on all elements of a matrix, unless it is given.
BLOCKSCALE_HD constexpr bool has_tensor_wide_scale(const RecipeTraits& recipe) {
  return recipe.block_rows == 0 || recipe.tensor_scale;
}

namespace detail {
BLOCKSCALE_HD constexpr RecipeTraits plain(Recipe r, const char* name, Format element) {
  return {r, name, Family::plain, element, Format::f32, 0, 0, false, false, true};
}
BLOCKSCALE_HD constexpr RecipeTraits fp8(Recipe r, const char* name, Format element, Format scale,
                                         int rows, int k, bool power_of_two = false) {
  return {r, name, Family::fp8, element, scale, rows, k, power_of_two, false, true};
}
BLOCKSCALE_HD constexpr RecipeTraits mx(Recipe r, const char* name, Format element) {
  return {r, name, Family::mx, element, Format::ue8m0, 1, 32, true, false, false};
}
}  // namespace detail

BLOCKSCALE_TABLE RecipeTraits kRecipes[kRecipeCount] = {
    detail::plain(Recipe::f32, "f32", Format::f32),
    detail::plain(Recipe::f16, "f16", Format::f16),
    detail::plain(Recipe::bf16, "bf16", Format::bf16),
    detail::fp8(Recipe::fp8_tensor, "fp8_tensor", Format::e4m3, Format::f32, 0, 0),
    detail::fp8(Recipe::fp8_tensor_e5m2, "fp8_tensor_e5m2", Format::e5m2, Format::f32, 0, 0),
    detail::fp8(Recipe::fp8_row, "fp8_row", Format::e4m3, Format::f32, 1, 0),
    detail::fp8(Recipe::fp8_1x128, "fp8_1x128", Format::e4m3, Format::f32, 1, 128),
    detail::fp8(Recipe::fp8_32x128, "fp8_32x128", Format::e4m3, Format::f32, 32, 128),
    detail::fp8(Recipe::fp8_64x128, "fp8_64x128", Format::e4m3, Format::f32, 64, 128),
    detail::fp8(Recipe::fp8_128x128, "fp8_128x128", Format::e4m3, Format::f32, 128, 128),
    detail::fp8(Recipe::fp8_1x128_pow2, "fp8_1x128_pow2", Format::e4m3, Format::f32, 1, 128, true),
    detail::fp8(Recipe::fp8_32x128_pow2, "fp8_32x128_pow2", Format::e4m3, Format::f32, 32, 128,
                true),
    detail::fp8(Recipe::fp8_64x128_pow2, "fp8_64x128_pow2", Format::e4m3, Format::f32, 64, 128,
                true),
    detail::fp8(Recipe::fp8_128x128_pow2, "fp8_128x128_pow2", Format::e4m3, Format::f32, 128, 128,
                true),
    detail::fp8(Recipe::fp8_1x128_ue8m0, "fp8_1x128_ue8m0", Format::e4m3, Format::ue8m0, 1, 128,
                true),
    detail::fp8(Recipe::fp8_32x128_ue8m0, "fp8_32x128_ue8m0", Format::e4m3, Format::ue8m0, 32, 128,
                true),
    detail::fp8(Recipe::fp8_64x128_ue8m0, "fp8_64x128_ue8m0", Format::e4m3, Format::ue8m0, 64, 128,
                true),
    detail::fp8(Recipe::fp8_128x128_ue8m0, "fp8_128x128_ue8m0", Format::e4m3, Format::ue8m0, 128,
                128, true),
    detail::mx(Recipe::mxfp8_e4m3, "mxfp8_e4m3", Format::e4m3),
    detail::mx(Recipe::mxfp8_e5m2, "mxfp8_e5m2", Format::e5m2),
    detail::mx(Recipe::mxfp6_e2m3, "mxfp6_e2m3", Format::e2m3),
    detail::mx(Recipe::mxfp6_e3m2, "mxfp6_e3m2", Format::e3m2),
    detail::mx(Recipe::mxfp4, "mxfp4", Format::e2m1),
    {Recipe::nvfp4, "nvfp4", Family::nvfp4, Format::e2m1, Format::ue4m3, 1, 16, false, true, false},
};

namespace detail {
BLOCKSCALE_HD constexpr bool recipes_are_in_order() {
  for (int i = 0; i < kRecipeCount; ++i) {
    if (kRecipes[i].recipe != static_cast<Recipe>(i)) return false;
  }
  return true;
}
static_assert(recipes_are_in_order());
}  // namespace detail

BLOCKSCALE_HD constexpr const RecipeTraits& recipe_traits(Recipe recipe) {
  return kRecipes[static_cast<int>(recipe)];
}

BLOCKSCALE_HD constexpr bool is_plain(Recipe recipe) {
  return recipe_traits(recipe).family == Family::plain;
}

/// Whether the swizzled scale layouts hold its scales: those of one byte, for one row each.
BLOCKSCALE_HD constexpr bool has_swizzled_scales(const RecipeTraits& t) {
  return t.family != Family::plain && format_traits(t.scale).bits == 8 && t.block_rows == 1;
}

/// The plain recipe of an f32, f16 or bf16 matrix. Other formats have none.
BLOCKSCALE_HD constexpr Recipe plain_recipe(Format format) {
  return format == Format::f16 ? Recipe::f16 : format == Format::bf16 ? Recipe::bf16 : Recipe::f32;
}

/// Scales of a matrix form a grid: one row of it per `block_rows` rows, one column per `block_k`.
struct ScaleGrid {
  int64_t rows;
  int64_t columns;
};

/// The scale grid of a [rows, k] matrix; {0, 0} for plain recipes and empty matrices.
BLOCKSCALE_HD constexpr ScaleGrid scale_grid(Recipe recipe, int64_t rows, int64_t k) {
  const RecipeTraits& t = recipe_traits(recipe);
  if (t.family == Family::plain || rows == 0 || k == 0) return {0, 0};
  return {t.block_rows == 0 ? 1 : ceil_div(rows, t.block_rows),
          t.block_k == 0 ? 1 : ceil_div(k, t.block_k)};
}

/// Bytes of one row of `k` packed values. k must be even for 4-bit and a multiple of 4 for 6-bit
/// elements, which every valid k of their recipes is; k <= 2^57.
BLOCKSCALE_HD constexpr int64_t row_bytes(Recipe recipe, int64_t k) {
  return packed_bytes(recipe_traits(recipe).element, k);
}

}  // namespace blockscale
