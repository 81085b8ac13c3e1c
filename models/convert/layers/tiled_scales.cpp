#include "models/convert/layers/tiled_scales.h"

#include <cstring>

namespace blockscale::models {

std::int64_t tiled_bytes(ScaleLayout layout, std::int64_t rows, std::int64_t columns) {
  return scale_count(layout, rows, columns, default_leading_stride(layout, rows, columns));
}

void fill_tiles(ScaleLayout layout, const std::byte* scales, std::int64_t rows,
                std::int64_t columns, std::byte* out) {
  const std::int64_t leading = default_leading_stride(layout, rows, columns);
  std::memset(out, 0, static_cast<std::size_t>(tiled_bytes(layout, rows, columns)));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      out[scale_offset(layout, i, j, leading)] = scales[i * columns + j];
    }
  }
}

}  // namespace blockscale::models
