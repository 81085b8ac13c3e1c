#include "ops/quantize/rows_and_columns_cuda_parts.h"

#include <algorithm>
#include <cstdint>

#include "core/recipe.h"
#include "ops/quantize/cuda_tiles.h"

namespace blockscale::quantize_detail {
namespace {

using Axis = RowsAndColumnsParts::Axis;

/// Least tiles of the last part for each multiprocessor: while they last, the launch before it
/// ends.
constexpr std::int64_t kLastTiles = 3;
/// Most tiles of other parts for each multiprocessor, where steps along the axis and the number of
/// parts allow it: three times their scales, of a KiB each, stay in level 2 until they are moved.
constexpr std::int64_t kMostTiles = 16;
constexpr std::int64_t kMostParts = 9;
/// Tiles along the axis of which f32 scales of a line fill whole sectors, and whole lines.
constexpr std::int64_t kSectorTiles = 8;
constexpr std::int64_t kLineTiles = 32;

std::int64_t round_down(std::int64_t n, std::int64_t to) {
  return n / to * to;
}
std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return ceil_div(n, to) * to;
}

std::int64_t scale_bytes_of(const MutableScaledTensorView& out) {
  return format_bytes(recipe_traits(out.recipe).scale);
}

/// Moves a pointer on. (It may be null, or one that tests invent.)
template <class T>
void advance(T*& pointer, std::int64_t bytes) {
  pointer = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) +
                                 static_cast<std::uintptr_t>(bytes));
}

/// Rows of a tensor from `begin` on; codes have 8 bits and scales are in row_major.
void take_rows(MutableScaledTensorView& out, std::int64_t begin, std::int64_t end) {
  advance(out.values, begin * out.value_row_stride);
  advance(out.scales, begin * out.scale_leading_stride * scale_bytes_of(out));
  out.rows = end - begin;
}
/// Columns of it.
void take_columns(MutableScaledTensorView& out, std::int64_t begin, std::int64_t end) {
  advance(out.values, begin);
  advance(out.scales, begin / kTransposeTile * scale_bytes_of(out));
  out.k = end - begin;
}
void take_matrices(MutableScaledTensorView& out, std::int64_t begin, std::int64_t end) {
  advance(out.values, begin * out.value_batch_stride);
  advance(out.scales, begin * out.scale_batch_stride * scale_bytes_of(out));
  out.batch = end - begin;
}

/// Whether scales are far apart, and four of a row that are moved can be stored at once.
bool may_move_scales_to(const MutableScaledTensorView& out) {
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  return out.layout == ScaleLayout::row_major && grid.columns >= kSectorTiles &&
         is_multiple(grid.rows, 4) && is_multiple(out.scales, 4 * scale_bytes_of(out)) &&
         is_multiple(out.scale_leading_stride, 4) && is_multiple(out.scale_batch_stride, 4);
}

/// Steps along an axis.
struct Steps {
  RowsAndColumnsParts::Axis axis;
  std::int64_t size;          // of x along the axis
  std::int64_t step;          // the same of a step
  std::int64_t count;         // of steps
  std::int64_t tiles;         // of a step
  std::int64_t sector, line;  // steps of which scales fill whole ones
};

RowsAndColumnsParts parts_along(const Steps& steps, std::int64_t multiprocessors) {
  RowsAndColumnsParts parts;
  parts.axis = steps.axis;
  parts.size = steps.size;
  const std::int64_t last = ceil_div(kLastTiles * multiprocessors, steps.tiles);
  const std::int64_t staged =
      round_down(std::max<std::int64_t>(0, steps.count - last), steps.sector);
  if (staged * 8 < steps.count * 5) return parts;  // too little to gain
  const std::int64_t most = kMostTiles * multiprocessors;
  const std::int64_t count = std::min(ceil_div(staged * steps.tiles, most), kMostParts - 1);
  const std::int64_t whole = steps.line * steps.tiles <= most ? steps.line : steps.sector;
  const std::int64_t each = std::min(round_up(ceil_div(staged, count), whole), staged);
  parts.staged = staged * steps.step;
  parts.each = each * steps.step;
  parts.count = static_cast<int>(ceil_div(staged, each)) + 1;
  return parts;
}

std::int64_t staged_leading_stride(const ScaleGrid& grid) {
  return round_up(grid.rows, 16);
}

}  // namespace

