// D = epilogue(A B^T) of FP8 operands with scales, on sm_90a. Read config.h and params.h first,
// then fp8_load.cuh and fp8_multiply.cuh.
//
// A block computes tiles of D, one after the other. Its first warpgroup loads stages of 128 of k;
// the others wait for a stage, multiply 64 rows each, and store their part of D. The blocks of a
// cluster divide a tile's K; the first one adds their sums up, in the order of ranks.
#pragma once

#include "device/epilogue/quantize_store.cuh"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/cluster.h"
#include "device/ptx/fence.h"
#include "device/ptx/grid.h"
#include "device/ptx/setmaxnreg.h"
#include "ops/gemm/kernels/sm90/fp8_multiply.cuh"

namespace blockscale {

namespace fp8_gemm {

/// Sums in shared memory: each thread's values side by side, tile behind tile.
template <Fp8GemmConfig kConfig>
class StoredSums {
 public:
  static constexpr uint32_t kVectors = kConfig.columns / 2 / 4;
  using Four = device::Vector<float, 4>;

  /// Where the thread's values of a tile lie, in bytes.
  BLOCKSCALE_DEVICE static uint32_t offset(uint32_t tile, uint32_t thread, uint32_t vector) {
    constexpr uint32_t kThreads = 128 * math_warpgroups(kConfig);
    return ((tile * kVectors + vector) * kThreads + thread) * 16;
  }
  template <int kSums>
  BLOCKSCALE_DEVICE static Four vector_of(const float (&sums)[kSums], uint32_t v) {
    return {{sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]}};
  }
  template <int kSums>
  BLOCKSCALE_DEVICE static void set_vector(float (&sums)[kSums], uint32_t v, const Four& values) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) sums[4 * v + i] = values.at[i];
  }
};

/// Sends this block's sums to the first one of its cluster, which adds them to its own. The cluster
/// has arrived at its barrier: its blocks have begun, and have read the sums of the part before.
template <Fp8GemmConfig kConfig, int kSums>
BLOCKSCALE_DEVICE void add_split_sums(const Shared<kConfig>& shared, uint32_t thread,
                                      float (&sums)[kSums]) {
  using Stored = StoredSums<kConfig>;
  const uint32_t rank = ptx::cluster_ctarank(), split = ptx::cluster_nctarank();
  ptx::barrier_cluster_wait();
  if (rank != 0) {
    const ptx::ClusterAddress first = ptx::mapa_shared_cluster(shared.sums(), 0);
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < Stored::kVectors; ++v) {
      ptx::st_shared_cluster(first + Stored::offset(rank - 1, thread, v),
                             Stored::vector_of(sums, v));
    }
  }
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  if (rank != 0) return;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t other = 0; other < split - 1; ++other) {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < Stored::kVectors; ++v) {
      const auto add =
          ptx::ld_shared<typename Stored::Four>(shared.sums() + Stored::offset(other, thread, v));
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        sums[4 * v + i] = ptx::add_rn(sums[4 * v + i], add.at[i]);
      }
    }
  }
}

template <Fp8GemmConfig kConfig>
using TileStoreOf = TileStore<kConfig.columns, store_bytes_of(kConfig), store_buffers_of(kConfig)>;

template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void store_tile(const Work& work, const Shared<kConfig>& shared, uint32_t warp,
                                  const Tile& tile, float (&sums)[kConfig.columns / 2]) {
  const Fp8GemmParams& p = work.p;
  if (work.blocks > 1) {
    add_split_sums<kConfig>(shared, warp * 32 + ptx::laneid(), sums);
    if (work.rank != 0) return;
  }
  TileStoreOf<kConfig>(p.epilogue, &p.d, shared.results(warp))(
      sums, tile.batch, tile.m * static_cast<uint32_t>(kConfig.rows) + warp * 16,
      tile.n * static_cast<uint32_t>(kConfig.columns));
}

/// A warp's rows of one part, where D is quantized.
template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void quantize_part(const Work& work, const Shared<kConfig>& shared, uint32_t warp,
                                     const Tile& tile, uint32_t part,
                                     float (&sums)[kConfig.columns / 2]) {
  static_assert(kConfig.columns == kQuantizedColumns &&
                16 * store_bytes_of(kConfig) * store_buffers_of(kConfig) ==
                    QuantizeStore::kHeldBytes);
  const Fp8GemmParams& p = work.p;
  const uint32_t n = (tile.n & ~((1u << p.log2_parts) - 1)) + part;
  QuantizedPlace place;
  place.lane = ptx::laneid_here();
  const uint32_t column = place.lane % 4 * 2;
  place.batch = tile.batch;
  place.row = tile.m * static_cast<uint32_t>(kConfig.rows) + warp * 16;
  place.column = (n >> p.log2_parts) * kQuantizedColumns;
  place.d_columns = {{p.runs.row(n, 0, column), p.runs.row(n, 1, column)}, p.runs.step};
  place.padding_row_step = tile.m + 1 == p.order.tiles_m ? static_cast<uint32_t>(kConfig.rows) : 0;
  QuantizeStore(p.epilogue, p.quantize, shared.results(warp))(sums, place, part);
}

