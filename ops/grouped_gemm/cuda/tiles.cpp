#include "ops/grouped_gemm/cuda/tiles.h"

#include <algorithm>
#include <string>

#include "ops/common/checks.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {
namespace {

RowGroups row_groups_of(const GroupedGemmArguments& x) {
  RowGroups of;
  of.offsets = x.offsets;
  of.lengths = x.lengths;
  of.groups = static_cast<std::uint32_t>(groups_of(x));
  of.rows = static_cast<std::uint32_t>(x.rows);
  return of;
}

}  // namespace

std::int64_t matrices_of(const GroupedGemmArguments& x) {
  return is_masked(x) ? groups_of(x) : 1;
}

std::int64_t average_rows(const GroupedGemmArguments& x) {
  if (x.expected_rows != 0) return x.expected_rows;
  return ceil_div(x.rows * matrices_of(x), groups_of(x));
}

GemmArguments as_dense(const GroupedGemmArguments& x) {
  GemmArguments dense = product_of_rows(x);
  dense.alpha_factor = x.alpha_factors;
  dense.bias = x.bias;
  return dense;
}

void set_group_strides(LinearEpilogue& e, const GroupedGemmArguments& x) {
  e.alpha_factor_stride = 1;
  e.bias.batch_stride = x.b.rows;
}

std::uint32_t order_bytes(const GroupedGemmArguments& x) {
  return GroupedOrder(row_groups_of(x), 1, 1).shared_bytes();
}

Tiles tiles_of(const GroupedGemmArguments& x, int tile_rows, std::int64_t tiles_n,
               std::uint32_t band_rows) {
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;
  const std::int64_t rows = x.rows, groups = groups_of(x);
  // Each group that has rows has one tile row, at most, that is not full.
  const std::int64_t tile_row_count =
      is_masked(x) ? groups * ceil_div(rows, tile_rows) : rows / tile_rows + std::min(groups, rows);
  if (tile_row_count > kMostTiles / tiles_n) {
    throw Error(ErrorCode::unsupported, "d",
                "has " + std::to_string(tile_row_count) + " x " + std::to_string(tiles_n) +
                    " tiles or so; products of groups have at most 2^30");
  }
  Tiles tiles;
  tiles.order = GroupedOrder(row_groups_of(x), static_cast<std::uint32_t>(tiles_n), band_rows);
  tiles.order.map.destinations = x.destinations;
  tiles.order.map.weights = x.weights;
  tiles.order.map.rows = static_cast<std::uint32_t>(x.d.rows);
  tiles.order.map.adds_rows = x.adds;
  tiles.most = tile_row_count * tiles_n;
  return tiles;
}

void set_tiles(GroupedStep& step, const Tiles& tiles, int rows, int columns) {
  step.most_tiles = tiles.most;
  step.rows = rows;
  step.columns = columns;
}

std::uint32_t blocks_for(std::int64_t tiles, std::int64_t per_multiprocessor,
                         const cuda::Chip& chip) {
  return static_cast<std::uint32_t>(std::min(tiles, per_multiprocessor * chip.multiprocessors));
}

}  // namespace blockscale::grouped_gemm_detail
