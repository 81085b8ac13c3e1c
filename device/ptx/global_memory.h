// Loads and stores of global memory. PTX ISA "ld", "ld.global.nc", "st".
//
// Every access of a kernel to global memory goes through these: so the emulator sees races, bounds
// and reads before writes. T is trivially copyable, of 1, 2, 4, 8 or 16 bytes, aligned to its size.
#pragma once

#include "device/kernel.h"
#include "device/ptx/cache_policy.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// Eviction priority in L1 of the line that is read or written.
enum class Cache : uint8_t { normal, evict_first, evict_last, no_allocate };

#if BLOCKSCALE_GPU
namespace detail {

struct Words2 {
  uint32_t at[2];
};
struct Words4 {
  uint32_t at[4];
};

// One load of sizeof(T) bytes with the opcode `op`, for example "ld.global.nc".
#define BLOCKSCALE_LOAD(op)                                                                        \
  if constexpr (sizeof(T) == 1) {                                                                  \
    uint32_t v; /* no 8-bit registers */                                                           \
    asm volatile(op ".u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");                                \
    return blockscale::bit_cast<T>(static_cast<uint8_t>(v));                                       \
  } else if constexpr (sizeof(T) == 2) {                                                           \
    uint16_t v;                                                                                    \
    asm volatile(op ".b16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");                               \
    return blockscale::bit_cast<T>(v);                                                             \
  } else if constexpr (sizeof(T) == 4) {                                                           \
    uint32_t v;                                                                                    \
    asm volatile(op ".b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");                               \
    return blockscale::bit_cast<T>(v);                                                             \
  } else if constexpr (sizeof(T) == 8) {                                                           \
    Words2 v;                                                                                      \
    asm volatile(op ".v2.b32 {%0, %1}, [%2];" : "=r"(v.at[0]), "=r"(v.at[1]) : "l"(p) : "memory"); \
    return blockscale::bit_cast<T>(v);                                                             \
  } else {                                                                                         \
    Words4 v;                                                                                      \
    asm volatile(op ".v4.b32 {%0, %1, %2, %3}, [%4];"                                              \
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])                      \
                 : "l"(p)                                                                          \
                 : "memory");                                                                      \
    return blockscale::bit_cast<T>(v);                                                             \
  }

