// What the programs with planted bugs in asynchronous copies share: buffers, mbarriers, stages.
#pragma once

#include <vector>

#include "device/emulator/test/barriers_test_support.h"
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"

namespace blockscale::emulator {

using Four = device::Vector<uint32_t, 4>;

/// Buffers that copies may name: 4 KiB each, aligned to 128.
struct alignas(128) Memory {
  uint32_t in[1024] = {};
  uint32_t out[1024] = {};
  std::vector<Buffer> buffers() { return {input("in", in), output("out", out)}; }
};

inline constexpr LaunchShape kTwoWarps = {.block = {64}, .dynamic_shared_bytes = 8192};

// Shared memory of these programs: two mbarriers, then stages of 1 KiB from 1024 on.
inline ptx::SharedAddress stage(uint32_t i) {
  return device::shared_base() + 1024 * (i + 1);
}

}  // namespace blockscale::emulator
