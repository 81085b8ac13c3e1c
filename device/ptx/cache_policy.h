// Policies of L2 for loads and stores. PTX ISA "createpolicy".
#pragma once

#include "device/kernel.h"

namespace blockscale::ptx {

/// How L2 treats the lines of an access.
struct CachePolicy {
  uint64_t bits;
};

/// createpolicy.fractional.L2::evict_first: data that is used once.
BLOCKSCALE_DEVICE CachePolicy createpolicy_evict_first() {
#if BLOCKSCALE_GPU
  uint64_t bits;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(bits));
  return {bits};
#else
  return {1};
#endif
}

/// createpolicy.fractional.L2::evict_last: data that is used again.
BLOCKSCALE_DEVICE CachePolicy createpolicy_evict_last() {
#if BLOCKSCALE_GPU
  uint64_t bits;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(bits));
  return {bits};
#else
  return {2};
#endif
}

}  // namespace blockscale::ptx
