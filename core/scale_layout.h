// Where scales lie in memory: each layout stated once, as a CuTe layout (core/layout.h).
//
// Scales form a grid (core/recipe.h): one row of it for `row_block` rows of the matrix, one column
// for `k_block` consecutive k. make_scale_layout sends element coordinates (row, k) to the offset
// of their scale, counted in scales; sizes, grid offsets and inverses below are derived from it.
// A and B take the same layouts, with the rows of A (M) or of B (N).
#pragma once

#include "core/config.h"
#include "core/layout.h"

namespace blockscale {

enum class ScaleLayout : uint8_t {
  row_major,       // [i, j], leading stride between rows of the grid
  mn_major,        // [j, i], leading stride between k blocks
  swizzled_128x4,  // 512-byte tiles of 128 x 4 scales, k tiles first (tcgen05, LightX2V)
  swizzled_8x4,    // 32-byte tiles of 8 x 4 scales, k tiles first
};
inline constexpr int kScaleLayoutCount = 4;

/// The tile that a swizzled layout repeats. `k_block` as in make_scale_layout.
template <ScaleLayout L, class KBlock>
BLOCKSCALE_HD constexpr auto scale_atom(const KBlock& k_block) {
  static_assert(L == ScaleLayout::swizzled_128x4 || L == ScaleLayout::swizzled_8x4);
  if constexpr (L == ScaleLayout::swizzled_128x4) {
    return make_layout(make_tuple(make_tuple(Int<32>{}, Int<4>{}), make_tuple(k_block, Int<4>{})),
                       make_tuple(make_tuple(Int<16>{}, Int<4>{}), make_tuple(Int<0>{}, Int<1>{})));
  } else {
    return make_layout(make_tuple(Int<8>{}, make_tuple(k_block, Int<4>{})),
                       make_tuple(Int<4>{}, make_tuple(Int<0>{}, Int<1>{})));
  }
}

/// The layout of the scales of one matrix over element coordinates (row, k).
///
/// leading   elements between rows (row_major) or k blocks (mn_major) of the grid, >= their packed
///           length; for the swizzled layouts the number of k tiles (default_leading_stride).
/// Swizzled layouts hold scales of single rows: row_block must be 1. The matrix may be ragged: the
/// last blocks and tiles count in full. Each argument may be an Int<N>.
template <ScaleLayout L, class GridRows, class GridColumns, class RowBlock, class KBlock,
          class Leading>
BLOCKSCALE_HD constexpr auto make_scale_layout(const GridRows& grid_rows,
                                               const GridColumns& grid_columns,
                                               const RowBlock& row_block, const KBlock& k_block,
                                               const Leading& leading) {
  const auto blocks = make_tuple(make_tuple(row_block, grid_rows),  //
                                 make_tuple(k_block, grid_columns));
  if constexpr (L == ScaleLayout::row_major) {
    return make_layout(blocks, make_tuple(make_tuple(Int<0>{}, leading),  //
                                          make_tuple(Int<0>{}, Int<1>{})));
  } else if constexpr (L == ScaleLayout::mn_major) {
    return make_layout(blocks, make_tuple(make_tuple(Int<0>{}, Int<1>{}),  //
                                          make_tuple(Int<0>{}, leading)));
  } else {
    const auto atom = scale_atom<L>(k_block);
    const auto k = leading * size(mode<1>(atom));
    return tile_to_shape(atom, make_tuple(grid_rows, k), make_tuple(Int<2>{}, Int<1>{}));
  }
}

/// `layout`, made by make_scale_layout<L>, over (row, k, batch): matrices `batch_stride` apart.
template <ScaleLayout L, class Shape, class Stride, class Batch, class BatchStride>
BLOCKSCALE_HD constexpr auto append_batch(const Layout<Shape, Stride>& layout, const Batch& batch,
                                          const BatchStride& batch_stride) {
  if constexpr (L == ScaleLayout::row_major || L == ScaleLayout::mn_major) {
    return append_mode(layout, batch, batch_stride);
  } else {  // as tile_to_shape over (row, k, batch) has it
    return append_mode(layout, make_tuple(Int<1>{}, batch), make_tuple(Int<0>{}, batch_stride));
  }
}

struct ScaleLayoutTraits {
  ScaleLayout layout;
  const char* name;
  int tile_rows;  // rows of the grid in one tile; 1 for the strided layouts
  int tile_k;     // k blocks in one tile
};

namespace detail {

BLOCKSCALE_HD constexpr ScaleLayoutTraits strided(ScaleLayout layout, const char* name) {
  return {layout, name, 1, 1};
}
template <ScaleLayout L>
BLOCKSCALE_HD constexpr ScaleLayoutTraits swizzled(const char* name) {
  const auto atom = scale_atom<L>(Int<1>{});
  return {L, name, size(mode<0>(atom)), size(mode<1>(atom))};
}

}  // namespace detail

BLOCKSCALE_TABLE ScaleLayoutTraits kScaleLayouts[kScaleLayoutCount] = {
    detail::strided(ScaleLayout::row_major, "row_major"),
    detail::strided(ScaleLayout::mn_major, "mn_major"),
    detail::swizzled<ScaleLayout::swizzled_128x4>("swizzled_128x4"),
    detail::swizzled<ScaleLayout::swizzled_8x4>("swizzled_8x4"),
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

/// A layout as a type, for what visit_scale_layout calls.
template <ScaleLayout L>
struct ScaleLayoutTag {
  static constexpr ScaleLayout value = L;
};

/// visitor(ScaleLayoutTag<layout>{}): crosses from the value of a layout to its type.
template <class Visitor>
BLOCKSCALE_HD constexpr auto visit_scale_layout(ScaleLayout layout, const Visitor& visitor) {
  switch (layout) {
    case ScaleLayout::row_major: break;
    case ScaleLayout::mn_major: return visitor(ScaleLayoutTag<ScaleLayout::mn_major>{});
    case ScaleLayout::swizzled_128x4: return visitor(ScaleLayoutTag<ScaleLayout::swizzled_128x4>{});
    case ScaleLayout::swizzled_8x4: return visitor(ScaleLayoutTag<ScaleLayout::swizzled_8x4>{});
  }
  return visitor(ScaleLayoutTag<ScaleLayout::row_major>{});
}

/// Offset of the scale at (i, j) of the grid. `leading` as in default_leading_stride.
template <ScaleLayout L>
BLOCKSCALE_HD constexpr int64_t scale_offset(int64_t i, int64_t j, int64_t leading) {
  // The outermost modes have no end, so the extents of the grid do not matter.
  return make_scale_layout<L>(Int<1>{}, Int<1>{}, Int<1>{}, Int<1>{}, leading)(i, j);
}

/// Where in the grid a scale belongs.
struct ScaleCoordinate {
  int64_t i;
  int64_t j;
};

namespace detail {

// What the functions below do once the layout is a type. (Lambdas would need a flag of nvcc's.)
struct OffsetVisitor {
  int64_t i, j, leading;
  template <ScaleLayout L>
  BLOCKSCALE_HD constexpr int64_t operator()(ScaleLayoutTag<L>) const {
    return scale_offset<L>(i, j, leading);
  }
};

struct CountVisitor {
  int64_t grid_rows, grid_columns, leading;
  template <ScaleLayout L>
  BLOCKSCALE_HD constexpr int64_t operator()(ScaleLayoutTag<L>) const {
    return cosize(make_scale_layout<L>(grid_rows, grid_columns, Int<1>{}, Int<1>{}, leading));
  }
};

struct CoordinateVisitor {
  int64_t offset, grid_rows, grid_columns, leading;
  template <ScaleLayout L>
  BLOCKSCALE_HD constexpr ScaleCoordinate operator()(ScaleLayoutTag<L>) const {
    const auto layout = make_scale_layout<L>(grid_rows, grid_columns, Int<1>{}, Int<1>{}, leading);
    const int64_t index = inverse(layout, offset);
    const int64_t rows = size(mode<0>(layout));  // of whole tiles
    if (index < 0 || index % rows >= grid_rows || index / rows >= grid_columns) return {-1, -1};
    return {index % rows, index / rows};
  }
};

}  // namespace detail

BLOCKSCALE_HD constexpr int64_t scale_offset(ScaleLayout layout, int64_t i, int64_t j,
                                             int64_t leading) {
  return visit_scale_layout(layout, detail::OffsetVisitor{i, j, leading});
}

/// Scale elements a grid occupies, padding included (the cosize of the layout; 0 if it is empty).
BLOCKSCALE_HD constexpr int64_t scale_count(ScaleLayout layout, int64_t grid_rows,
                                            int64_t grid_columns, int64_t leading) {
  if (grid_rows == 0 || grid_columns == 0) return 0;
  return visit_scale_layout(layout, detail::CountVisitor{grid_rows, grid_columns, leading});
}

/// Scale elements between the matrices of a packed batch: whole lines of `leading`, or whole tiles.
BLOCKSCALE_HD constexpr int64_t default_batch_stride(ScaleLayout layout, int64_t grid_rows,
                                                     int64_t grid_columns, int64_t leading) {
  if (layout == ScaleLayout::row_major) return grid_rows * leading;
  if (layout == ScaleLayout::mn_major) return grid_columns * leading;
  return scale_count(layout, grid_rows, grid_columns, leading);
}

/// The inverse of scale_offset: the grid coordinate whose scale lies at `offset` (within
/// scale_count), or {-1, -1} for padding.
BLOCKSCALE_HD constexpr ScaleCoordinate scale_coordinate(ScaleLayout layout, int64_t offset,
                                                         int64_t grid_rows, int64_t grid_columns,
                                                         int64_t leading) {
  return visit_scale_layout(layout,
                            detail::CoordinateVisitor{offset, grid_rows, grid_columns, leading});
}

}  // namespace blockscale