#define BLOCKSCALE_STORE(op)                                                                      \
  if constexpr (sizeof(T) == 1) {                                                                 \
    const uint32_t v = blockscale::bit_cast<uint8_t>(value);                                      \
    asm volatile(op ".u8 [%0], %1;" : : "l"(p), "r"(v) : "memory");                               \
  } else if constexpr (sizeof(T) == 2) {                                                          \
    asm volatile(op ".b16 [%0], %1;"                                                              \
                 :                                                                                \
                 : "l"(p), "h"(blockscale::bit_cast<uint16_t>(value))                             \
                 : "memory");                                                                     \
  } else if constexpr (sizeof(T) == 4) {                                                          \
    asm volatile(op ".b32 [%0], %1;"                                                              \
                 :                                                                                \
                 : "l"(p), "r"(blockscale::bit_cast<uint32_t>(value))                             \
                 : "memory");                                                                     \
  } else if constexpr (sizeof(T) == 8) {                                                          \
    const Words2 v = blockscale::bit_cast<Words2>(value);                                         \
    asm volatile(op ".v2.b32 [%0], {%1, %2};" : : "l"(p), "r"(v.at[0]), "r"(v.at[1]) : "memory"); \
  } else {                                                                                        \
    const Words4 v = blockscale::bit_cast<Words4>(value);                                         \
    asm volatile(op ".v4.b32 [%0], {%1, %2, %3, %4};"                                             \
                 :                                                                                \
                 : "l"(p), "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3])                 \
                 : "memory");                                                                     \
  }

}  // namespace detail
#endif

namespace detail {
template <class T>
inline constexpr bool kLoadable =
    (sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) &&
    alignof(T) == sizeof(T);
}

/// ld.global: coherent with writes of this kernel that happen before it.
template <class T, Cache kCache = Cache::normal>
BLOCKSCALE_DEVICE T ld_global(const T* p, SourceLocation at = SourceLocation::current()) {
  static_assert(detail::kLoadable<T>);
#if BLOCKSCALE_GPU
  using namespace detail;
  if constexpr (kCache == Cache::normal) {
    BLOCKSCALE_LOAD("ld.global")
  } else if constexpr (kCache == Cache::evict_first) {
    BLOCKSCALE_LOAD("ld.global.L1::evict_first")
  } else if constexpr (kCache == Cache::evict_last) {
    BLOCKSCALE_LOAD("ld.global.L1::evict_last")
  } else {
    BLOCKSCALE_LOAD("ld.global.L1::no_allocate")
  }
#else
  return emulator::load_global<T>(p, emulator::LoadKind::weak, at);
#endif
}

/// ld.global.nc: memory that nobody writes while this kernel runs.
template <class T, Cache kCache = Cache::normal>
BLOCKSCALE_DEVICE T ld_global_nc(const T* p, SourceLocation at = SourceLocation::current()) {
  static_assert(detail::kLoadable<T>);
#if BLOCKSCALE_GPU
  using namespace detail;
  if constexpr (kCache == Cache::normal) {
    BLOCKSCALE_LOAD("ld.global.nc")
  } else if constexpr (kCache == Cache::evict_first) {
    BLOCKSCALE_LOAD("ld.global.nc.L1::evict_first")
  } else if constexpr (kCache == Cache::evict_last) {
    BLOCKSCALE_LOAD("ld.global.nc.L1::evict_last")
  } else {
    BLOCKSCALE_LOAD("ld.global.nc.L1::no_allocate")
  }
#else
  return emulator::load_global<T>(p, emulator::LoadKind::read_only, at);
#endif
}

/// ld.global.nc.L1::no_allocate of 4, 8 or 16 bytes under a predicate; zeros where it does not
/// hold. No branch, which would wait for loads before it.
template <class T>
BLOCKSCALE_DEVICE T ld_global_nc_if(bool predicate, const T* p,
                                    SourceLocation at = SourceLocation::current()) {
  static_assert(detail::kLoadable<T> && (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16));
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 8) {
    detail::Words2 v;
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.u32 p, %3, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n"
        " @p ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];\n}"
        : "=&r"(v.at[0]), "=&r"(v.at[1])
        : "l"(p), "r"(static_cast<uint32_t>(predicate))
        : "memory");
    return blockscale::bit_cast<T>(v);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n mov.b32 %0, 0;\n"
        " @p ld.global.nc.L1::no_allocate.b32 %0, [%1];\n}"
        : "=&r"(v)
        : "l"(p), "r"(static_cast<uint32_t>(predicate))
        : "memory");
    return blockscale::bit_cast<T>(v);
  } else {
    detail::Words4 v;
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n"
        " mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        " @p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(v.at[0]), "=&r"(v.at[1]), "=&r"(v.at[2]), "=&r"(v.at[3])
        : "l"(p), "r"(static_cast<uint32_t>(predicate))
        : "memory");
    return blockscale::bit_cast<T>(v);
  }
#else
  return predicate ? emulator::load_global<T>(p, emulator::LoadKind::read_only, at) : T{};
#endif
}

/// The same of a byte, in a word as it is loaded: to narrow it would wait for it.
BLOCKSCALE_DEVICE uint32_t ld_global_nc_u8_if(bool predicate, const uint8_t* p,
                                              SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  uint32_t v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n mov.b32 %0, 0;\n"
      " @p ld.global.nc.L1::no_allocate.u8 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(p), "r"(static_cast<uint32_t>(predicate))
      : "memory");
  return v;
#else
  return predicate ? emulator::load_global<uint8_t>(p, emulator::LoadKind::read_only, at) : 0u;
#endif
}

/// ld.global.nc of 1 or 2 bytes under a predicate, in a word as it is loaded (to narrow it would
/// wait for it); `otherwise` where it does not hold. L1 keeps the line: neighbours are read next.
template <int kBytes>
BLOCKSCALE_DEVICE uint32_t ld_global_nc_narrow_if(bool predicate, const uint8_t* p,
                                                  uint32_t otherwise,
                                                  SourceLocation at = SourceLocation::current()) {
  static_assert(kBytes == 1 || kBytes == 2);
#if BLOCKSCALE_GPU
  uint32_t v = otherwise;
#define BLOCKSCALE_LOAD_NARROW_IF(type)                                                            \
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n @p ld.global.nc." type " %0, [%1];\n}" \
               : "+r"(v)                                                                           \
               : "l"(p), "r"(static_cast<uint32_t>(predicate))                                     \
               : "memory")
  if constexpr (kBytes == 1) {
    BLOCKSCALE_LOAD_NARROW_IF("u8");
  } else {
    BLOCKSCALE_LOAD_NARROW_IF("u16");
  }
