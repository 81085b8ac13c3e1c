// Atomic operations and reductions on global and shared memory. PTX ISA "atom", "red".
//
// All are .relaxed: atomic, but they order nothing else; for global memory at .gpu scope, for
// shared memory at .cta scope. A reduction (red) returns nothing.
#pragma once

#include "core/format.h"
#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#include "device/vector.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

#if BLOCKSCALE_GPU
#define BLOCKSCALE_RED(op, constraint, pointer_constraint, pointer) \
  asm volatile("red." op " [%0], %1;"                               \
               :                                                    \
               : pointer_constraint(pointer), constraint(value)     \
               : "memory");
#define BLOCKSCALE_ATOM(op, type, constraint, pointer_constraint, pointer) \
  type old;                                                                \
  asm volatile("atom." op " %0, [%1], %2;"                                 \
               : "=" constraint(old)                                       \
               : pointer_constraint(pointer), constraint(value)            \
               : "memory");                                                \
  return old;
#endif

/// *p = max(*p, value).
BLOCKSCALE_DEVICE void red_global_max(uint32_t* p, uint32_t value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.gpu.global.max.u32", "r", "l", p)
#else
  emulator::atomic_global(emulator::ReduceOp::kMax, p, value, at);
#endif
}

/// *p = min(*p, value).
BLOCKSCALE_DEVICE void red_global_min(uint32_t* p, uint32_t value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.gpu.global.min.u32", "r", "l", p)
#else
  emulator::atomic_global(emulator::ReduceOp::kMin, p, value, at);
#endif
}

/// *p += value, modulo 2^32.
BLOCKSCALE_DEVICE void red_global_add(uint32_t* p, uint32_t value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.gpu.global.add.u32", "r", "l", p)
#else
  emulator::atomic_global(emulator::ReduceOp::kAdd, p, value, at);
#endif
}

/// *p |= value.
BLOCKSCALE_DEVICE void red_global_or(uint32_t* p, uint32_t value,
                                     SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.gpu.global.or.b32", "r", "l", p)
#else
  emulator::atomic_global(emulator::ReduceOp::kOr, p, value, at);
#endif
}

/// *p += value in f32, to nearest even; subnormal operands and results count as zero.
BLOCKSCALE_DEVICE void red_global_add(float* p, float value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.gpu.global.add.f32", "f", "l", p)
#else
  emulator::atomic_global_add(p, value, at);
#endif
}

/// Adds pairs of f16 or bf16 to those at p, each number by itself to nearest even, with subnormals;
/// the low half of a word is the first. `p` is at a multiple of their bytes.
template <Format kDtype>
BLOCKSCALE_DEVICE void red_global_add_x2(uint32_t* p, uint32_t value,
                                         SourceLocation at = SourceLocation::current()) {
  static_assert(kDtype == Format::f16 || kDtype == Format::bf16);
#if BLOCKSCALE_GPU
  if constexpr (kDtype == Format::f16) {
    BLOCKSCALE_RED("relaxed.gpu.global.add.noftz.f16x2", "r", "l", p)
  } else {
    BLOCKSCALE_RED("relaxed.gpu.global.add.noftz.bf16x2", "r", "l", p)
  }
#else
  emulator::atomic_global_add_words(kDtype, p, &value, 1, at);
#endif
}
/// The same of 16 bytes of f16, bf16 or f32, the last as red_global_add has them.
template <Format kDtype>
BLOCKSCALE_DEVICE void red_global_add_v4(void* p, const device::Vector<uint32_t, 4>& value,
                                         SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
#define BLOCKSCALE_CASE(dtype, text)                                                              \
  if constexpr (kDtype == Format::dtype) {                                                        \
    asm volatile("red.relaxed.gpu.global.add" text " [%0], {%1, %2, %3, %4};"                     \
                 :                                                                                \
                 : "l"(p), "r"(value.at[0]), "r"(value.at[1]), "r"(value.at[2]), "r"(value.at[3]) \
                 : "memory");                                                                     \
  }
  BLOCKSCALE_CASE(f16, ".noftz.v4.f16x2")
  BLOCKSCALE_CASE(bf16, ".noftz.v4.bf16x2")
  if constexpr (kDtype == Format::f32) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "f"(bit_cast<float>(value.at[0])), "f"(bit_cast<float>(value.at[1])),
                   "f"(bit_cast<float>(value.at[2])), "f"(bit_cast<float>(value.at[3]))
                 : "memory");
  }
