// Moves a rectangle of the scale grid between consecutive rows of a buffer and a scale layout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/scale_layout.h"

namespace blockscale {

/// Rows [row, row + rows) x columns [column, column + columns) of a grid of so many rows and
/// columns. `column` is a multiple of 4, or the columns lie between two multiples of 4.
struct ScaleRectangle {
  std::int64_t row, rows;
  std::int64_t column, columns;
  std::int64_t grid_rows, grid_columns;
};

/// The scales of one matrix; `Scale` is const-qualified where they are only read.
template <class Scale>
struct PlacedScales {
  Scale* scales;
  ScaleLayout layout;
  std::int64_t leading;

  Scale* at(std::int64_t i, std::int64_t j) const {
    return scales + scale_offset(layout, i, j, leading);
  }
};

/// Calls `copy(placed, i, j, count)` for the longest runs of neighbours in memory that a layout
/// other than mn_major gives scale rows of the rectangle; i and j count from its corner. Those of a
/// few rows come together, as they are neighbours in a tile.
template <class Scale, class Copy>
void for_each_run(const PlacedScales<Scale>& p, const ScaleRectangle& r, const Copy& copy) {
  constexpr std::int64_t kRows = 32;
  const ScaleLayoutTraits& t = scale_layout_traits(p.layout);
  const std::int64_t run = is_swizzled(p.layout) ? t.tile_k : r.columns;
  const std::int64_t step = static_cast<std::int64_t>(t.tile_rows) * t.tile_k;
  for (std::int64_t first = 0; first < r.rows; first += kRows) {
    const std::int64_t rows = std::min(kRows, r.rows - first);
    Scale* placed[kRows] = {};
    for (std::int64_t i = 0; i < rows; ++i) placed[i] = p.at(r.row + first + i, r.column);
    for (std::int64_t j = 0; j < r.columns; j += run) {
      const std::int64_t count = std::min(run, r.columns - j);
      for (std::int64_t i = 0; i < rows; ++i) {
        copy(placed[i], first + i, j, count);
        placed[i] += step;
      }
    }
  }
}

/// Copies a run; those of swizzled layouts are 4 scales, but the last.
template <class Scale>
void copy_run(Scale* to, const Scale* from, std::int64_t count) {
  if (count == 4) {
    std::memcpy(to, from, 4 * sizeof(Scale));
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Scale));
  }
}

/// Zeroes what a swizzled layout adds to a grid beside the rectangle: beyond the grid's last column
/// and row, if the rectangle ends there.
inline void clear_padding(const PlacedScales<std::uint8_t>& out, const ScaleRectangle& r) {
  const ScaleLayoutTraits& t = scale_layout_traits(out.layout);
  const std::int64_t row_end = r.row + r.rows;
  const std::int64_t column_end = r.column + r.columns;
  const std::int64_t padded_columns =
      column_end == r.grid_columns ? ceil_div(column_end, t.tile_k) * t.tile_k : column_end;
  for (std::int64_t i = r.row; column_end < padded_columns && i < row_end; ++i) {
    std::fill_n(out.at(i, column_end), padded_columns - column_end, std::uint8_t{0});
  }
  if (row_end != r.grid_rows) return;
  for (std::int64_t i = row_end; i < ceil_div(row_end, t.tile_rows) * t.tile_rows; ++i) {
    for (std::int64_t j = r.column; j < padded_columns; ++j) *out.at(i, j) = 0;
  }
}

/// Writes the rectangle from `scales`, `pitch` of them from row to row, padding included.
template <class Scale>
void place_scales(const PlacedScales<Scale>& out, const ScaleRectangle& r, const Scale* scales,
                  std::int64_t pitch) {
  if (out.layout == ScaleLayout::mn_major) {
    for (std::int64_t j = 0; j < r.columns; ++j) {
      Scale* const to = out.at(r.row, r.column + j);
      for (std::int64_t i = 0; i < r.rows; ++i) to[i] = scales[i * pitch + j];
    }
    return;
  }
  for_each_run(out, r, [&](Scale* placed, std::int64_t i, std::int64_t j, std::int64_t count) {
    copy_run(placed, scales + i * pitch + j, count);
  });
  if constexpr (sizeof(Scale) == 1) {
    if (is_swizzled(out.layout)) clear_padding(out, r);
  }
}

/// Reads the rectangle into `scales`, `pitch` of them from row to row.
template <class Scale>
void gather_scales(const PlacedScales<const Scale>& in, const ScaleRectangle& r, Scale* scales,
                   std::int64_t pitch) {
  if (in.layout == ScaleLayout::mn_major) {
    for (std::int64_t j = 0; j < r.columns; ++j) {
      const Scale* const from = in.at(r.row, r.column + j);
      for (std::int64_t i = 0; i < r.rows; ++i) scales[i * pitch + j] = from[i];
    }
    return;
  }
  for_each_run(in, r, [&](const Scale* placed, std::int64_t i, std::int64_t j, std::int64_t count) {
    copy_run(scales + i * pitch + j, placed, count);
  });
}

}  // namespace blockscale
