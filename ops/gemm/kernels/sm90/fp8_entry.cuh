// D = epilogue(A B^T) of FP8 operands with scales, on sm_90a. Read config.h and params.h first,
// then fp8_load.cuh and fp8_multiply.cuh.
//
// A block computes tiles of D, one after the other. Its first warpgroup loads stages of 128 of k;
// the others wait for a stage, multiply 64 rows each, and store their part of D. The blocks of a
// cluster divide a tile's K; the first one adds their sums up, in the order of ranks.
#pragma once

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

/// What a warpgroup's tile of sums looks like in shared memory: each thread's values side by side.
template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE uint32_t sums_offset(uint32_t rank, uint32_t thread, uint32_t vector) {
  constexpr uint32_t kThreads = 128 * math_warpgroups(kConfig);
  constexpr uint32_t kVectors = kConfig.columns / 2 / 4;
  return (((rank - 1) * kVectors + vector) * kThreads + thread) * 16;
}

/// Sends this block's sums to the first one of its cluster, which adds them to its own.
template <Fp8GemmConfig kConfig, int kSums>
BLOCKSCALE_DEVICE void add_split_sums(const Shared<kConfig>& shared, uint32_t thread,
                                      float (&sums)[kSums]) {
  using Four = device::Vector<float, 4>;
  const uint32_t rank = ptx::cluster_ctarank(), split = ptx::cluster_nctarank();
  ptx::barrier_cluster_wait();  // all blocks have begun
  if (rank != 0) {
    const ptx::ClusterAddress first = ptx::mapa_shared_cluster(shared.sums(), 0);
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kSums / 4; ++v) {
      ptx::st_shared_cluster(
          first + sums_offset<kConfig>(rank, thread, v),
          Four{{sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]}});
    }
  }
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  if (rank != 0) return;
  BLOCKSCALE_NO_UNROLL
  for (uint32_t other = 1; other < split; ++other) {
    BLOCKSCALE_UNROLL
    for (uint32_t v = 0; v < kSums / 4; ++v) {
      const Four add = ptx::ld_shared<Four>(shared.sums() + sums_offset<kConfig>(other, thread, v));
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        sums[4 * v + i] = ptx::add_rn(sums[4 * v + i], add.at[i]);
      }
    }
  }
}

template <Fp8GemmConfig kConfig>
BLOCKSCALE_DEVICE void multiply_tiles(const Work& work, const Shared<kConfig>& shared,
                                      uint32_t warp) {
  using Store = TileStore<kConfig.columns, store_bytes_of(kConfig), store_buffers_of(kConfig)>;
  const Fp8GemmParams& p = work.p;
  Multiplier<kConfig> multiplier(shared, warp);
  for_each_tile(work, [&](const Tile& tile) {
    float sums[kConfig.columns / 2];
    const uint32_t column = tile.n * static_cast<uint32_t>(kConfig.columns);
    multiplier.multiply(work.k_end - work.k_begin, 128 - column % 128, sums);
    if (work.blocks > 1) {
      add_split_sums<kConfig>(shared, warp * 32 + ptx::laneid(), sums);
      if (work.rank != 0) return;
    }
    const uint32_t row = tile.m * static_cast<uint32_t>(kConfig.rows) + warp * 16;
    Store(p.epilogue, &p.d, shared.results(warp))(sums, tile.batch, row, column);
  });
  Store::finish();
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
    if (work.blocks > 1) {  // a barrier of a cluster is of all threads
      ptx::barrier_cluster_wait();
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
    }
  } else {
    ptx::setmaxnreg_inc<math_registers(kConfig)>();
    fp8_gemm::multiply_tiles<kConfig>(work, shared, warp - 4);
  }
  if (p.is_beside) ptx::griddepcontrol_wait();
}

}  // namespace blockscale
