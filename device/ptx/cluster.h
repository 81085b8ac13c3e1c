// The thread blocks of a cluster: their barrier, and each other's shared memory. PTX ISA
// "barrier.cluster", "mapa", "st.async", "mbarrier.arrive".
//
// All blocks of a cluster run at the same time, but one may begin later than another, and end
// earlier: shared memory of another block is touched only between a cluster barrier at the
// beginning and the last point at which that block waits for who touches it.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// barrier.cluster.arrive.release.aligned: what the thread has done is ordered before what others
/// do behind their barrier_cluster_wait. Each thread arrives once, then waits.
BLOCKSCALE_DEVICE void barrier_cluster_arrive(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
#else
  emulator::barrier_cluster_arrive(true, at);
#endif
}

/// barrier.cluster.arrive.relaxed.aligned: orders nothing but what a fence before it releases, such
/// as fence_mbarrier_init its mbarrier_init.
BLOCKSCALE_DEVICE void barrier_cluster_arrive_relaxed(
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
#else
  emulator::barrier_cluster_arrive(false, at);
#endif
}

/// barrier.cluster.wait.acquire.aligned: until all threads of the cluster that have not exited have
/// arrived.
BLOCKSCALE_DEVICE void barrier_cluster_wait(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#else
  emulator::barrier_cluster_wait(at);
#endif
}

/// An address in the shared::cluster window: some block's shared memory.
struct ClusterAddress {
  uint32_t value;

  friend BLOCKSCALE_HD constexpr bool operator==(ClusterAddress, ClusterAddress) = default;
};

BLOCKSCALE_HD constexpr ClusterAddress operator+(ClusterAddress address, uint32_t bytes) {
  return {address.value + bytes};
}

/// mapa.shared::cluster: the same place in the shared memory of the cluster's block `rank`.
BLOCKSCALE_DEVICE ClusterAddress
mapa_shared_cluster(SharedAddress address, uint32_t rank,
                    [[maybe_unused]] SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  ClusterAddress result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result.value) : "r"(address.value), "r"(rank));
  return result;
#else
  return {emulator::mapa(address.value, rank, at)};
#endif
}

namespace detail {

template <int kWords>
struct Words {
  uint32_t at[kWords];
};

}  // namespace detail

/// ld.shared::cluster of 4, 8 or 16 bytes, at an address aligned to them.
template <class T>
BLOCKSCALE_DEVICE T ld_shared_cluster(ClusterAddress address,
                                      SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
#if BLOCKSCALE_GPU
  detail::Words<sizeof(T) / 4> v;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared::cluster.b32 %0, [%1];"
                 : "=r"(v.at[0])
                 : "r"(address.value)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.at[0]), "=r"(v.at[1])
                 : "r"(address.value)
                 : "memory");
  } else {
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
                 : "r"(address.value)
                 : "memory");
  }
  return blockscale::bit_cast<T>(v);
#else
  T value;
  emulator::load_shared_cluster(address.value, sizeof(T), &value, at);
  return value;
#endif
}

/// st.shared::cluster of 4, 8 or 16 bytes, at an address aligned to them.
template <class T>
BLOCKSCALE_DEVICE void st_shared_cluster(ClusterAddress address, T value,
                                         SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
#if BLOCKSCALE_GPU
  const auto v = blockscale::bit_cast<detail::Words<sizeof(T) / 4>>(value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.b32 [%0], %1;"
                 :
                 : "r"(address.value), "r"(v.at[0])
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};"
                 :
                 : "r"(address.value), "r"(v.at[0]), "r"(v.at[1])
                 : "memory");
  } else {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address.value), "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3])
                 : "memory");
  }
#else
  emulator::store_shared_cluster(address.value, sizeof(T), &value, at);
#endif
}

/// mbarrier.arrive.shared::cluster: one arrival on an mbarrier of any block of the cluster. Without
/// a qualifier: .release.cluster makes a fence of the whole GPU of it.
BLOCKSCALE_DEVICE void mbarrier_arrive_cluster(ClusterAddress mbarrier,
                                               SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(mbarrier.value) : "memory");
#else
  emulator::mbarrier_arrive_cluster(mbarrier.value, at);
#endif
}

/// st.async of 4, 8 or 16 bytes, at an address aligned to them: a store that completes its bytes on
/// `mbarrier`, of the same block as the address. Only in kernels that are launched as clusters.
template <class T>
BLOCKSCALE_DEVICE void st_async(ClusterAddress address, T value, ClusterAddress mbarrier,
                                SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
#if BLOCKSCALE_GPU
  const auto v = blockscale::bit_cast<detail::Words<sizeof(T) / 4>>(value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :
                 : "r"(address.value), "r"(v.at[0]), "r"(mbarrier.value)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
        :
        : "r"(address.value), "r"(v.at[0]), "r"(v.at[1]), "r"(mbarrier.value)
        : "memory");
  } else {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
        :
        : "r"(address.value), "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3]),
          "r"(mbarrier.value)
        : "memory");
  }
#else
  emulator::st_async(address.value, sizeof(T), &value, mbarrier.value, at);
#endif
}

}  // namespace blockscale::ptx
