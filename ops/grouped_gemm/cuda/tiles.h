// What steps of grouped products are planned by: rows, tiles and blocks of groups.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "blockscale/grouped_gemm.h"
#include "device/epilogue/linear.h"
#include "device/scheduler/grouped_order.h"
#include "device/scheduler/rows.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::grouped_gemm_detail {

// Of validated arguments.

std::int64_t matrices_of(const GroupedGemmArguments& x);

/// That groups have if they share out all rows alike, unless the caller knows better.
std::int64_t average_rows(const GroupedGemmArguments& x);

/// The dense product of all rows, but for what each group has of its own.
GemmArguments as_dense(const GroupedGemmArguments& x);

/// Which rows of A the product's are. Throws `unsupported` for more rows than kernels count.
SourceRows source_of(const GroupedGemmArguments& x);

/// Each group has numbers of its own.
void set_group_strides(LinearEpilogue& e, const GroupedGemmArguments& x);

/// The same, and where a step's tiles go whose tensor maps have D at `map_of_d`: rows that have
/// destinations, of which there may be more than the product has, are stored by no tensor copies.
void set_results(GroupedStep& step, LinearEpilogue& e, const GroupedGemmArguments& x,
                 std::size_t map_of_d);

/// Shared memory that the order of any tiles takes, at most.
std::uint32_t order_bytes(const GroupedGemmArguments& x);

/// The tiles of `tile_rows` rows and so many columns of tiles, and the most that there can be.
template <class Order>
struct Tiles {
  Order order;
  std::int64_t most = 0;
};
template <class Order = GroupedOrder>
Tiles<Order> tiles_of(const GroupedGemmArguments& x, int tile_rows, std::int64_t tiles_n,
                      std::uint32_t band_rows);

template <class Order>
void set_tiles(GroupedStep& step, const Tiles<Order>& tiles, int rows, int columns) {
  step.most_tiles = tiles.most;
  step.rows = rows;
  step.columns = columns;
}

/// Blocks for so many tiles: as many as run at a time.
std::uint32_t blocks_for(std::int64_t tiles, std::int64_t per_multiprocessor,
                         const cuda::Chip& chip);

}  // namespace blockscale::grouped_gemm_detail
