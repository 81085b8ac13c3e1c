#include "ops/quantize/cuda/tiles.h"

#include <algorithm>
#include <limits>
#include <string>

#include "blockscale/error.h"

namespace blockscale::quantize_detail {

DeviceMatrix device_matrix(const MatrixView& view) {
  const std::int64_t size = format_bytes(view.dtype);
  DeviceMatrix m;
  m.data = static_cast<const std::uint8_t*>(view.data);
  m.row_stride = device_stride(view.row_stride * size, view.rows);
  m.batch_stride = device_stride(view.batch_stride * size, view.batch);
  m.dtype = view.dtype;
  m.vectors = is_multiple(view.data, 16) && is_multiple(m.row_stride, 16) &&
              is_multiple(m.batch_stride, 16);
  return m;
}

void check_size(const char* argument, std::int64_t size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (size < kMost) return;
  throw Error(ErrorCode::unsupported, argument,
              "is " + std::to_string(size) + ", must be below 2^30 on a GPU");
}

void check_count(std::int64_t count, const char* what) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (count <= kMost) return;
  throw Error(ErrorCode::unsupported, "x",
              "needs " + std::to_string(count) + " " + what + " on a GPU, must be at most " +
                  std::to_string(kMost));
}

TileGrid make_tile_grid(std::int64_t batch, std::int64_t all_rows, std::int64_t all_chunks,
                        std::int64_t rows, std::uint32_t log2_chunks) {
  const std::int64_t across = ceil_div(all_chunks, std::int64_t{1} << log2_chunks);
  const std::int64_t down = ceil_div(all_rows, rows);
  check_count(across * down, "tiles");
  check_count(batch, "matrices");
  check_count(std::max<std::int64_t>(1, across * down) * batch, "tiles");
  TileGrid grid;
  grid.tiles = static_cast<std::uint32_t>(across * down * batch);
  grid.across = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(1, across)));
  grid.per_matrix = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(1, across * down)));
  grid.log2_chunks = log2_chunks;
  grid.rows = static_cast<std::uint32_t>(rows);
  return grid;
}

std::uint32_t fitting_log2_chunks(std::int64_t chunks, int least, int most) {
  std::uint32_t best = 0;
  std::int64_t best_covered = std::numeric_limits<std::int64_t>::max();
  for (std::uint32_t log2 = 0; 1 << log2 <= most; ++log2) {
    if (1 << log2 < least) continue;
    const std::int64_t covered = ceil_div(chunks, std::int64_t{1} << log2) << log2;
    if (covered > best_covered && covered * 8 > chunks * 9) continue;
    best = log2;
    best_covered = std::min(best_covered, covered);
  }
  return best;
}

}  // namespace blockscale::quantize_detail
