// Prefetches: hints that change no value. PTX ISA "prefetch", "cp.async.bulk.prefetch".
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// Of a cache line.
inline constexpr uint32_t kLineBytes = 128;

/// prefetch.global.L2: the cache line that holds *p.
BLOCKSCALE_DEVICE void prefetch_global_l2(const void* p,
                                          SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
#else
  emulator::prefetch(p, 1, at);
#endif
}

/// cp.async.bulk.prefetch.L2: `bytes` from p on, both multiples of 16.
BLOCKSCALE_DEVICE void cp_async_bulk_prefetch_l2(const void* p, uint32_t bytes,
                                                 SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes) : "memory");
#else
  emulator::prefetch(p, bytes, at);
#endif
}

}  // namespace blockscale::ptx
