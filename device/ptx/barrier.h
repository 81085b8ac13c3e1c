// Barriers of a block and of a warp. PTX ISA "bar, barrier", "bar.warp.sync".
//
// The aligned forms: all threads of a warp execute the same one.
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// bar.sync 0 over all threads of the block that have not exited (CUDA's __syncthreads).
BLOCKSCALE_DEVICE void barrier_sync_all(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("bar.sync 0;" : : : "memory");
#else
  emulator::bar_sync_all(at);
#endif
}

/// bar.sync id, threads: waits until `threads` (a multiple of 32) threads have arrived. id 0 to 15,
/// a constant; 0 is barrier_sync_all's.
BLOCKSCALE_DEVICE void bar_sync(uint32_t id, uint32_t threads,
                                SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
#else
  emulator::bar_sync(id, threads, at);
#endif
}

/// bar.arrive id, threads: arrives without waiting.
BLOCKSCALE_DEVICE void bar_arrive(uint32_t id, uint32_t threads,
                                  SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
#else
  emulator::bar_arrive(id, threads, at);
#endif
}

/// bar.warp.sync: the lanes of `mask` wait for each other; orders their memory accesses.
BLOCKSCALE_DEVICE void bar_warp_sync(uint32_t mask, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("bar.warp.sync %0;" : : "r"(mask) : "memory");
#else
  emulator::bar_warp_sync(mask, at);
#endif
}

}  // namespace blockscale::ptx