std::int64_t RowsAndColumnsParts::begin(int part) const {
  if (part >= count) return size;
  return std::min(part * each, staged);
}

RowsAndColumnsParts parts_of(const RowsAndColumnsArguments& a, std::int64_t multiprocessors) {
  if (!may_move_scales_to(a.rows) || !may_move_scales_to(a.columns)) return {};
  const std::int64_t down = ceil_div(a.rows.rows, kTransposeTile);
  const std::int64_t across = ceil_div(a.rows.k, kTransposeTile);
  if (a.rows.batch > 1) {
    const std::int64_t batch = a.rows.batch;
    return parts_along({Axis::matrices, batch, 1, batch, down * across, 1, 1}, multiprocessors);
  }
  const auto along = [&](Axis axis, std::int64_t size, std::int64_t count, std::int64_t in_step) {
    return parts_along({axis, size, kTransposeTile, count, in_step, kSectorTiles, kLineTiles},
                       multiprocessors);
  };
  const RowsAndColumnsParts rows = along(Axis::rows, a.rows.rows, down, across);
  const RowsAndColumnsParts columns = along(Axis::columns, a.rows.k, across, down);
  // The one with the smaller last part.
  return rows.staged * a.rows.k >= columns.staged * a.rows.rows ? rows : columns;
}

RowsAndColumnsArguments part_of(const RowsAndColumnsArguments& a, Axis axis, std::int64_t begin,
                                std::int64_t end) {
  RowsAndColumnsArguments part = a;
  const std::int64_t element = format_bytes(a.x.dtype);
  switch (axis) {
    case Axis::matrices:
      advance(part.x.data, begin * a.x.batch_stride * element);
      part.x.batch = end - begin;
      take_matrices(part.rows, begin, end);
      take_matrices(part.columns, begin, end);
      break;
    case Axis::rows:
      advance(part.x.data, begin * a.x.row_stride * element);
      part.x.rows = end - begin;
      take_rows(part.rows, begin, end);
      take_columns(part.columns, begin, end);
      break;
    case Axis::columns:
      advance(part.x.data, begin * element);
      part.x.columns = end - begin;
      take_columns(part.rows, begin, end);
      take_rows(part.columns, begin, end);
      break;
  }
  return part;
}

MutableScaledTensorView with_staged_scales(const MutableScaledTensorView& out, void* scales) {
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  MutableScaledTensorView staged = out;
  staged.layout = ScaleLayout::mn_major;
  staged.scales = scales;
  staged.scale_leading_stride = staged_leading_stride(grid);
  staged.scale_batch_stride = staged.scale_leading_stride * grid.columns;
  return staged;
}

std::int64_t staged_scale_bytes(const MutableScaledTensorView& out) {
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  const std::int64_t scales = out.batch * grid.columns * staged_leading_stride(grid);
  return round_up(scales * scale_bytes_of(out), 256);
}

ScaleMove move_of_scales(const MutableScaledTensorView& from, const MutableScaledTensorView& to) {
  const ScaleGrid grid = scale_grid(to.recipe, to.rows, to.k);
  const std::int64_t scale = scale_bytes_of(to);
  ScaleMove m;
  m.from = static_cast<const std::uint8_t*>(from.scales);
  m.from_leading_stride = from.scale_leading_stride;
  m.from_batch_stride = from.scale_batch_stride;
  m.to = static_cast<std::uint8_t*>(to.scales);
  m.to_leading_stride = to.scale_leading_stride;
  m.to_batch_stride = to.scale_batch_stride;
  m.rows = static_cast<std::uint32_t>(grid.rows);
  m.columns = static_cast<std::uint32_t>(grid.columns);
  m.bytes = scale == 1;
  const std::int64_t across = ceil_div(grid.columns, kMovedColumns);
  const std::int64_t in_matrix = across * ceil_div(grid.rows, kMovedRows);
  check_count(to.batch * in_matrix, "parts of scales");
  m.blocks = static_cast<std::uint32_t>(to.batch * in_matrix);
  m.across = Divisor(static_cast<std::uint32_t>(across));
  m.per_matrix = Divisor(static_cast<std::uint32_t>(in_matrix));
  return m;
}

}  // namespace blockscale::quantize_detail
