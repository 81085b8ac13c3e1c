// D = epilogue(A B^T) of FP8 operands with scales, on sm_90a. Read fp8_config.h and fp8_params.h
// first, then fp8_load.cuh, fp8_gather.cuh and fp8_multiply.cuh.
//
// A block computes tiles of D, one after the other. Its first warpgroup loads stages of 128 of k;
// the others wait for a stage, multiply 64 rows each, and store their part of D. The blocks of a
// cluster divide a tile's K; each of them adds the sums of some warps' rows up, in the order of
// ranks.
#pragma once

#include "device/epilogue/quantize_store.cuh"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/fence.h"
#include "device/ptx/grid.h"
#include "device/ptx/setmaxnreg.h"
#include "ops/gemm/kernels/sm90/fp8_gather.cuh"
#include "ops/gemm/kernels/sm90/fp8_multiply.cuh"

namespace blockscale {

namespace fp8_gemm {

/// The blocks of a cluster have summed parts of K. The rows of warp w are the block's of rank
/// w % blocks: the others send it theirs, and it adds all up in the order of ranks, which does not
/// depend on the tile. False in those others.
template <Fp8GemmConfig kConfig, class Order, int kSums>
BLOCKSCALE_DEVICE bool add_split_sums(const Work<kConfig, Order>& work,
                                      const Shared<kConfig>& shared, uint32_t warp,
                                      float (&sums)[kSums]) {
  using Four = device::Vector<float, 4>;
  const uint32_t round = work.p.split.quotient(warp), owner = warp - round * work.blocks;
  const uint32_t others = work.blocks - 1;
  const uint32_t lane_offset = ptx::laneid() * 16;
  const ptx::SharedAddress barrier = shared.sum_barrier(warp);
  if (work.rank != owner) {
    const ptx::SharedAddress place =
        shared.sums(round * others + (work.rank < owner ? work.rank : work.rank - 1));
    const ptx::ClusterAddress to = ptx::mapa_shared_cluster(place + lane_offset, owner);
    const ptx::ClusterAddress their_barrier = ptx::mapa_shared_cluster(barrier, owner);
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kSums / 4; ++v) {
      ptx::st_async(to + v * 512,
                    Four{{sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]}},
                    their_barrier);
    }
    return false;
  }
  if (ptx::laneid() == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, others * shared.memory.warp_sum_bytes);
  }
  device::mbarrier_wait(barrier, 0);
  float own[kSums];
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    own[i] = sums[i];
    sums[i] = 0;
  }
  BLOCKSCALE_NO_UNROLL
  for (uint32_t rank = 0; rank <= others; ++rank) {
    if (rank == owner) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = ptx::add_rn(sums[i], own[i]);
      continue;
    }
    const ptx::SharedAddress from =
        shared.sums(round * others + (rank < owner ? rank : rank - 1)) + lane_offset;
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kSums / 4; ++v) {
      const Four add = ptx::ld_shared<Four>(from + v * 512);
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        sums[4 * v + i] = ptx::add_rn(sums[4 * v + i], add.at[i]);
      }
    }
  }
  return true;
}

template <Fp8GemmConfig kConfig, class Order>
using TileStoreOf = TileStore<kConfig.columns, store_bytes_of(kConfig), store_buffers_of(kConfig),
                              typename Order::RowMap, kConfig.leaves_scales>;

/// A warp's rows of one sub-tile, where D is quantized.
template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void quantize_sub_tile(const Work<kConfig, Order>& work,
                                         const Shared<kConfig>& shared, uint32_t warp,
                                         const Tile& tile, uint32_t sub_tile,
                                         float (&sums)[kConfig.columns / 2]) {
  static_assert(kConfig.columns == kQuantizedColumns &&
                16 * store_bytes_of(kConfig) * store_buffers_of(kConfig) ==
                    QuantizeStore::kHeldBytes);
  const Fp8GemmParamsOf<Order>& p = work.p;
  const uint32_t n = (tile.n & ~((1u << p.log2_sub_tiles) - 1)) + sub_tile;
  QuantizedPlace place;
  place.lane = ptx::laneid_here();
  const uint32_t column = place.lane % 4 * 2;
  place.span = work.span(tile);
  place.row = tile.first_row + warp * 16;
  place.column = (n >> p.log2_sub_tiles) * kQuantizedColumns;
  place.d_columns = {{p.runs.row(n, 0, column), p.runs.row(n, 1, column)}, p.runs.step};
  place.padding_row_step = work.is_last(tile) ? work.kRows : 0;
  place.padding_end = Order::kGroupsAreMatrices ? p.quantize.scales.rows : tile.end_row;
  QuantizeStore(p.epilogue, p.quantize, shared.results(warp))(sums, place, sub_tile);
}

