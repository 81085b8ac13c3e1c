// Fences. PTX ISA "membar, fence", "Memory Consistency Model".
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// fence.acq_rel.gpu (CUDA's __threadfence): with a relaxed atomic after it, a release; with one
/// before it, an acquire.
BLOCKSCALE_DEVICE void fence_acq_rel_gpu(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
#else
  emulator::fence_acq_rel(at);
#endif
}

/// fence.proxy.async: orders this thread's view of ordinary accesses, to shared and global memory,
/// before asynchronous (bulk copy, wgmma) accesses that are issued after it, and the other way.
BLOCKSCALE_DEVICE void fence_proxy_async(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("fence.proxy.async;" : : : "memory");
#else
  emulator::fence_proxy_async(emulator::FenceSpace::all, at);
#endif
}

/// fence.proxy.async.shared::cta: the same for shared memory alone.
BLOCKSCALE_DEVICE void fence_proxy_async_shared(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#else
  emulator::fence_proxy_async(emulator::FenceSpace::shared, at);
#endif
}

/// fence.proxy.async.global: the same for global memory alone.
BLOCKSCALE_DEVICE void fence_proxy_async_global(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("fence.proxy.async.global;" : : : "memory");
#else
  emulator::fence_proxy_async(emulator::FenceSpace::global, at);
#endif
}

/// fence.mbarrier_init.release.cluster: makes this thread's mbarrier_init visible to the
/// asynchronous proxy and, with a barrier after it, to the cluster.
BLOCKSCALE_DEVICE void fence_mbarrier_init(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
#else
  emulator::fence_mbarrier_init(at);
#endif
}

}  // namespace blockscale::ptx
