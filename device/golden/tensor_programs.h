// Micro-kernels of boxes of tensors, as those of programs.h.
#pragma once

#include "device/golden/programs.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cache_policy.h"
#include "device/ptx/cluster.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"

namespace blockscale::golden {

/// What becomes of the box. The reductions have the numbers of ptx::TensorReduce.
enum class TensorMode : int {
  multicast = -5,  // to two blocks of a cluster
  multicast_once,  // with an L2 policy
  load,
  load_once,  // with an L2 policy
  store,
  add = 0,
  min,
  max,
  inc,
  dec,
  bit_and,
  bit_or,
  bit_xor
};

BLOCKSCALE_HD constexpr bool is_multicast(TensorMode mode) {
  return mode == TensorMode::multicast || mode == TensorMode::multicast_once;
}
BLOCKSCALE_HD constexpr bool is_load(TensorMode mode) {
  return mode == TensorMode::load || mode == TensorMode::load_once || is_multicast(mode);
}

// A box and its surroundings in shared memory, and the tensor of a store.
inline constexpr uint32_t kTensorWords = 1024;

/// All threads: the box, and its bytes on `barrier`, in both blocks of the cluster.
template <int kRank, TensorMode kMode>
BLOCKSCALE_DEVICE void load_for_both(const ProgramParams& p, const ptx::TensorCoordinates<kRank>& c,
                                     ptx::SharedAddress box, ptx::SharedAddress barrier) {
  if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect_tx(barrier, p.box_bytes);
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  if (ptx::tid_x() != 0 || ptx::cluster_ctarank() != 0) return;
  if constexpr (kMode == TensorMode::multicast) {
    ptx::cp_async_bulk_tensor_shared_global_multicast<kRank>(box, &p.map, c, barrier, 3);
  } else {
    ptx::cp_async_bulk_tensor_shared_global_multicast<kRank>(box, &p.map, c, barrier, 3,
                                                             ptx::createpolicy_evict_first());
  }
}

/// Moves a box of rank kRank. Loads leave the surroundings of the box in `out`; stores and
/// reductions change the tensor, which is `out`.
template <int kRank, TensorMode kMode>
struct TensorProgram {
  static constexpr uint32_t kBlocks = is_multicast(kMode) ? 2 : 1;
  static constexpr uint32_t kWords = kBlocks * kTensorWords;  // of `out`, a part for each block
  static constexpr LaunchShape kShape = {
      .grid = {kBlocks}, .block = {32}, .cluster = {kBlocks}, .dynamic_shared_bytes = 8192};
  BLOCKSCALE_DEVICE static void run(const ProgramParams& p) {
    const ptx::SharedAddress barrier = device::shared_base(), region = barrier + 1024;
    const uint32_t i = ptx::tid_x();
    for (uint32_t word = i; word < kTensorWords; word += 32) {
      const uint32_t value = is_load(kMode) ? kOutFill ^ word : ptx::ld_global_nc(p.in + word);
      ptx::st_shared(region + 4 * word, value);
    }
    if (i == 0) ptx::mbarrier_init(barrier, 1, "box");
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async();
    ptx::barrier_sync_all();
    ptx::TensorCoordinates<kRank> c;
    for (int d = 0; d < kRank; ++d) c.at[d] = p.coordinates[d];
    const ptx::SharedAddress box = region + p.box_offset;
    if constexpr (is_load(kMode)) {
      if constexpr (is_multicast(kMode)) {
        load_for_both<kRank, kMode>(p, c, box, barrier);
      } else if (i == 0) {
        ptx::prefetch_tensormap(&p.map);
        ptx::cp_async_bulk_prefetch_tensor<kRank>(&p.map, c);
        ptx::mbarrier_arrive_expect_tx(barrier, p.box_bytes);
        if constexpr (kMode == TensorMode::load) {
          ptx::cp_async_bulk_tensor_shared_global<kRank>(box, &p.map, c, barrier);
        } else {
          ptx::cp_async_bulk_tensor_shared_global<kRank>(box, &p.map, c, barrier,
                                                         ptx::createpolicy_evict_first());
        }
      }
      device::mbarrier_wait(barrier, 0);
      for (uint32_t word = i; word < kTensorWords; word += 32) {
        ptx::st_global(p.out + ptx::ctaid_x() * kTensorWords + word,
                       ptx::ld_shared<uint32_t>(region + 4 * word));
      }
    } else {
      if (i != 0) return;
      if constexpr (kMode == TensorMode::store) {
        ptx::cp_async_bulk_tensor_global_shared<kRank>(&p.map, c, box);
      } else {
        ptx::cp_reduce_async_bulk_tensor_global_shared<static_cast<ptx::TensorReduce>(kMode),
                                                       kRank>(&p.map, c, box);
      }
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group<0>();
    }
  }
};

}  // namespace blockscale::golden
