// Bulk copies of boxes of a tensor by the asynchronous proxy. PTX ISA "cp.async.bulk.tensor",
// "cp.reduce.async.bulk.tensor", "cp.async.bulk.prefetch.tensor", "Tensors".
//
// One thread issues a copy. The map is a kernel parameter (__grid_constant__). Coordinates are
// those of the box's first element, dimension 0 (the contiguous one) first; that one times the
// element's size is a multiple of 16 bytes. The box may reach outside the tensor. Loads may begin
// outside it, at negative coordinates too, and fill in the map's value. Stores and reductions begin
// at 0 or above and leave out what is outside, but rows are bounded in steps of 16 bytes: up to 15
// bytes behind a row's last element are written, so the row's stride leaves room for them.
//
// The box lies in shared memory at a multiple of 128, dimension 0 first, without gaps; with a
// swizzle each row takes the whole span of 32, 64 or 128 bytes, and its chunks of 16 bytes are
// exchanged. Loads complete the bytes of the box's elements on an mbarrier, wherever the box lies;
// stores complete in the issuing thread's bulk groups. (What the PTX ISA leaves open was recorded
// on an H200: device/golden.)
#pragma once

#include "core/tensor_map.h"
#include "device/kernel.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// Element coordinates, dimension 0 first.
template <int kRank>
struct TensorCoordinates {
  static_assert(kRank >= 1 && kRank <= 5);
  int32_t at[kRank];
};

#if BLOCKSCALE_GPU
// The coordinates as asm operands number `first` and up, and as text.
#define BLOCKSCALE_C1 "r"(c.at[0])
#define BLOCKSCALE_C2 BLOCKSCALE_C1, "r"(c.at[1])
#define BLOCKSCALE_C3 BLOCKSCALE_C2, "r"(c.at[2])
#define BLOCKSCALE_C4 BLOCKSCALE_C3, "r"(c.at[3])
#define BLOCKSCALE_C5 BLOCKSCALE_C4, "r"(c.at[4])
#endif

/// cp.async.bulk.tensor.{1..5}d.shared::cluster.global.tile, for sm_120f of shared::cta.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_shared_global(
    SharedAddress destination, const TensorMap* map, const TensorCoordinates<kRank>& c,
    SharedAddress mbarrier, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  if constexpr (kRank == 1) {
    asm volatile("cp.async.bulk.tensor.1d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3}], [%2];"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), BLOCKSCALE_C1
                 : "memory");
  } else if constexpr (kRank == 2) {
    asm volatile("cp.async.bulk.tensor.2d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), BLOCKSCALE_C2
                 : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile("cp.async.bulk.tensor.3d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), BLOCKSCALE_C3
                 : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile("cp.async.bulk.tensor.4d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), BLOCKSCALE_C4
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.5d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), BLOCKSCALE_C5
                 : "memory");
  }
#else
  emulator::tensor_load(destination.value, map, c.at, kRank, mbarrier.value, at);
#endif
}

/// The same with an L2 policy.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_shared_global(
    SharedAddress destination, const TensorMap* map, const TensorCoordinates<kRank>& c,
    SharedAddress mbarrier, [[maybe_unused]] CachePolicy policy,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  if constexpr (kRank == 1) {
    asm volatile("cp.async.bulk.tensor.1d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4}], [%2], %3;"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), "l"(policy.bits),
                   BLOCKSCALE_C1
                 : "memory");
  } else if constexpr (kRank == 2) {
    asm volatile("cp.async.bulk.tensor.2d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3;"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), "l"(policy.bits),
                   BLOCKSCALE_C2
                 : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile("cp.async.bulk.tensor.3d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6}], [%2], %3;"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), "l"(policy.bits),
                   BLOCKSCALE_C3
                 : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile("cp.async.bulk.tensor.4d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), "l"(policy.bits),
                   BLOCKSCALE_C4
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.5d." BLOCKSCALE_DESTINATION
                 ".global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;"
                 :
                 : "r"(destination.value), "l"(map), "r"(mbarrier.value), "l"(policy.bits),
                   BLOCKSCALE_C5
                 : "memory");
  }
#else
  emulator::tensor_load(destination.value, map, c.at, kRank, mbarrier.value, at);
#endif
}

