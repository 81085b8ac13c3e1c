// Programmatic dependent launch. PTX ISA "griddepcontrol".
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// Waits until the kernels before this one in the stream have ended and their writes are visible.
/// Without programmatic dependent launch they have, and this does nothing.
BLOCKSCALE_DEVICE void griddepcontrol_wait(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("griddepcontrol.wait;" : : : "memory");
#else
  emulator::griddepcontrol_wait(at);
#endif
}

/// Lets the next kernel start, once each block of this one has called it or exited. What this
/// kernel writes, before or after, is promised to the next one only behind its wait.
BLOCKSCALE_DEVICE void griddepcontrol_launch_dependents(
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#else
  emulator::griddepcontrol_launch_dependents(at);
#endif
}

}  // namespace blockscale::ptx
