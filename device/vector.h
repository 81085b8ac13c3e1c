// Short vectors that one instruction loads or stores.
#pragma once

#include "core/config.h"

namespace blockscale::device {

/// N values of T side by side, aligned to their size, which is a power of two.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  static_assert(N > 0 && (N & (N - 1)) == 0);
  T at[N];

  friend BLOCKSCALE_HD constexpr bool operator==(const Vector&, const Vector&) = default;
};

}  // namespace blockscale::device
