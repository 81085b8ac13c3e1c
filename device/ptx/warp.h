// Collectives of a warp: shuffles, votes, reductions, election. PTX ISA "shfl.sync", "vote.sync",
// "redux.sync", "elect.sync", "match.sync".
//
// Every lane of `mask` executes the same one at the same line; a lane names itself in its mask.
// None of them orders memory accesses (bar.warp.sync does).
#pragma once

#include "device/kernel.h"
#include "device/ptx/special_registers.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;

// The last operand of shfl.sync: clamp in bits 0..4, segment mask in bits 8..12. `width` is the
// number of lanes of a segment, a power of two.
namespace detail {
BLOCKSCALE_HD constexpr uint32_t shfl_control(uint32_t width, uint32_t clamp) {
  return ((32u - width) << 8) | clamp;
}

#if BLOCKSCALE_GPU
#define BLOCKSCALE_SHUFFLE(mode, word, operand, control)            \
  uint32_t result;                                                  \
  asm volatile("shfl.sync." #mode ".b32 %0, %1, %2, %3, %4;"        \
               : "=r"(result)                                       \
               : "r"(word), "r"(operand), "r"(control), "r"(mask)); \
  return blockscale::bit_cast<T>(result)
#else
#define BLOCKSCALE_SHUFFLE(mode, word, operand, control) \
  return blockscale::bit_cast<T>(                        \
      emulator::shfl_sync(emulator::Shuffle::mode, mask, word, operand, control, at))
#endif
}  // namespace detail

/// Value of lane (laneid ^ lanes). T has 4 bytes in all four forms.
template <class T>
BLOCKSCALE_DEVICE T shfl_sync_bfly(uint32_t mask, T value, uint32_t lanes,
                                   SourceLocation at = SourceLocation::current()) {
  const uint32_t word = blockscale::bit_cast<uint32_t>(value);
  const uint32_t control = detail::shfl_control(32, 31);
  BLOCKSCALE_SHUFFLE(bfly, word, lanes, control);
}

/// Value of lane (laneid + delta) of the same segment, or the lane's own where there is none.
template <class T>
BLOCKSCALE_DEVICE T shfl_sync_down(uint32_t mask, T value, uint32_t delta, uint32_t width = 32,
                                   SourceLocation at = SourceLocation::current()) {
  const uint32_t word = blockscale::bit_cast<uint32_t>(value);
  const uint32_t control = detail::shfl_control(width, 31);
  BLOCKSCALE_SHUFFLE(down, word, delta, control);
}

/// Value of lane (laneid - delta) of the same segment, or the lane's own where there is none.
template <class T>
BLOCKSCALE_DEVICE T shfl_sync_up(uint32_t mask, T value, uint32_t delta, uint32_t width = 32,
                                 SourceLocation at = SourceLocation::current()) {
  const uint32_t word = blockscale::bit_cast<uint32_t>(value);
  const uint32_t control = detail::shfl_control(width, 0);
  BLOCKSCALE_SHUFFLE(up, word, delta, control);
}

/// Value of lane `lane` of the same segment.
template <class T>
BLOCKSCALE_DEVICE T shfl_sync_idx(uint32_t mask, T value, uint32_t lane, uint32_t width = 32,
                                  SourceLocation at = SourceLocation::current()) {
  const uint32_t word = blockscale::bit_cast<uint32_t>(value);
  const uint32_t control = detail::shfl_control(width, 31);
  BLOCKSCALE_SHUFFLE(idx, word, lane, control);
}

#undef BLOCKSCALE_SHUFFLE

/// Whether `predicate` holds in any lane of `mask`.
BLOCKSCALE_DEVICE bool vote_sync_any(uint32_t mask, bool predicate,
                                     SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t result;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.u32 p, %1, 0;\n vote.sync.any.pred q, p, %2;\n"
      " selp.u32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(predicate)), "r"(mask));
  return result != 0;
#else
  return emulator::vote_sync(mask, predicate, at) != 0;
#endif
}

/// Whether `predicate` holds in every lane of `mask`.
BLOCKSCALE_DEVICE bool vote_sync_all(uint32_t mask, bool predicate,
                                     SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t result;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.u32 p, %1, 0;\n vote.sync.all.pred q, p, %2;\n"
      " selp.u32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(predicate)), "r"(mask));
  return result != 0;
#else
  return emulator::vote_sync(mask, !predicate, at) == 0;
#endif
}

/// The lanes of `mask` in which `predicate` holds.
BLOCKSCALE_DEVICE uint32_t vote_sync_ballot(uint32_t mask, bool predicate,
                                            SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t result;
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %1, 0;\n vote.sync.ballot.b32 %0, p, %2;\n}"
               : "=r"(result)
               : "r"(static_cast<uint32_t>(predicate)), "r"(mask));
  return result;
#else
  return emulator::vote_sync(mask, predicate, at);
#endif
}

/// The lanes of `mask` whose `value` equals this lane's.
BLOCKSCALE_DEVICE uint32_t match_any_sync(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t result;
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(mask));
  return result;
#else
  return emulator::match_any_sync(mask, value, at);
#endif
}

/// True in exactly one lane of `mask`; which one is not said, but it is the same for the same mask.
BLOCKSCALE_DEVICE bool elect_sync(uint32_t mask = kFullMask,
                                  SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t result;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, %1;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(result)
               : "r"(mask));
  return result != 0;
#else
  return emulator::elect_sync(mask, at);
#endif
}

#if BLOCKSCALE_GPU
#define BLOCKSCALE_REDUX(op, type)                                                        \
  uint32_t result;                                                                        \
  asm volatile("redux.sync." type " %0, %1, %2;" : "=r"(result) : "r"(value), "r"(mask)); \
  return result
#else
#define BLOCKSCALE_REDUX(op, type) \
  return emulator::redux_sync(emulator::ReduceOp::k##op, mask, value, at)
#endif

/// Sum of the lanes' values, modulo 2^32.
BLOCKSCALE_DEVICE uint32_t redux_sync_add(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(Add, "add.u32");
}
BLOCKSCALE_DEVICE uint32_t redux_sync_min(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(Min, "min.u32");
}
BLOCKSCALE_DEVICE uint32_t redux_sync_max(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(Max, "max.u32");
}
BLOCKSCALE_DEVICE uint32_t redux_sync_and(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(And, "and.b32");
}
BLOCKSCALE_DEVICE uint32_t redux_sync_or(uint32_t mask, uint32_t value,
                                         SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(Or, "or.b32");
}
BLOCKSCALE_DEVICE uint32_t redux_sync_xor(uint32_t mask, uint32_t value,
                                          SourceLocation at = SourceLocation::current()) {
  BLOCKSCALE_REDUX(Xor, "xor.b32");
}

#undef BLOCKSCALE_REDUX

}  // namespace blockscale::ptx

namespace blockscale::device {

/// Index of the warp in its block, the same in all its lanes and known to the compiler as such.
/// All lanes of the warp call it. Blocks are one-dimensional.
BLOCKSCALE_DEVICE uint32_t warp_index(SourceLocation at = SourceLocation::current()) {
  return ptx::shfl_sync_idx(ptx::kFullMask, ptx::tid_x() / 32, 0, 32, at);
}

}  // namespace blockscale::device
