// The two mbarriers with which shared memory of most programs here begins.
#pragma once

#include <cstdint>

#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"

namespace blockscale::emulator {

inline ptx::SharedAddress full() {
  return device::shared_base();
}
inline ptx::SharedAddress empty() {
  return device::shared_base() + 8;
}

/// Thread 0 makes them; `empty` has `consumers` arrivals.
inline void begin_barriers(uint32_t consumers) {
  if (ptx::tid_x() != 0) return;
  ptx::mbarrier_init(full(), 1, "full");
  ptx::mbarrier_init(empty(), consumers, "empty");
  ptx::fence_mbarrier_init();
}

/// All threads of a block.
inline void init_barriers(uint32_t consumers = 1) {
  begin_barriers(consumers);
  ptx::barrier_sync_all();
}

}  // namespace blockscale::emulator
