#include "ops/common/overlap.h"

namespace blockscale {
namespace {

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

bool is_empty(const MemoryLines& x) {
  return x.begin == 0 || x.bytes == 0 || x.lines == 0 || x.batch == 0;
}

std::uintptr_t line_begin(const MemoryLines& x, std::int64_t index) {
  return x.begin + static_cast<std::uintptr_t>(index / x.lines * x.batch_stride +
                                               index % x.lines * x.line_stride);
}

std::uintptr_t line_end(const MemoryLines& x, std::int64_t index) {
  return line_begin(x, index) + static_cast<std::uintptr_t>(x.bytes);
}

}  // namespace

MemoryLines lines_of(const MatrixView& view) {
  const std::int64_t size = storage_bytes(view.dtype);
  return {address(view.data),     view.columns * size, view.rows,
          view.row_stride * size, view.batch,          view.batch_stride * size};
}

std::int64_t extent_of(const MemoryLines& x) {
  if (is_empty(x)) return 0;
  return (x.batch - 1) * x.batch_stride + (x.lines - 1) * x.line_stride + x.bytes;
}

MemoryLines line_of(const void* data, std::int64_t bytes) {
  return {address(data), bytes, 1, 0, 1, 0};
}

MemoryLines values_of(const ScaledTensorView& view) {
  return {address(view.values), row_bytes(view.recipe, view.k), view.rows, view.value_row_stride,
          view.batch,           view.value_batch_stride};
}

MemoryLines scales_of(const ScaledTensorView& view) {
  const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
  const std::int64_t size = storage_bytes(recipe_traits(view.recipe).scale);
  MemoryLines result;
  result.begin = address(view.scales);
  result.batch = view.batch;
  result.batch_stride = view.scale_batch_stride * size;
  if (is_swizzled(view.layout)) {
    result.bytes =
        scale_count(view.layout, grid.rows, grid.columns, view.scale_leading_stride) * size;
    result.lines = 1;
  } else {
    const bool by_rows = view.layout == ScaleLayout::row_major;
    result.bytes = (by_rows ? grid.columns : grid.rows) * size;
    result.lines = by_rows ? grid.rows : grid.columns;
    result.line_stride = view.scale_leading_stride * size;
  }
  return result;
}

MemoryLines tensor_scales_of(const ScaledTensorView& view) {
  const std::int64_t size = sizeof(float);
  const std::int64_t count = view.tensor_scale_batch_stride == 0 ? 1 : view.batch;
  return {address(view.tensor_scale), size, 1, size, count, size};
}

bool overlap(const MemoryLines& x, const MemoryLines& y) {
  if (is_empty(x) || is_empty(y)) return false;
  const std::int64_t x_count = x.lines * x.batch;
  const std::int64_t y_count = y.lines * y.batch;
  if (line_end(x, x_count - 1) <= y.begin || line_end(y, y_count - 1) <= x.begin) return false;
  for (std::int64_t i = 0, j = 0; i < x_count && j < y_count;) {
    if (line_end(x, i) <= line_begin(y, j)) {
      ++i;
    } else if (line_end(y, j) <= line_begin(x, i)) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace blockscale