/// The same of a tile. A cluster that divides K adds its sums up when it has those of both parts:
/// until then its blocks hold those of the other part.
template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void quantize_tile(const Work& work, const Shared<kConfig>& shared, uint32_t warp,
                                     const Tile& tile, uint32_t turn,
                                     float (&sums)[kConfig.columns / 2]) {
  using Stored = StoredSums<kConfig>;
  using Four = typename Stored::Four;
  const uint32_t part = work.part(turn);
  const bool is_split = work.blocks > 1;
  const uint32_t thread = warp * 32 + ptx::laneid();
  const auto held = [&](uint32_t v) {
    return shared.sums() + Stored::offset(work.blocks - 1, thread, v);
  };
  if (is_split && (part != 0 || work.has_more_parts(turn))) {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < Stored::kVectors; ++v) {
      const Four first = part == 0 ? Four{} : ptx::ld_shared<Four>(held(v));
      ptx::st_shared(held(v), Stored::vector_of(sums, v));
      Stored::set_vector(sums, v, first);
    }
    if (part == 0) return;
  }
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = is_split ? 0 : part;; ++i) {
    if (is_split) {
      add_split_sums<kConfig>(shared, thread, sums);
      if (i != part) ptx::barrier_cluster_arrive();
    }
    if (work.rank == 0) quantize_part<kConfig>(work, shared, warp, tile, i, sums);
    if (i == part) return;
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < Stored::kVectors; ++v) {
      Stored::set_vector(sums, v, ptx::ld_shared<Four>(held(v)));
    }
  }
}

template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void multiply_tiles(const Work& work, const Shared<kConfig>& shared,
                                      uint32_t warp) {
  Multiplier<kConfig> multiplier(shared, warp);
  // Not by for_each_tile: a compiler that does not inline so long a function keeps all of this in
  // memory.
  BLOCKSCALE_NO_UNROLL
  for (uint32_t turn = 0; work.has(turn); ++turn) {
    const Tile tile = work.tile(turn);
    float sums[kConfig.columns / 2];
    const uint32_t column = tile.n * static_cast<uint32_t>(kConfig.columns);
    const uint32_t boundary = kConfig.quantizes ? kRunColumns : 128 - column % 128;
    multiplier.multiply(work.k_end - work.k_begin, boundary, sums);
    if constexpr (kConfig.quantizes) {
      quantize_tile<kConfig>(work, shared, warp, tile, turn, sums);
    } else {
      store_tile<kConfig>(work, shared, warp, tile, sums);
    }
  }
  if constexpr (!kConfig.quantizes) TileStoreOf<kConfig>::finish();
}

/// What the warps that load do at the barriers of a cluster that divides K: they are of all
/// threads.
BLOCKSCALE_DEVICE void follow_split_sums(const Work& work) {
  for_each_tile(work, [&](const Tile&, uint32_t turn) {
    ptx::barrier_cluster_wait();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (work.has_more_parts(turn)) ptx::barrier_cluster_arrive();
  });
}

}  // namespace fp8_gemm

template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void fp8_gemm_kernel(const Fp8GemmParams& p) {
  const fp8_gemm::Shared<kConfig> shared(p);
  const fp8_gemm::Work work(p);
  const uint32_t warp = device::warp_index();
  if (ptx::tid_x() == 0) {
    shared.ring.init(fp8_gemm::kFillers, static_cast<uint32_t>(4 * math_warpgroups(kConfig)));
    shared.accept_rows_outside(p.last_bytes);
  }
  ptx::barrier_sync_all();
  if (work.blocks > 1) ptx::barrier_cluster_arrive_relaxed();
  if (p.is_beside) {
    // That kernel has waited for those before it, which are all that this one reads from.
    ptx::fence_acq_rel_gpu();
  } else {
    ptx::griddepcontrol_wait();
  }
  ptx::griddepcontrol_launch_dependents();
  if (warp < 4) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    if (warp == 0) {
      fp8_gemm::load_operands<kConfig>(work, shared);
    } else {
      fp8_gemm::load_scales<kConfig>(work, shared, warp - 1);
    }
    if (work.blocks > 1) fp8_gemm::follow_split_sums(work);
  } else {
    ptx::setmaxnreg_inc<math_registers(kConfig)>();
    fp8_gemm::multiply_tiles<kConfig>(work, shared, warp - 4);
  }
  if (p.is_beside) ptx::griddepcontrol_wait();
}

}  // namespace blockscale