#undef BLOCKSCALE_LOAD_NARROW_IF
  return v;
#else
  using Word = UnsignedOf<8 * kBytes>;
  if (!predicate) return otherwise;
  return emulator::load_global<Word>(reinterpret_cast<const Word*>(p),
                                     emulator::LoadKind::read_only, at);
#endif
}

/// ld.relaxed.gpu.global: sees what other blocks' atomics and relaxed stores wrote; orders nothing.
template <class T>
BLOCKSCALE_DEVICE T ld_relaxed_gpu_global(const T* p,
                                          SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return blockscale::bit_cast<T>(v);
  } else {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return blockscale::bit_cast<T>(v);
  }
#else
  return emulator::load_global<T>(p, emulator::LoadKind::relaxed, at);
#endif
}

/// ld.acquire.gpu.global: what happened before the release that it reads from happens before it.
template <class T>
BLOCKSCALE_DEVICE T ld_acquire_gpu_global(const T* p,
                                          SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return blockscale::bit_cast<T>(v);
  } else {
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return blockscale::bit_cast<T>(v);
  }
#else
  return emulator::load_global<T>(p, emulator::LoadKind::acquire, at);
#endif
}

/// st.global.
template <class T, Cache kCache = Cache::normal>
BLOCKSCALE_DEVICE void st_global(T* p, T value, SourceLocation at = SourceLocation::current()) {
  static_assert(detail::kLoadable<T>);
#if BLOCKSCALE_GPU
  using namespace detail;
  if constexpr (kCache == Cache::normal) {
    BLOCKSCALE_STORE("st.global")
  } else if constexpr (kCache == Cache::evict_first) {
    BLOCKSCALE_STORE("st.global.L1::evict_first")
  } else if constexpr (kCache == Cache::evict_last) {
    BLOCKSCALE_STORE("st.global.L1::evict_last")
  } else {
    BLOCKSCALE_STORE("st.global.L1::no_allocate")
  }
#else
  emulator::store_global<T>(p, value, emulator::StoreKind::weak, at);
#endif
}

/// The same of one number, with an L2 policy.
template <class T>
BLOCKSCALE_DEVICE void st_global(T* p, T value, [[maybe_unused]] CachePolicy policy,
                                 SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 1) {
    const uint32_t v = blockscale::bit_cast<uint8_t>(value);
    asm volatile("st.global.L2::cache_hint.u8 [%0], %1, %2;"
                 :
                 : "l"(p), "r"(v), "l"(policy.bits)
                 : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.global.L2::cache_hint.b16 [%0], %1, %2;"
                 :
                 : "l"(p), "h"(blockscale::bit_cast<uint16_t>(value)), "l"(policy.bits)
                 : "memory");
  } else {
    asm volatile("st.global.L2::cache_hint.b32 [%0], %1, %2;"
                 :
                 : "l"(p), "r"(blockscale::bit_cast<uint32_t>(value)), "l"(policy.bits)
                 : "memory");
  }
#else
  emulator::store_global<T>(p, value, emulator::StoreKind::weak, at);
#endif
}

/// st.relaxed.gpu.global.
template <class T>
BLOCKSCALE_DEVICE void st_relaxed_gpu_global(T* p, T value,
                                             SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;"
                 :
                 : "l"(p), "r"(blockscale::bit_cast<uint32_t>(value))
                 : "memory");
  } else {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;"
                 :
                 : "l"(p), "l"(blockscale::bit_cast<uint64_t>(value))
                 : "memory");
  }
#else
  emulator::store_global<T>(p, value, emulator::StoreKind::relaxed, at);
#endif
}

/// st.release.gpu.global: what happens before it is seen by who acquires the value.
template <class T>
BLOCKSCALE_DEVICE void st_release_gpu_global(T* p, T value,
                                             SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;"
                 :
                 : "l"(p), "r"(blockscale::bit_cast<uint32_t>(value))
                 : "memory");
  } else {
    asm volatile("st.release.gpu.global.b64 [%0], %1;"
                 :
                 : "l"(p), "l"(blockscale::bit_cast<uint64_t>(value))
                 : "memory");
  }
#else
  emulator::store_global<T>(p, value, emulator::StoreKind::release, at);
#endif
}

#if BLOCKSCALE_GPU
#undef BLOCKSCALE_LOAD
#undef BLOCKSCALE_STORE
#endif

}  // namespace blockscale::ptx
