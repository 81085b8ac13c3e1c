// Integer and byte instructions that C++ has no operator for. PTX ISA "prmt", "dp2a", "min".
#pragma once

#include "device/kernel.h"

namespace blockscale::ptx {

/// Four bytes of {b, a} (a is bytes 0 to 3), one for each nibble of `selector`, lowest first. A
/// nibble with its top bit set gives the sign of the byte instead, in all eight bits.
BLOCKSCALE_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
#else
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t d = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i);
    const uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7u))) & 0xFFu;
    const uint32_t chosen = (nibble & 8u) == 0 ? byte : (byte & 0x80u) != 0 ? 0xFFu : 0u;
    d |= chosen << (8 * i);
  }
  return d;
#endif
}

/// c and the halves of a, times bytes 0 (lower half) and 1 of b, all of them unsigned.
BLOCKSCALE_DEVICE uint32_t dp2a_lo_u32(uint32_t a, uint32_t b, uint32_t c) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return c + (a & 0xFFFFu) * (b & 0xFFu) + (a >> 16) * (b >> 8 & 0xFFu);
#endif
}

/// The smaller of each half, as signed 16-bit numbers.
BLOCKSCALE_DEVICE uint32_t min_s16x2(uint32_t a, uint32_t b) {
#if BLOCKSCALE_GPU
  uint32_t d;
  asm("min.s16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const auto smaller = [](uint32_t x, uint32_t y) {
    return static_cast<int16_t>(x) < static_cast<int16_t>(y) ? x & 0xFFFFu : y & 0xFFFFu;
  };
  return smaller(a & 0xFFFFu, b & 0xFFFFu) | smaller(a >> 16, b >> 16) << 16;
#endif
}

}  // namespace blockscale::ptx