template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void multiply_tiles(const Work<kConfig, Order>& work,
                                      const Shared<kConfig>& shared, uint32_t warp, bool gathers) {
  const Fp8GemmParamsOf<Order>& p = work.p;
  Multiplier<kConfig, Order::kGathersRows> multiplier(shared, warp, gathers);
  // Not by for_each_tile: a compiler that does not inline so long a function keeps all of this in
  // memory.
  Tile tile = work.first_tile;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t turn = 0;;) {
    float sums[kConfig.columns / 2];
    const uint32_t column = tile.n * static_cast<uint32_t>(kConfig.columns);
    const uint32_t row = tile.first_row + warp * 16;
    const uint32_t boundary = kConfig.quantizes ? kRunColumns : 128 - column % 128;
    Tile next = tile;
    // Of a group's last rows the upper warpgroups may have all: the tensor cores are theirs then.
    // (Who adds by columns has no register for this.)
    if constexpr (!Order::kIsKnownAtLaunch && kConfig.promotion == Promotion::blocks) {
      if (tile.first_row + warp / 4 * 64 >= tile.end_row) {
        multiplier.skip(work.k_end - work.k_begin);
        if (!work.has(++turn)) break;
        tile = work.tile(turn);
        continue;
      }
    }
    epilogue::EndScales<kConfig.columns> scales;
    multiplier.multiply(work.k_end - work.k_begin, boundary, sums, [&] {
      if constexpr (kConfig.leaves_scales) {
        scales.load(p.epilogue, work.span(tile), row + ptx::laneid() / 4, column);
      }
      // (Where tiles are known at launch, one behind the last costs no branch.)
      if (Order::kIsKnownAtLaunch || work.has(turn + 1)) {
        next = work.tile(turn + 1);
      }
    });
    if (work.divides_k()) {  // a cluster has one tile
      ptx::barrier_cluster_wait();
      if (!kConfig.quantizes && row >= tile.end_row) break;
      if (!add_split_sums(work, shared, warp, sums)) break;
    }
    if constexpr (kConfig.quantizes) {
      quantize_sub_tile(work, shared, warp, tile, work.sub_tile(turn), sums);
    } else {
      if constexpr (kConfig.leaves_scales) scales.apply(sums);
      TileStoreOf<kConfig, Order>(p.epilogue, p.map(Fp8GemmMap::d), shared.results(warp),
                                  p.order.row_map())(sums, work.span(tile), row, column);
    }
    if (!work.has(++turn)) break;
    tile = next;
  }
  if constexpr (!kConfig.quantizes) TileStoreOf<kConfig, Order>::finish();
}

/// By the warpgroup that loads.
template <Fp8GemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void load(const Work<kConfig, Order>& work, const Shared<kConfig>& shared,
                            uint32_t warp, bool gathers) {
  if constexpr (Order::kGathersRows) {
    if (gathers) {
      if (warp < kGatherWarps) {
        RowGatherer<kConfig, Order>(work, shared, warp).run();
      } else {
        load_scales<kConfig, true>(work, shared, warp - kGatherWarps);
      }
      return;
    }
  }
  if (warp == 0) {
    load_operands(work, shared);
  } else {
    load_scales<kConfig, false>(work, shared, warp - 1);
  }
}

/// Whatever is done before it reads nothing that another kernel writes, and nothing of another
/// block.
template <class Work>
BLOCKSCALE_DEVICE void join_grid(const Work& work) {
  if (work.divides_k()) ptx::barrier_cluster_arrive_relaxed();
  if (work.p.is_beside) {
    // That kernel has waited for those before it, which are all that this one reads from.
    ptx::fence_acq_rel_gpu();
  } else {
    ptx::griddepcontrol_wait();
  }
  ptx::griddepcontrol_launch_dependents();
}

}  // namespace fp8_gemm

template <Fp8GemmConfig kConfig, class Order = DenseOrder>
BLOCKSCALE_DEVICE void fp8_gemm_kernel(const Fp8GemmParamsOf<Order>& p) {
  constexpr uint32_t kThreads = threads_of(kConfig), kBegun = 1;  // a barrier of its own
  const fp8_gemm::Shared<kConfig> shared(p.stages);
  const uint32_t warp = device::warp_index();
  const bool gathers = Order::kGathersRows && p.gather.index != nullptr;
  // The warp that copies makes the mbarriers, so that it begins without waiting for the others.
  if (warp == 0) {
    if (ptx::elect_sync()) {
      shared.init_barriers(gathers);
      shared.accept_rows_outside(gathers ? 0 : p.a_tail_bytes, p.b_tail_bytes);
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    ptx::bar_arrive(kBegun, kThreads);
  }
  fp8_gemm::Work<kConfig, Order> work(p, shared.order());
  if (warp >= 4 && work.divides_k() && ptx::elect_sync()) {
    ptx::mbarrier_init(shared.sum_barrier(warp - 4), 1, "sums");
    ptx::fence_mbarrier_init();
  }
  if (warp != 0) ptx::bar_sync(kBegun, kThreads);
  fp8_gemm::join_grid(work);
  if (!work.begin()) return;
  if (warp < 4) {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<loader_registers(kConfig)>();
    fp8_gemm::load(work, shared, warp, gathers);
    if (work.divides_k()) ptx::barrier_cluster_wait();  // which is of all threads
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<math_registers(kConfig)>();
    fp8_gemm::multiply_tiles(work, shared, warp - 4, gathers);
  }
  if (p.is_beside) ptx::griddepcontrol_wait();
}

}  // namespace blockscale
