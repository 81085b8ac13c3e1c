#include "ops/grouped_gemm/cpu/gather.h"

#include <cstddef>
#include <cstring>
#include <functional>

#include "blockscale/parallel.h"
#include "ops/common/scale_placement.h"

namespace blockscale::grouped_gemm_detail {
namespace {

/// Copies the scales of row `row` of `x`, in the order of k.
template <class Scale>
void copy_scales(const ScaledTensorView& x, std::int64_t row, std::int64_t columns,
                 std::uint8_t* to) {
  const std::int64_t grid_row = row / recipe_traits(x.recipe).block_rows;
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const PlacedScales<const Scale> from{static_cast<const Scale*>(x.scales), x.layout,
                                       x.scale_leading_stride};
  gather_scales(from, {grid_row, 1, 0, columns, grid.rows, grid.columns},
                reinterpret_cast<Scale*>(to), columns);
}

std::int64_t scale_size(Recipe recipe) {
  return format_traits(recipe_traits(recipe).scale).bits / 8;
}

/// Whether each row has scales that are copied with it.
bool has_scales_of_rows(Recipe recipe) {
  return !is_plain(recipe) && recipe_traits(recipe).block_rows != 0;
}

}  // namespace

Recipe recipe_of_gathered(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  if (t.block_rows <= 1) return recipe;
  for (const RecipeTraits& other : kRecipes) {
    if (other.family == t.family && other.element == t.element && other.scale == t.scale &&
        other.block_rows == 1 && other.block_k == t.block_k &&
        other.power_of_two == t.power_of_two) {
      return other.recipe;
    }
  }
  return recipe;
}

GatheredRows::GatheredRows(const GroupedGemmArguments& x, std::int64_t most_rows) : view_(x.a) {
  view_.recipe = recipe_of_gathered(x.a.recipe);
  view_.rows = most_rows;
  view_.value_row_stride = row_bytes(view_.recipe, view_.k);
  values_ = gemm_detail::allocate<std::uint8_t>(most_rows * view_.value_row_stride);
  view_.values = values_.get();
  if (!has_scales_of_rows(view_.recipe)) {
    if (is_plain(view_.recipe) || x.a.rows > 0) return;
    // The one scale of an A without rows need not exist.
    scales_ = gemm_detail::allocate<std::uint8_t>(sizeof(float));
    std::memset(scales_.get(), 0, sizeof(float));
    view_.scales = scales_.get();
    return;
  }
  view_.layout = ScaleLayout::row_major;
  view_.scale_leading_stride = scale_grid(view_.recipe, most_rows, view_.k).columns;
  scales_ = gemm_detail::allocate<std::uint8_t>(most_rows * view_.scale_leading_stride *
                                                scale_size(view_.recipe));
  view_.scales = scales_.get();
}

ScaledTensorView GatheredRows::gather(const GroupedGemmArguments& x, const RowWave& wave,
                                      int threads) {
  constexpr std::int64_t kRows = 8;  // that are copied at a time
  const auto copy_rows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const Part& part = wave.part_of(r);
      copy_row(x, x.index[part.rows.begin + r - part.first], r);
    }
  };
  parallel_for(wave.rows, kRows, threads, std::cref(copy_rows));
  return view_;
}

void GatheredRows::copy_row(const GroupedGemmArguments& x, std::int64_t source, std::int64_t to) {
  const std::int64_t stride = view_.value_row_stride;
  const auto bytes = static_cast<std::size_t>(stride);
  std::uint8_t* const values = values_.get() + to * stride;
  const std::int64_t columns = view_.scale_leading_stride;
  const std::int64_t size = scale_size(view_.recipe);
  const bool with_scales = has_scales_of_rows(view_.recipe);
  std::uint8_t* const scales = with_scales ? scales_.get() + to * columns * size : nullptr;
  if (source < 0 || source >= x.a.rows) {
    std::memset(values, 0, bytes);
    if (with_scales) std::memset(scales, 0, static_cast<std::size_t>(columns * size));
    return;
  }
  std::memcpy(values, static_cast<const std::uint8_t*>(x.a.values) + source * x.a.value_row_stride,
              bytes);
  if (!with_scales) return;
  if (size == 1) {
    copy_scales<std::uint8_t>(x.a, source, columns, scales);
  } else {
    copy_scales<float>(x.a, source, columns, scales);
  }
}

}  // namespace blockscale::grouped_gemm_detail
