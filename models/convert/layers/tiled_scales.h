// Block scales of a byte in the tiles of a swizzled layout, as destinations store them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blockscale/tensor.h"

namespace blockscale::models {

/// Bytes of the tiles of a grid, padding included.
std::int64_t tiled_bytes(ScaleLayout layout, std::int64_t rows, std::int64_t columns);

/// Scales [rows, columns], row by row, in tiles; the padding is 0. A row of tiles holds whole rows,
/// so those of a grid can be made one after the other.
void fill_tiles(ScaleLayout layout, const std::byte* scales, std::int64_t rows,
                std::int64_t columns, std::byte* out);

}  // namespace blockscale::models
