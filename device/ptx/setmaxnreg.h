// Moves registers between the warps of a block. PTX ISA "setmaxnreg".
//
// All warps of a warpgroup execute the same one. A kernel that uses it is compiled for a fixed
// number of threads; producers give up registers, and consumers wait until there are as many as
// they ask for.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// setmaxnreg.inc: from now on each thread has this many registers, more than before: 24 to 256, a
/// multiple of 8.
template <int kRegisters>
BLOCKSCALE_DEVICE void setmaxnreg_inc(SourceLocation at = SourceLocation::current()) {
  static_assert(kRegisters % 8 == 0 && 24 <= kRegisters && kRegisters <= 256);
#if BLOCKSCALE_GPU
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
#else
  emulator::setmaxnreg(true, kRegisters, at);
#endif
}

/// setmaxnreg.dec: fewer than before.
template <int kRegisters>
BLOCKSCALE_DEVICE void setmaxnreg_dec(SourceLocation at = SourceLocation::current()) {
  static_assert(kRegisters % 8 == 0 && 24 <= kRegisters && kRegisters <= 256);
#if BLOCKSCALE_GPU
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
#else
  emulator::setmaxnreg(false, kRegisters, at);
#endif
}

}  // namespace blockscale::ptx
