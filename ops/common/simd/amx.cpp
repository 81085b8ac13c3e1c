#include "ops/common/simd/amx.h"

#include <atomic>
#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace blockscale {
namespace {

/// Linux gives the state of tiles to processes that ask for it, once for all threads.
bool ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::atomic<bool>& amx_switch() {
  static std::atomic<bool> is_on{has_amx()};
  return is_on;
}

}  // namespace

bool has_amx() {
  static const bool has = ask_for_tiles();
  return has;
}

bool uses_amx() {
  return amx_switch().load(std::memory_order_relaxed);
}

void use_amx(bool use) {
  amx_switch().store(use, std::memory_order_relaxed);
}

}  // namespace blockscale