#if BLOCKSCALE_GPU
// `hint` and `last` are the text of the policy; `at` the coordinates', behind operands 0 to 3; what
// follows are the further operands.
#define BLOCKSCALE_MULTICAST(rank, hint, at, last, ...)                                        \
  asm volatile("cp.async.bulk.tensor." rank                                                    \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"                    \
               ".multicast::cluster" hint " [%0], [%1, {" at "}], [%2], %3" last ";"           \
               :                                                                               \
               : "r"(destination.value), "l"(map), "r"(mbarrier.value), "h"(mask), __VA_ARGS__ \
               : "memory")
#endif

/// cp.async.bulk.tensor.{1..5}d.shared::cluster.global.tile.multicast::cluster: one read of global
/// memory for several blocks of the cluster. The box goes to the same place in the shared memory of
/// each block that `mask` names by its rank, and completes there on the mbarrier at the same place,
/// which expects the bytes of the whole box. Each of these blocks is known to have begun, to have
/// initialised the mbarrier, and to have read what lies there.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_shared_global_multicast(
    SharedAddress destination, const TensorMap* map, const TensorCoordinates<kRank>& c,
    SharedAddress mbarrier, uint16_t mask, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  if constexpr (kRank == 1) {
    BLOCKSCALE_MULTICAST("1", "", "%4", "", BLOCKSCALE_C1);
  } else if constexpr (kRank == 2) {
    BLOCKSCALE_MULTICAST("2", "", "%4, %5", "", BLOCKSCALE_C2);
  } else if constexpr (kRank == 3) {
    BLOCKSCALE_MULTICAST("3", "", "%4, %5, %6", "", BLOCKSCALE_C3);
  } else if constexpr (kRank == 4) {
    BLOCKSCALE_MULTICAST("4", "", "%4, %5, %6, %7", "", BLOCKSCALE_C4);
  } else {
    BLOCKSCALE_MULTICAST("5", "", "%4, %5, %6, %7, %8", "", BLOCKSCALE_C5);
  }
#else
  emulator::tensor_load_multicast(destination.value, map, c.at, kRank, mbarrier.value, mask, at);
#endif
}

/// The same with an L2 policy.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_shared_global_multicast(
    SharedAddress destination, const TensorMap* map, const TensorCoordinates<kRank>& c,
    SharedAddress mbarrier, uint16_t mask, [[maybe_unused]] CachePolicy policy,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_HINTED(rank, at, ...) \
  BLOCKSCALE_MULTICAST(rank, ".L2::cache_hint", at, ", %4", "l"(policy.bits), __VA_ARGS__)
  if constexpr (kRank == 1) {
    BLOCKSCALE_HINTED("1", "%5", BLOCKSCALE_C1);
  } else if constexpr (kRank == 2) {
    BLOCKSCALE_HINTED("2", "%5, %6", BLOCKSCALE_C2);
  } else if constexpr (kRank == 3) {
    BLOCKSCALE_HINTED("3", "%5, %6, %7", BLOCKSCALE_C3);
  } else if constexpr (kRank == 4) {
    BLOCKSCALE_HINTED("4", "%5, %6, %7, %8", BLOCKSCALE_C4);
  } else {
    BLOCKSCALE_HINTED("5", "%5, %6, %7, %8, %9", BLOCKSCALE_C5);
  }
#undef BLOCKSCALE_HINTED
#else
  emulator::tensor_load_multicast(destination.value, map, c.at, kRank, mbarrier.value, mask, at);
#endif
}

/// cp.async.bulk.tensor.{1..5}d.global.shared::cta.tile.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_global_shared(
    const TensorMap* map, const TensorCoordinates<kRank>& c, SharedAddress source,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  if constexpr (kRank == 1) {
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];"
                 :
                 : "l"(map), "r"(source.value), BLOCKSCALE_C1
                 : "memory");
  } else if constexpr (kRank == 2) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(map), "r"(source.value), BLOCKSCALE_C2
                 : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
        :
        : "l"(map), "r"(source.value), BLOCKSCALE_C3
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
        :
        : "l"(map), "r"(source.value), BLOCKSCALE_C4
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
        "[%1];"
        :
        : "l"(map), "r"(source.value), BLOCKSCALE_C5
        : "memory");
  }
#else
  emulator::tensor_store(map, c.at, kRank, source.value, at);
#endif
}

/// What cp_reduce_async_bulk_tensor does to each element; the map says the element's type.
enum class TensorReduce : uint8_t { add, min, max, inc, dec, bit_and, bit_or, bit_xor };

