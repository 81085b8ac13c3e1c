// What the warps of a block of an FP8 product share: its work, and its shared memory.
#pragma once

#include "device/pipeline/stages.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/scheduler/block_tiles.h"
#include "ops/gemm/kernels/sm90/fp8_params.h"

namespace blockscale::fp8_gemm {

/// What a block does: all tiles that its cluster takes, turn by turn, but only a part of K.
template <Fp8GemmConfig kConfig, class OrderOfTiles>
struct Work {
  using Order = OrderOfTiles;
  using Params = Fp8GemmParamsOf<Order>;
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows);

  const Params& p;
  uint32_t blocks;          // of the cluster
  uint32_t first, step;     // turn's tiles, and what is between this block's
  uint32_t rank;            // in the cluster
  uint32_t k_begin, k_end;  // in k-blocks
  BlockTiles<Order, kRows> tiles;
  Tile first_tile;

  /// `shared` is the order's.
  BLOCKSCALE_DEVICE Work(const Params& params, ptx::SharedAddress shared)
      : p(params),
        blocks(params.split.divisor),
        first(params.split.quotient(ptx::ctaid_x())),
        step(params.split.quotient(ptx::nctaid_x())),
        rank(ptx::ctaid_x() - first * blocks),
        tiles(params.order, shared) {
    const uint32_t begin = rank * p.split_blocks, end = begin + p.split_blocks;
    k_begin = begin < p.k_blocks ? begin : p.k_blocks;
    k_end = end < p.k_blocks ? end : p.k_blocks;
    if constexpr (Order::kIsKnownAtLaunch) first_tile = tile(0);
  }

  /// By all threads, behind the kernels before this one; false if there is nothing to do.
  BLOCKSCALE_DEVICE bool begin() {
    if constexpr (!Order::kIsKnownAtLaunch) {
      tiles.begin();
      if (!has(0)) return false;
      first_tile = tile(0);
    }
    return true;
  }

  /// Whether the block is one of several of a cluster, as none is of tiles that are not known at
  /// launch.
  BLOCKSCALE_DEVICE bool divides_k() const { return Order::kIsKnownAtLaunch && blocks > 1; }
  BLOCKSCALE_DEVICE bool has(uint32_t turn) const { return index(turn) < tiles.count(); }
  BLOCKSCALE_DEVICE Tile tile(uint32_t turn) const {
    Tile tile = tiles.tile(index(turn));
    tile.n = ((tile.n + p.first_n) << p.log2_sub_tiles) + sub_tile(turn);
    return tile;
  }
  /// Number of the sub-tile, in the order's tile.
  BLOCKSCALE_DEVICE uint32_t sub_tile(uint32_t turn) const {
    return turn & ((1u << p.log2_sub_tiles) - 1);
  }
  /// The order's tile.
  BLOCKSCALE_DEVICE uint32_t index(uint32_t turn) const {
    return first + (turn >> p.log2_sub_tiles) * step;
  }
  /// Whether a tile has its group's last rows.
  BLOCKSCALE_DEVICE static bool is_last(const Tile& tile) {
    return tile.first_row + kRows >= tile.end_row;
  }
  /// Whether the smaller box has all of a tile's rows of A.
  BLOCKSCALE_DEVICE static bool takes_tail(const Tile& tile) {
    if constexpr (Order::kIsKnownAtLaunch) return is_last(tile);
    return tile.end_row - tile.first_row <= kRows / 2;
  }
  BLOCKSCALE_DEVICE uint32_t matrix(const Tile& tile) const { return p.order.matrix_of(tile); }
  BLOCKSCALE_DEVICE RowSpan span(const Tile& tile) const {
    return {tile.end_row, Order::kGroupsAreMatrices, matrix(tile), tile.group};
  }
};

