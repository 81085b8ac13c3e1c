// The hand-over of kernels with a ring of stages, as small as it gets: one warp stores to shared
// memory, and one of its lanes (or each) arrives at an mbarrier behind bar.warp.sync; another warp
// waits there and reads. A bulk copy may complete the same phase, as operands' copies do.
//
// PTX orders the reads behind the stores, and the emulator finds nothing (hand_over_test.cpp).
// racecheck of CUDA 13.0 (2025.3.1) reports each form as a race (racecheck.cu, README.md).
#pragma once

#include "device/pipeline/stages.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::golden {

inline constexpr uint32_t kHandOverStages = 2, kHandOverTurns = 8;
inline constexpr uint32_t kHandOverThreads = 64, kHandOverBytes = 2048;

/// What lane `lane` of the second warp has read, added up.
BLOCKSCALE_HD constexpr uint32_t handed_over(uint32_t lane) {
  return kHandOverTurns * (31 - lane) + 32 * kHandOverTurns * (kHandOverTurns - 1) / 2;
}

/// Of two warps; `from` are 128 bytes, `to` 32 words.
template <bool kAllArrive, bool kCopies>
BLOCKSCALE_DEVICE void hand_over(const uint32_t* from, uint32_t* to) {
  const ptx::SharedAddress base = device::shared_base();
  const device::StageRing ring{base, kHandOverStages};
  const ptx::SharedAddress scales = base + 128, copied = base + 1024;
  const uint32_t warp = device::warp_index(), lane = ptx::laneid();
  if (ptx::tid_x() == 0) {
    ring.init<kHandOverStages>((kAllArrive ? 32 : 1) + (kCopies ? 1 : 0), 1);
    ptx::fence_mbarrier_init();
  }
  ptx::barrier_sync_all();
  device::StagePlace place;
  uint32_t sum = 0;
  for (uint32_t turn = 0; turn < kHandOverTurns; ++turn, place.advance(kHandOverStages)) {
    const ptx::SharedAddress full = ring.full(place.stage), slot = scales + place.stage * 128;
    if (warp == 0) {
      ring.wait_empty(place);
      if (kCopies && lane == 0) {
        ptx::mbarrier_arrive_expect_tx(full, 128);
        ptx::cp_async_bulk_shared_global(copied + place.stage * 128, from, 128, full);
      }
      ptx::st_shared(slot + lane * 4, turn * 32 + lane);
      ptx::bar_warp_sync(ptx::kFullMask);
      if (kAllArrive || lane == 0) ptx::mbarrier_arrive(full);
    } else {
      ring.wait_full(place);
      sum += ptx::ld_shared<uint32_t>(slot + (31 - lane) * 4);
      ptx::bar_warp_sync(ptx::kFullMask);
      if (lane == 0) ptx::mbarrier_arrive(ring.empty(place.stage));
    }
  }
  if (warp == 1) ptx::st_global(to + lane, sum);
}

}  // namespace blockscale::golden