#undef BLOCKSCALE_CASE
#else
  emulator::atomic_global_add_words(kDtype, static_cast<uint32_t*>(p), value.at, 4, at);
#endif
}

/// Returns *p and adds `value` to it, modulo 2^32.
BLOCKSCALE_DEVICE uint32_t atom_global_add(uint32_t* p, uint32_t value,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_ATOM("relaxed.gpu.global.add.u32", uint32_t, "r", "l", p)
#else
  return emulator::atomic_global(emulator::ReduceOp::kAdd, p, value, at);
#endif
}

/// Returns *p and makes it max(*p, value).
BLOCKSCALE_DEVICE uint32_t atom_global_max(uint32_t* p, uint32_t value,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_ATOM("relaxed.gpu.global.max.u32", uint32_t, "r", "l", p)
#else
  return emulator::atomic_global(emulator::ReduceOp::kMax, p, value, at);
#endif
}

/// Returns *p and makes it `value`.
BLOCKSCALE_DEVICE uint32_t atom_global_exch(uint32_t* p, uint32_t value,
                                            SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_ATOM("relaxed.gpu.global.exch.b32", uint32_t, "r", "l", p)
#else
  return emulator::atomic_global(emulator::ReduceOp::kExchange, p, value, at);
#endif
}

/// Returns *p, and makes it *p + 1, or 0 where it was `limit` or more.
BLOCKSCALE_DEVICE uint32_t atom_global_inc(uint32_t* p, uint32_t limit,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  const uint32_t value = limit;
  BLOCKSCALE_ATOM("relaxed.gpu.global.inc.u32", uint32_t, "r", "l", p)
#else
  return emulator::atomic_global(emulator::ReduceOp::kIncrement, p, limit, at);
#endif
}

/// Returns *p, and makes it `value` where it was `expected`.
BLOCKSCALE_DEVICE uint32_t atom_global_cas(uint32_t* p, uint32_t expected, uint32_t value,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(p), "r"(expected), "r"(value)
               : "memory");
  return old;
#else
  return emulator::atomic_global_cas(p, expected, value, at);
#endif
}

/// atom_global_add that is also acquire and release at .gpu scope.
BLOCKSCALE_DEVICE uint32_t atom_acq_rel_global_add(uint32_t* p, uint32_t value,
                                                   SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_ATOM("acq_rel.gpu.global.add.u32", uint32_t, "r", "l", p)
#else
  return emulator::atomic_global(emulator::ReduceOp::kAdd, p, value, at, true);
#endif
}

/// Maximum, sum and bitwise or of a word of shared memory.
BLOCKSCALE_DEVICE void red_shared_max(SharedAddress address, uint32_t value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.cta.shared.max.u32", "r", "r", address.value)
#else
  emulator::atomic_shared(emulator::ReduceOp::kMax, address.value, value, at);
#endif
}
BLOCKSCALE_DEVICE void red_shared_add(SharedAddress address, uint32_t value,
                                      SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.cta.shared.add.u32", "r", "r", address.value)
#else
  emulator::atomic_shared(emulator::ReduceOp::kAdd, address.value, value, at);
#endif
}
BLOCKSCALE_DEVICE void red_shared_or(SharedAddress address, uint32_t value,
                                     SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_RED("relaxed.cta.shared.or.b32", "r", "r", address.value)
#else
  emulator::atomic_shared(emulator::ReduceOp::kOr, address.value, value, at);
#endif
}

/// Returns the word and adds `value` to it, modulo 2^32.
BLOCKSCALE_DEVICE uint32_t atom_shared_add(SharedAddress address, uint32_t value,
                                           SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  BLOCKSCALE_ATOM("relaxed.cta.shared.add.u32", uint32_t, "r", "r", address.value)
#else
  return emulator::atomic_shared(emulator::ReduceOp::kAdd, address.value, value, at);
#endif
}

#if BLOCKSCALE_GPU
#undef BLOCKSCALE_RED
#undef BLOCKSCALE_ATOM
#endif

}  // namespace blockscale::ptx
