// Barriers in shared memory that count arrivals and bytes. PTX ISA "mbarrier".
//
// An mbarrier is 8 bytes of shared memory, aligned to 8. Its phase completes when all expected
// threads have arrived and all expected bytes have come; the next phase then begins with the same
// count. Arrivals release and waits acquire, at .cta scope.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// mbarrier.init: `count` arrivals a phase, 1 to 2^20 - 1. Other threads may use it after a
/// barrier, asynchronous copies after fence_mbarrier_init as well. `name` is for the emulator's
/// reports.
BLOCKSCALE_DEVICE void mbarrier_init(SharedAddress mbarrier, uint32_t count,
                                     [[maybe_unused]] const char* name,
                                     SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(mbarrier.value), "r"(count)
               : "memory");
#else
  emulator::mbarrier_init(mbarrier.value, count, name, at);
#endif
}

/// mbarrier.inval: the 8 bytes may be used for something else.
BLOCKSCALE_DEVICE void mbarrier_inval(SharedAddress mbarrier,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(mbarrier.value) : "memory");
#else
  emulator::mbarrier_inval(mbarrier.value, at);
#endif
}

/// mbarrier.arrive: `count` arrivals; returns the state that mbarrier_test_wait takes.
BLOCKSCALE_DEVICE uint64_t mbarrier_arrive(SharedAddress mbarrier, uint32_t count = 1,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;"
               : "=l"(state)
               : "r"(mbarrier.value), "r"(count)
               : "memory");
  return state;
#else
  return emulator::mbarrier_arrive(mbarrier.value, count, 0, at);
#endif
}

/// mbarrier.arrive.expect_tx: the phase waits for `bytes` more, then one arrival.
BLOCKSCALE_DEVICE uint64_t mbarrier_arrive_expect_tx(
    SharedAddress mbarrier, uint32_t bytes, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint64_t state;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"
               : "=l"(state)
               : "r"(mbarrier.value), "r"(bytes)
               : "memory");
  return state;
#else
  return emulator::mbarrier_arrive(mbarrier.value, 1, bytes, at);
#endif
}

/// mbarrier.expect_tx: the phase waits for `bytes` more; no arrival.
BLOCKSCALE_DEVICE void mbarrier_expect_tx(SharedAddress mbarrier, uint32_t bytes,
                                          SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
               :
               : "r"(mbarrier.value), "r"(bytes)
               : "memory");
#else
  emulator::mbarrier_expect_tx(mbarrier.value, bytes, at);
#endif
}

/// mbarrier.test_wait: whether the phase of `state` is complete. Does not wait.
BLOCKSCALE_DEVICE bool mbarrier_test_wait(SharedAddress mbarrier, uint64_t state,
                                          SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.test_wait.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(mbarrier.value), "l"(state)
      : "memory");
  return done != 0;
#else
  return emulator::mbarrier_test_wait(mbarrier.value, state, at);
#endif
}

/// mbarrier.test_wait.parity: whether the phase of this parity (0 the first, 1 the second, 0 the
/// third, ...) is complete: the current one, or the one before it. Does not wait.
BLOCKSCALE_DEVICE bool mbarrier_test_wait_parity(SharedAddress mbarrier, uint32_t parity,
                                                 SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(mbarrier.value), "r"(parity)
      : "memory");
  return done != 0;
#else
  return emulator::mbarrier_test_wait_parity(mbarrier.value, parity, at);
#endif
}

/// mbarrier.try_wait.parity: mbarrier_test_wait_parity that may wait for a time first.
BLOCKSCALE_DEVICE bool mbarrier_try_wait_parity(SharedAddress mbarrier, uint32_t parity,
                                                SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(mbarrier.value), "r"(parity)
      : "memory");
  return done != 0;
#else
  return emulator::mbarrier_try_wait_parity(mbarrier.value, parity, at);
#endif
}

}  // namespace blockscale::ptx

namespace blockscale::device {

/// Waits until the phase of this parity is complete.
BLOCKSCALE_DEVICE void mbarrier_wait(ptx::SharedAddress mbarrier, uint32_t parity,
                                     SourceLocation at = SourceLocation::current()) {
  while (!ptx::mbarrier_try_wait_parity(mbarrier, parity, at)) {
  }
}

}  // namespace blockscale::device
