// Bulk copies of contiguous bytes by the asynchronous proxy. PTX ISA "cp.async.bulk",
// "cp.reduce.async.bulk", "cp.async.bulk.commit_group".
//
// One thread issues a copy. Addresses and sizes are multiples of 16 bytes. Loads complete on an
// mbarrier, stores in the issuing thread's bulk groups. Shared memory that threads have written is
// read by a store only behind fence_proxy_async.
#pragma once

#include "device/kernel.h"
#include "device/ptx/cache_policy.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

// What loads name the block's own shared memory by. Of copies to shared::cluster ptxas makes calls
// into the system for sm_120f.
#if BLOCKSCALE_GPU
#if __CUDA_ARCH__ >= 1200
#define BLOCKSCALE_DESTINATION "shared::cta"
#else
#define BLOCKSCALE_DESTINATION "shared::cluster"
#endif
#endif

namespace blockscale::ptx {

/// cp.async.bulk.shared::cluster.global, for sm_120f .shared::cta.global: completes `bytes` on
/// `mbarrier`.
BLOCKSCALE_DEVICE void cp_async_bulk_shared_global(SharedAddress destination, const void* source,
                                                   uint32_t bytes, SharedAddress mbarrier,
                                                   SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk." BLOCKSCALE_DESTINATION
               ".global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(destination.value), "l"(source), "r"(bytes), "r"(mbarrier.value)
               : "memory");
#else
  emulator::bulk_load(destination.value, source, bytes, mbarrier.value, at);
#endif
}

/// The same with an L2 policy.
BLOCKSCALE_DEVICE void cp_async_bulk_shared_global(SharedAddress destination, const void* source,
                                                   uint32_t bytes, SharedAddress mbarrier,
                                                   [[maybe_unused]] CachePolicy policy,
                                                   SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk." BLOCKSCALE_DESTINATION
               ".global.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1], %2, [%3], %4;"
               :
               : "r"(destination.value), "l"(source), "r"(bytes), "r"(mbarrier.value),
                 "l"(policy.bits)
               : "memory");
#else
  emulator::bulk_load(destination.value, source, bytes, mbarrier.value, at);
#endif
}

/// cp.async.bulk.global.shared::cta.
BLOCKSCALE_DEVICE void cp_async_bulk_global_shared(void* destination, SharedAddress source,
                                                   uint32_t bytes,
                                                   SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(destination), "r"(source.value), "r"(bytes)
               : "memory");
#else
  emulator::bulk_store(destination, source.value, bytes, at);
#endif
}

/// What cp_reduce_async_bulk does to each element of global memory.
enum class BulkReduce : uint8_t {
  add_u32,
  add_s32,
  add_u64,
  add_f16,
  add_bf16,
  add_f32,
  min_u32,
  max_u32,
  min_s32,
  max_s32,
  min_f16,
  max_f16,
  min_bf16,
  max_bf16,
  inc_u32,
  dec_u32,
  and_b32,
  or_b32,
  xor_b32,
};

/// cp.reduce.async.bulk.global.shared::cta: destination[i] = destination[i] op source[i], each
/// element atomic. f16 and bf16 keep subnormals.
template <BulkReduce kOp>
BLOCKSCALE_DEVICE void cp_reduce_async_bulk_global_shared(
    void* destination, SharedAddress source, uint32_t bytes,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_CASE(name, text)                                                            \
  if constexpr (kOp == BulkReduce::name) {                                                     \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." text " [%0], [%1], %2;" \
                 :                                                                             \
                 : "l"(destination), "r"(source.value), "r"(bytes)                             \
                 : "memory");                                                                  \
  }
  BLOCKSCALE_CASE(add_u32, "add.u32")
  BLOCKSCALE_CASE(add_s32, "add.s32")
  BLOCKSCALE_CASE(add_u64, "add.u64")
  BLOCKSCALE_CASE(add_f16, "add.noftz.f16")
  BLOCKSCALE_CASE(add_bf16, "add.noftz.bf16")
  BLOCKSCALE_CASE(add_f32, "add.f32")
  BLOCKSCALE_CASE(min_u32, "min.u32")
  BLOCKSCALE_CASE(max_u32, "max.u32")
  BLOCKSCALE_CASE(min_s32, "min.s32")
  BLOCKSCALE_CASE(max_s32, "max.s32")
  BLOCKSCALE_CASE(min_f16, "min.f16")
  BLOCKSCALE_CASE(max_f16, "max.f16")
  BLOCKSCALE_CASE(min_bf16, "min.bf16")
  BLOCKSCALE_CASE(max_bf16, "max.bf16")
  BLOCKSCALE_CASE(inc_u32, "inc.u32")
  BLOCKSCALE_CASE(dec_u32, "dec.u32")
  BLOCKSCALE_CASE(and_b32, "and.b32")
  BLOCKSCALE_CASE(or_b32, "or.b32")
  BLOCKSCALE_CASE(xor_b32, "xor.b32")
#undef BLOCKSCALE_CASE
#else
  emulator::bulk_reduce(static_cast<int>(kOp), destination, source.value, bytes, at);
#endif
}

/// Makes a group of this thread's bulk stores and reductions since the last group.
BLOCKSCALE_DEVICE void cp_async_bulk_commit_group(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
#else
  emulator::bulk_commit_group(at);
#endif
}

/// Waits until all but this thread's kPending newest groups are complete: their writes are visible.
template <int kPending>
BLOCKSCALE_DEVICE void cp_async_bulk_wait_group(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(kPending) : "memory");
#else
  emulator::bulk_wait_group(kPending, false, at);
#endif
}

/// Waits until all but this thread's kPending newest groups have read their sources, which may be
/// written again.
template <int kPending>
BLOCKSCALE_DEVICE void cp_async_bulk_wait_group_read(
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kPending) : "memory");
#else
  emulator::bulk_wait_group(kPending, true, at);
#endif
}

}  // namespace blockscale::ptx
