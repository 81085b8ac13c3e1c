// How a kernel is launched: one description for the driver (runtime/) and for the host emulator.
#pragma once

#include "core/config.h"

namespace blockscale {

struct Dim3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;

  friend BLOCKSCALE_HD constexpr bool operator==(const Dim3&, const Dim3&) = default;
};

/// x * y * z.
BLOCKSCALE_HD constexpr uint64_t product(const Dim3& shape) {
  return uint64_t{shape.x} * shape.y * shape.z;
}

struct LaunchShape {
  Dim3 grid = {};                     // blocks
  Dim3 block = {};                    // threads
  Dim3 cluster = {};                  // blocks; each divides the grid's
  uint32_t dynamic_shared_bytes = 0;  // beyond what the kernel declares itself
  /// The kernel may start before its predecessor in the stream has finished; it executes
  /// griddepcontrol.wait before it reads what that one wrote.
  bool programmatic_dependent_launch = false;

  friend BLOCKSCALE_HD constexpr bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

}  // namespace blockscale
