// Asynchronous copies of 4 to 16 bytes a thread. PTX ISA "cp.async", "cp.async.wait_group",
// "cp.async.mbarrier.arrive". They belong to the generic proxy, as ordinary loads and stores do:
// who reads what they brought by wgmma or a tensor copy needs a proxy fence.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// cp.async.ca: kBytes (4, 8 or 16) from global to shared memory through L1; both addresses are
/// aligned to kBytes. Only the first `source_bytes` are read, the rest is filled with zeros.
template <int kBytes>
BLOCKSCALE_DEVICE void cp_async_ca(SharedAddress destination, const void* source,
                                   uint32_t source_bytes = kBytes,
                                   SourceLocation at = SourceLocation::current()) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if BLOCKSCALE_GPU
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(destination.value), "l"(source), "n"(kBytes), "r"(source_bytes)
               : "memory");
#else
  emulator::cp_async(destination.value, source, kBytes, source_bytes, at);
#endif
}

/// cp.async.cg: 16 bytes through L2 alone.
BLOCKSCALE_DEVICE void cp_async_cg(SharedAddress destination, const void* source,
                                   uint32_t source_bytes = 16,
                                   SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(destination.value), "l"(source), "r"(source_bytes)
               : "memory");
#else
  emulator::cp_async(destination.value, source, 16, source_bytes, at);
#endif
}

/// The same, or 16 bytes of zeros: `source` is not read then.
BLOCKSCALE_DEVICE void cp_async_cg_if(bool exists, SharedAddress destination, const void* source,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile(
      "{ .reg .pred none;\n\t"
      "setp.eq.u32 none, %2, 0;\n\t"
      "cp.async.cg.shared.global [%0], [%1], 16, none; }"
      :
      : "r"(destination.value), "l"(source), "r"(static_cast<uint32_t>(exists))
      : "memory");
#else
  emulator::cp_async(destination.value, source, 16, exists ? 16 : 0, at);
#endif
}

/// Makes a group of this thread's copies since the last group.
BLOCKSCALE_DEVICE void cp_async_commit_group(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.commit_group;" : : : "memory");
#else
  emulator::cp_async_commit_group(at);
#endif
}

/// Waits until all but this thread's kPending newest groups are complete.
template <int kPending>
BLOCKSCALE_DEVICE void cp_async_wait_group(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
#else
  emulator::cp_async_wait_group(kPending, at);
#endif
}

/// Waits until all of this thread's copies are complete, committed to a group or not.
BLOCKSCALE_DEVICE void cp_async_wait_all(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.wait_all;" : : : "memory");
#else
  emulator::cp_async_wait_all(at);
#endif
}

/// cp.async.mbarrier.arrive.noinc: one arrival on `mbarrier`, which its count must include, when
/// all copies that this thread has begun are complete.
BLOCKSCALE_DEVICE void cp_async_mbarrier_arrive_noinc(
    SharedAddress mbarrier, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
               :
               : "r"(mbarrier.value)
               : "memory");
#else
  emulator::cp_async_mbarrier_arrive(mbarrier.value, at);
#endif
}

}  // namespace blockscale::ptx
