// Loads and stores of shared memory by 32-bit address. PTX ISA "ld.shared", "st.shared", "cvta".
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// An address in the shared::cta window.
struct SharedAddress {
  uint32_t value;

  friend BLOCKSCALE_HD constexpr bool operator==(SharedAddress, SharedAddress) = default;
};

BLOCKSCALE_HD constexpr SharedAddress operator+(SharedAddress address, uint32_t bytes) {
  return {address.value + bytes};
}

/// ld.shared of 1, 2, 4, 8 or 16 bytes, at an address aligned to them.
template <class T>
BLOCKSCALE_DEVICE T ld_shared(SharedAddress address,
                              SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 ||
                sizeof(T) == 16);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 1) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address.value) : "memory");
    return blockscale::bit_cast<T>(static_cast<uint8_t>(v));
  } else if constexpr (sizeof(T) == 2) {
    uint16_t v;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(address.value) : "memory");
    return blockscale::bit_cast<T>(v);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address.value) : "memory");
    return blockscale::bit_cast<T>(v);
  } else if constexpr (sizeof(T) == 8) {
    struct Words {
      uint32_t at[2];
    } v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.at[0]), "=r"(v.at[1])
                 : "r"(address.value)
                 : "memory");
    return blockscale::bit_cast<T>(v);
  } else {
    struct Words {
      uint32_t at[4];
    } v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
                 : "r"(address.value)
                 : "memory");
    return blockscale::bit_cast<T>(v);
  }
#else
  return emulator::load_shared<T>(address.value, at);
#endif
}

/// st.shared of 1, 2, 4, 8 or 16 bytes, at an address aligned to them.
template <class T>
BLOCKSCALE_DEVICE void st_shared(SharedAddress address, T value,
                                 SourceLocation at = SourceLocation::current()) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 ||
                sizeof(T) == 16);
#if BLOCKSCALE_GPU
  if constexpr (sizeof(T) == 1) {
    const uint32_t v = blockscale::bit_cast<uint8_t>(value);
    asm volatile("st.shared.u8 [%0], %1;" : : "r"(address.value), "r"(v) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared.b16 [%0], %1;"
                 :
                 : "r"(address.value), "h"(blockscale::bit_cast<uint16_t>(value))
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.b32 [%0], %1;"
                 :
                 : "r"(address.value), "r"(blockscale::bit_cast<uint32_t>(value))
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    struct Words {
      uint32_t at[2];
    };
    const Words v = blockscale::bit_cast<Words>(value);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};"
                 :
                 : "r"(address.value), "r"(v.at[0]), "r"(v.at[1])
                 : "memory");
  } else {
    struct Words {
      uint32_t at[4];
    };
    const Words v = blockscale::bit_cast<Words>(value);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address.value), "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3])
                 : "memory");
  }
#else
  emulator::store_shared<T>(address.value, value, at);
#endif
}

/// Says that these bytes may be read though nobody writes them, since what they hold has no effect.
/// No instruction; the emulator makes them NaN of every type.
BLOCKSCALE_DEVICE void accept_any_shared([[maybe_unused]] SharedAddress address,
                                         [[maybe_unused]] uint32_t bytes) {
#if !BLOCKSCALE_GPU
  emulator::accept_any_shared(address.value, bytes);
#endif
}

}  // namespace blockscale::ptx

namespace blockscale::device {

/// First byte of the block's dynamic shared memory, aligned to 1024 bytes: kernels have no other.
BLOCKSCALE_DEVICE ptx::SharedAddress shared_base() {
#if BLOCKSCALE_GPU
  extern __shared__ __align__(1024) unsigned char blockscale_shared[];
  uint64_t address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(blockscale_shared));
  return {static_cast<uint32_t>(address)};
#else
  return {emulator::shared_base()};
#endif
}

}  // namespace blockscale::device
