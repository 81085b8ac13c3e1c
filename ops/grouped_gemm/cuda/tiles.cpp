#include "ops/grouped_gemm/cuda/tiles.h"

#include <algorithm>
#include <string>

#include "ops/common/checks.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale::grouped_gemm_detail {
namespace {

/// Those that tiles are of: entries, where rows are these.
std::int64_t groups_of_order(const GroupedGemmArguments& x) {
  return has_entries(x) ? x.rows : groups_of(x);
}

void set_groups(const GroupedGemmArguments& x, RowGroups& of) {
  of.offsets = x.offsets;
  of.lengths = x.lengths;
  of.groups = static_cast<std::uint32_t>(groups_of_order(x));
  of.rows = static_cast<std::uint32_t>(x.rows);
}
void set_groups(const GroupedGemmArguments& x, EntryGroups& of) {
  set_groups(x, static_cast<RowGroups&>(of));
  of.ids = x.entries.ids;
  of.first_id = static_cast<std::uint32_t>(x.entries.first_id);
  of.matrices = static_cast<std::uint32_t>(groups_of(x));
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

SourceRows source_of(const GroupedGemmArguments& x) {
  gemm_detail::check_size("a.rows", x.a.rows);
  return {x.index, static_cast<std::uint32_t>(x.a.rows),
          Divisor(static_cast<std::uint32_t>(repeats_of(x)))};
}

void set_group_strides(LinearEpilogue& e, const GroupedGemmArguments& x) {
  e.alpha_factor_stride = 1;
  e.bias.batch_stride = x.b.rows;
}

void set_results(GroupedStep& step, LinearEpilogue& e, const GroupedGemmArguments& x,
                 std::size_t map_of_d) {
  if (!x.quantized) e.rows = static_cast<std::uint32_t>(x.d.rows);
  if (x.destinations != nullptr) {
    e.d.chunks = gemm_detail::has_chunks(x.d);
    step.maps[map_of_d] = {};
  }
  set_group_strides(e, x);
}

std::uint32_t order_bytes(const GroupedGemmArguments& x) {
  RowGroups groups;
  groups.groups = static_cast<std::uint32_t>(std::max(groups_of(x), groups_of_order(x)));
  return GroupedOrder(groups, 1, 1).shared_bytes();
}

template <class Order>
Tiles<Order> tiles_of(const GroupedGemmArguments& x, int tile_rows, std::int64_t tiles_n,
                      std::uint32_t band_rows) {
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;
  const std::int64_t rows = x.rows, groups = groups_of(x);
  // Each group that has rows has one tile row, at most, that is not full.
  const std::int64_t tile_row_count = has_entries(x) ? rows
                                      : is_masked(x) ? groups * ceil_div(rows, tile_rows)
                                                     : rows / tile_rows + std::min(groups, rows);
  if (tile_row_count > kMostTiles / tiles_n) {
    throw Error(ErrorCode::unsupported, "d",
                "has " + std::to_string(tile_row_count) + " x " + std::to_string(tiles_n) +
                    " tiles or so; products of groups have at most 2^30");
  }
  decltype(Order::groups) of;
  set_groups(x, of);
  Tiles<Order> tiles;
  tiles.order = Order(of, static_cast<std::uint32_t>(tiles_n), band_rows);
  tiles.order.map.destinations = x.destinations;
  tiles.order.map.weights = x.weights;
  tiles.order.map.rows = static_cast<std::uint32_t>(x.d.rows);
  tiles.order.map.adds_rows = x.adds;
  tiles.most = tile_row_count * tiles_n;
  return tiles;
}

template Tiles<GroupedOrder> tiles_of(const GroupedGemmArguments&, int, std::int64_t,
                                      std::uint32_t);
template Tiles<EntryOrder> tiles_of(const GroupedGemmArguments&, int, std::int64_t, std::uint32_t);

std::uint32_t blocks_for(std::int64_t tiles, std::int64_t per_multiprocessor,
                         const cuda::Chip& chip) {
  return static_cast<std::uint32_t>(std::min(tiles, per_multiprocessor * chip.multiprocessors));
}

}  // namespace blockscale::grouped_gemm_detail
