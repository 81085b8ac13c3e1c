// A ring of stages in shared memory that producers fill and consumers empty.
//
// Each stage has two mbarriers: `full` completes when all that the stage waits for has come,
// `empty` when all consumers have left it. A place in the ring is a stage and the parity of its
// phase, which flips each time round.
#pragma once

#include "device/kernel.h"
#include "device/ptx/fence.h"
#include "device/ptx/mbarrier.h"

namespace blockscale::device {

struct StagePlace {
  uint32_t stage = 0;
  uint32_t parity = 0;

  /// By `step` places of a ring that has at least so many.
  BLOCKSCALE_DEVICE void advance(uint32_t stages, uint32_t step = 1) {
    stage += step;
    if (stage < stages) return;
    stage -= stages;
    parity ^= 1;
  }
};

struct StageRing {
  static constexpr uint32_t kBytesPerStage = 16;

  ptx::SharedAddress barriers;  // full and empty of stage 0, of stage 1, ..
  uint32_t stages;

  BLOCKSCALE_DEVICE ptx::SharedAddress full(uint32_t stage) const {
    return barriers + stage * kBytesPerStage;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress empty(uint32_t stage) const {
    return barriers + (stage * kBytesPerStage + 8);
  }

  /// By one thread, for as many stages as there can be: that takes less time than to look how many
  /// there are. `fillers` and `users` arrive a phase. A fence_mbarrier_init follows, and a barrier
  /// for other threads.
  template <uint32_t kMostStages>
  BLOCKSCALE_DEVICE void init(uint32_t fillers, uint32_t users) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kMostStages; ++i) {
      ptx::mbarrier_init(full(i), fillers, "full");
      ptx::mbarrier_init(empty(i), users, "empty");
    }
  }

  /// Waits until the stage may be filled; the first time round it may be at once.
  BLOCKSCALE_DEVICE void wait_empty(const StagePlace& place,
                                    SourceLocation at = SourceLocation::current()) const {
    mbarrier_wait(empty(place.stage), place.parity ^ 1, at);
  }
  BLOCKSCALE_DEVICE void wait_full(const StagePlace& place,
                                   SourceLocation at = SourceLocation::current()) const {
    mbarrier_wait(full(place.stage), place.parity, at);
  }
  /// What wait_full would not wait for.
  BLOCKSCALE_DEVICE bool is_full(const StagePlace& place,
                                 SourceLocation at = SourceLocation::current()) const {
    return ptx::mbarrier_test_wait_parity(full(place.stage), place.parity, at);
  }
};

}  // namespace blockscale::device
