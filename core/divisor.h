// Division by a number that is known when a kernel is launched, without a division.
#pragma once

#include "core/config.h"

namespace blockscale {

/// Quotients n / divisor of n < 2^31 as a multiplication and a shift (Granlund and Montgomery,
/// "Division by Invariant Integers using Multiplication", 1994, theorem 4.2).
struct Divisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 0x80000000u;  // ceil(2^shift / divisor)
  uint32_t shift = 31;

  Divisor() = default;
  /// 1 <= d < 2^31.
  BLOCKSCALE_HD constexpr explicit Divisor(uint32_t d) : divisor(d) {
    uint32_t log2 = 0;  // ceil(log2(d))
    while ((uint64_t{1} << log2) < d) ++log2;
    shift = 31 + log2;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d);
  }

  BLOCKSCALE_HD constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * multiplier >> shift);
  }
  /// n - quotient(n) * divisor.
  BLOCKSCALE_HD constexpr uint32_t remainder(uint32_t n) const { return n - quotient(n) * divisor; }
};

}  // namespace blockscale
