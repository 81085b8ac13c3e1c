// Where TMA puts a byte of a box in shared memory: pure functions.
#pragma once

#include <cstdint>

#include "core/tensor_map.h"

namespace blockscale::emulator::meaning {

/// The address of the byte that lies at `address` without a swizzle. The chunk of 16 bytes within
/// the span is exclusive-ored with the number of the 128-byte line, so that the pattern is one of
/// addresses: it repeats every 256, 512 or 1024 bytes from address 0.
constexpr uint32_t swizzle_address(uint32_t address, TensorMapSwizzle swizzle) {
  if (swizzle == TensorMapSwizzle::none) return address;
  const uint32_t chunks = swizzle_span(swizzle) / 16;
  return address ^ ((address >> 7) & (chunks - 1)) << 4;
}

}  // namespace blockscale::emulator::meaning