/// Visits this block's tiles, of which there is one at least.
template <class Work, class Visit>
BLOCKSCALE_DEVICE void for_each_tile(const Work& work, const Visit& visit) {
  Tile tile = work.first_tile;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t turn = 0;;) {
    visit(tile);
    if (!work.has(++turn)) return;
    tile = work.tile(turn);
  }
}

/// Arrivals at a stage: that of the warp that begins copies, and those of the warps that store its
/// scales, of which one does for a stage unless scales are copied; where rows are gathered, that of
/// each thread's copies, too.
BLOCKSCALE_HD constexpr uint32_t fillers_of(const Fp8GemmConfig& c, bool gathers) {
  if (gathers) return 1 + 1 + 32 * kGatherWarps;
  if (c.leaves_scales) return 1;
  return 1 + (c.copies_scales ? scale_warps_of(c) : 1);
}

template <Fp8GemmConfig kConfig>
struct Shared {
  Fp8GemmMemory memory;
  ptx::SharedAddress base;
  device::StageRing ring;
  device::StageRing scale_boxes;  // where scales are copied

  BLOCKSCALE_DEVICE explicit Shared(uint32_t stages)
      : memory(memory_of(kConfig, stages, 1)),
        base(device::shared_base()),
        ring{base, stages},
        scale_boxes{base + kScaleBoxBarriers, kScaleBoxes} {}

  /// By one thread: all mbarriers but those of sums.
  BLOCKSCALE_DEVICE void init_barriers(bool gathers) const {
    constexpr uint32_t kMathWarps = static_cast<uint32_t>(4 * math_warpgroups(kConfig));
    ring.init<kMostStages>(fillers_of(kConfig, gathers), kMathWarps);
    if constexpr (kConfig.copies_scales) scale_boxes.init<kScaleBoxes>(1, scale_warps_of(kConfig));
    ptx::fence_mbarrier_init();
  }

  BLOCKSCALE_DEVICE ptx::SharedAddress a(uint32_t stage) const {
    return base + (memory.operands + stage * memory.stage_bytes);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress b(uint32_t stage) const {
    return a(stage) + memory.b_offset;
  }
  /// Rows of A and of B that no copy brings: what they give is not stored.
  BLOCKSCALE_DEVICE void accept_rows_outside(uint32_t least_a, uint32_t least_b) const {
    for (uint32_t stage = 0; stage < ring.stages; ++stage) {
      ptx::accept_any_shared(a(stage) + least_a, memory.b_offset - least_a);
      ptx::accept_any_shared(b(stage) + least_b, memory.stage_bytes - memory.b_offset - least_b);
    }
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress scale_box(uint32_t place) const {
    return base + (memory.scale_boxes + place * memory.scale_box_bytes);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress row_scale(uint32_t stage, uint32_t row,
                                                 uint32_t i = 0) const {
    return base +
           (kBarrierBytes + stage * memory.scale_bytes + row_scale_slot(kConfig, row, i) * 4);
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress column_scale(uint32_t stage, uint32_t column) const {
    constexpr uint32_t kFirst = kBarrierBytes + static_cast<uint32_t>(kConfig.rows) * 4;
    return base + (stage * memory.scale_bytes + kFirst + column * 4);
  }
  /// The buffers of a warp that multiplies.
  BLOCKSCALE_DEVICE ptx::SharedAddress results(uint32_t warp) const {
    return base + (memory.results + warp * memory.result_bytes);
  }
  /// Where other blocks' sums of this block's warps go.
  BLOCKSCALE_DEVICE ptx::SharedAddress sums(uint32_t place) const {
    return base + (memory.sums + place * memory.warp_sum_bytes);
  }
  /// Of an order that is not known at launch. (Clusters, whose sums would lie there, have none.)
  BLOCKSCALE_DEVICE ptx::SharedAddress order() const { return base + memory.total; }
  BLOCKSCALE_DEVICE ptx::SharedAddress sum_barrier(uint32_t warp) const {
    return base + (kSumBarriers + warp * 8);
  }
};

}  // namespace blockscale::fp8_gemm
