// Where the scale of (scale row i, k block j) lies in memory.
//
// `i` and `j` index the scale grid of core/recipe.h. Offsets count scale elements. Each layout is
// one entry here; its CuTe form (core/layout.h) and this arithmetic are tested to agree.
#pragma once

#include "core/config.h"

namespace blockscale {

enum class ScaleLayout : uint8_t {
  row_major,       // [i, j], leading stride between rows of the grid
  mn_major,        // [j, i], leading stride between k blocks
  swizzled_128x4,  // 512-byte tiles ((32,4),4):((16,4),1), k tiles first (tcgen05, LightX2V)
  swizzled_8x4,    // 32-byte tiles (8,4):(4,1), k tiles first
};
inline constexpr int kScaleLayoutCount = 4;

struct ScaleLayoutTraits {
  ScaleLayout layout;
  const char* name;
  int tile_rows;  // rows of the grid in one tile; 1 for the strided layouts
  int tile_k;     // k blocks in one tile
};

inline constexpr ScaleLayoutTraits kScaleLayouts[kScaleLayoutCount] = {
    {ScaleLayout::row_major, "row_major", 1, 1},
    {ScaleLayout::mn_major, "mn_major", 1, 1},
    {ScaleLayout::swizzled_128x4, "swizzled_128x4", 128, 4},
    {ScaleLayout::swizzled_8x4, "swizzled_8x4", 8, 4},
};

BLOCKSCALE_HD constexpr const ScaleLayoutTraits& scale_layout_traits(ScaleLayout layout) {
  return kScaleLayouts[static_cast<int>(layout)];
}

BLOCKSCALE_HD constexpr bool is_swizzled(ScaleLayout layout) {
  return scale_layout_traits(layout).tile_rows > 1;
}

/// The leading stride of a packed grid: columns for row_major, rows for mn_major; for the swizzled
/// layouts the number of k tiles, which is not the caller's to choose.
BLOCKSCALE_HD constexpr int64_t default_leading_stride(ScaleLayout layout, int64_t grid_rows,
                                                       int64_t grid_columns) {
  if (layout == ScaleLayout::row_major) return grid_columns;
  if (layout == ScaleLayout::mn_major) return grid_rows;
  return ceil_div(grid_columns, scale_layout_traits(layout).tile_k);
}

/// Offset of the scale at (i, j) of the grid. `leading` as in default_leading_stride.
BLOCKSCALE_HD constexpr int64_t scale_offset(ScaleLayout layout, int64_t i, int64_t j,
                                             int64_t leading) {
  switch (layout) {
    case ScaleLayout::row_major: return i * leading + j;
    case ScaleLayout::mn_major: return j * leading + i;
    case ScaleLayout::swizzled_128x4:
      return ((i / 128) * leading + j / 4) * 512 + (i % 32) * 16 + (i / 32 % 4) * 4 + j % 4;
    case ScaleLayout::swizzled_8x4: return ((i / 8) * leading + j / 4) * 32 + (i % 8) * 4 + j % 4;
  }
  return 0;
}

/// Scale elements a grid occupies, padding included (the cosize of the layout; 0 if it is empty).
BLOCKSCALE_HD constexpr int64_t scale_count(ScaleLayout layout, int64_t grid_rows,
                                            int64_t grid_columns, int64_t leading) {
  if (grid_rows == 0 || grid_columns == 0) return 0;
  const ScaleLayoutTraits& t = scale_layout_traits(layout);
  if (is_swizzled(layout)) {
    return ceil_div(grid_rows, t.tile_rows) * leading * t.tile_rows * t.tile_k;
  }
  return scale_offset(layout, grid_rows - 1, grid_columns - 1, leading) + 1;
}

}  // namespace blockscale
