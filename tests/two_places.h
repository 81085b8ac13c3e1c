// Warps that tell each other a word in every round, as kernel_sm90_stripe.cuh does with largest
// magnitudes: a lane arrives at an mbarrier for what others of its warp have stored and read. One
// source for the emulator, which finds no race, and for a GPU, where racecheck reports one.
#pragma once

#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::test {

struct TwoPlacesParams {
  uint32_t* out;  // [rounds, warps]: what all warps told in a round, added up
  uint32_t rounds;
};

/// Dynamic shared memory of up to 32 warps.
inline constexpr uint32_t kTwoPlacesSharedBytes = 512;

/// In round i warp w tells 10 i + w.
BLOCKSCALE_HD constexpr uint32_t told_by_all(uint32_t round, uint32_t warps) {
  return warps * 10 * round + warps * (warps - 1) / 2;
}

enum class WhoArrives { first_lane, every_lane };

/// With two places in turn no access races: who stores to the place of two rounds ago has waited
/// for the round between, for which every warp arrives behind a barrier of its lanes, which all
/// have read by then. With one place a warp may store before another one has read.
template <uint32_t kPlaces, WhoArrives kWho>
BLOCKSCALE_DEVICE void tell_each_other(const TwoPlacesParams& p,
                                       SourceLocation store = SourceLocation::current()) {
  constexpr uint32_t kLanes = 32, kToldAt = 256;
  const uint32_t warp = ptx::tid_x() / kLanes, lane = ptx::laneid();
  const uint32_t warps = ptx::ntid_x() / kLanes;
  const ptx::SharedAddress told = device::shared_base() + kToldAt;
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_init(told, kWho == WhoArrives::first_lane ? warps : ptx::ntid_x(), "told");
  }
  ptx::barrier_sync_all();
  for (uint32_t round = 0; round < p.rounds; ++round) {
    const ptx::SharedAddress place = device::shared_base() + round % kPlaces * (kToldAt / 2);
    if (lane == kLanes / 2) ptx::st_shared(place + 4 * warp, 10 * round + warp, store);
    ptx::bar_warp_sync(ptx::kFullMask);
    if (kWho == WhoArrives::every_lane || lane == 0) ptx::mbarrier_arrive(told);
    device::mbarrier_wait(told, round % 2);
    const uint32_t of_lane = lane < warps ? ptx::ld_shared<uint32_t>(place + 4 * lane) : 0;
    const uint32_t of_all = ptx::redux_sync_add(ptx::kFullMask, of_lane);
    if (lane == 0) ptx::st_global(p.out + round * warps + warp, of_all);
  }
}

}  // namespace blockscale::test