/// cp.reduce.async.bulk.tensor.{1..5}d.global.shared::cta.tile: each element atomic.
template <TensorReduce kOp, int kRank>
BLOCKSCALE_DEVICE void cp_reduce_async_bulk_tensor_global_shared(
    const TensorMap* map, const TensorCoordinates<kRank>& c, SharedAddress source,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_REDUCE(op)                                            \
  if constexpr (kRank == 1) {                                            \
    asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta." op \
                 ".tile.bulk_group"                                      \
                 " [%0, {%2}], [%1];"                                    \
                 :                                                       \
                 : "l"(map), "r"(source.value), BLOCKSCALE_C1            \
                 : "memory");                                            \
  } else if constexpr (kRank == 2) {                                     \
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." op \
                 ".tile.bulk_group"                                      \
                 " [%0, {%2, %3}], [%1];"                                \
                 :                                                       \
                 : "l"(map), "r"(source.value), BLOCKSCALE_C2            \
                 : "memory");                                            \
  } else if constexpr (kRank == 3) {                                     \
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta." op \
                 ".tile.bulk_group"                                      \
                 " [%0, {%2, %3, %4}], [%1];"                            \
                 :                                                       \
                 : "l"(map), "r"(source.value), BLOCKSCALE_C3            \
                 : "memory");                                            \
  } else if constexpr (kRank == 4) {                                     \
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta." op \
                 ".tile.bulk_group"                                      \
                 " [%0, {%2, %3, %4, %5}], [%1];"                        \
                 :                                                       \
                 : "l"(map), "r"(source.value), BLOCKSCALE_C4            \
                 : "memory");                                            \
  } else {                                                               \
    asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta." op \
                 ".tile.bulk_group"                                      \
                 " [%0, {%2, %3, %4, %5, %6}], [%1];"                    \
                 :                                                       \
                 : "l"(map), "r"(source.value), BLOCKSCALE_C5            \
                 : "memory");                                            \
  }
  if constexpr (kOp == TensorReduce::add) {
    BLOCKSCALE_REDUCE("add")
  } else if constexpr (kOp == TensorReduce::min) {
    BLOCKSCALE_REDUCE("min")
  } else if constexpr (kOp == TensorReduce::max) {
    BLOCKSCALE_REDUCE("max")
  } else if constexpr (kOp == TensorReduce::inc) {
    BLOCKSCALE_REDUCE("inc")
  } else if constexpr (kOp == TensorReduce::dec) {
    BLOCKSCALE_REDUCE("dec")
  } else if constexpr (kOp == TensorReduce::bit_and) {
    BLOCKSCALE_REDUCE("and")
  } else if constexpr (kOp == TensorReduce::bit_or) {
    BLOCKSCALE_REDUCE("or")
  } else {
    BLOCKSCALE_REDUCE("xor")
  }
#undef BLOCKSCALE_REDUCE
#else
  emulator::tensor_reduce(static_cast<int>(kOp), map, c.at, kRank, source.value, at);
#endif
}

/// cp.async.bulk.prefetch.tensor.{1..5}d.L2.global.tile: the box into L2.
template <int kRank>
BLOCKSCALE_DEVICE void cp_async_bulk_prefetch_tensor(
    const TensorMap* map, const TensorCoordinates<kRank>& c,
    SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  if constexpr (kRank == 1) {
    asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%0, {%1}];"
                 :
                 : "l"(map), BLOCKSCALE_C1
                 : "memory");
  } else if constexpr (kRank == 2) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 :
                 : "l"(map), BLOCKSCALE_C2
                 : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 :
                 : "l"(map), BLOCKSCALE_C3
                 : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
                 :
                 : "l"(map), BLOCKSCALE_C4
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];"
                 :
                 : "l"(map), BLOCKSCALE_C5
                 : "memory");
  }
#else
  emulator::tensor_prefetch(map, c.at, kRank, at);
#endif
}

/// prefetch.tensormap: the map itself.
BLOCKSCALE_DEVICE void prefetch_tensormap(const TensorMap* map,
                                          SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
#else
  emulator::tensor_prefetch(map, nullptr, 0, at);
#endif
}

#if BLOCKSCALE_GPU
#undef BLOCKSCALE_C1
#undef BLOCKSCALE_C2
#undef BLOCKSCALE_C3
#undef BLOCKSCALE_C4
#undef BLOCKSCALE_C5
#undef BLOCKSCALE_MULTICAST
#endif

}  // namespace blockscale::ptx
