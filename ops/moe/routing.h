// What routing and sorting mean, once for hosts and kernels: order of choices, weights, and which
// expert an entry goes to.
#pragma once

#include "core/config.h"
#include "core/exponential.h"
#include "core/math.h"

namespace blockscale {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxTopK = 16;
inline constexpr int kMaxRouterGroups = 32;
inline constexpr int64_t kMaxTokens = int64_t{1} << 20;
inline constexpr int kMaxSortTile = 256;
inline constexpr int64_t kMaxMappedIds = int64_t{1} << 30;

namespace routing {

/// Sums of a token's numbers are so many partial ones, of every 32nd number each: a warp's lanes.
inline constexpr int kPartialSums = 32;

/// Keys are compared instead of numbers: a larger number has a larger key, +0 and -0 the same.
inline constexpr uint32_t kTakenKey = 0;  // of what can no longer be chosen
inline constexpr uint32_t kNanKey = 1;    // below all numbers

BLOCKSCALE_HD inline uint32_t key_of(float x) {
  if (x != x) return kNanKey;
  constexpr uint32_t kSign = 0x80000000u;
  const uint32_t bits = bit_cast<uint32_t>(x);
  if (bits << 1 == 0) return kSign;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
/// The number that has this key, one that is not taken.
BLOCKSCALE_HD inline float number_of(uint32_t key) {
  if (key == kNanKey) return bit_cast<float>(0x7FC00000u);
  return bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// Of a group whose best choices have these keys; `second` counts if the best two do.
BLOCKSCALE_HD inline uint32_t group_key(uint32_t first, uint32_t second, int best_of_group) {
  if (best_of_group == 1) return first;
  return key_of(math::ScalarMath::add(number_of(first), number_of(second)));
}

/// What weights are divided by, of the sum of a token's scores.
BLOCKSCALE_HD inline float divisor_of(float sum) {
  return math::ScalarMath::add(sum, 1e-20f);
}
/// A weight as it is stored: every NaN is the same one.
BLOCKSCALE_HD inline float stored_weight(float weight, float scale) {
  const float scaled = math::ScalarMath::mul(weight, scale);
  return scaled != scaled ? bit_cast<float>(0x7FC00000u) : scaled;
}

/// The expert, counted from this device's first, that an entry goes to; `experts` if it is dropped.
BLOCKSCALE_HD constexpr uint32_t class_of(int32_t id, uint32_t first_expert, uint32_t experts) {
  const uint32_t expert = static_cast<uint32_t>(id) - first_expert;
  return expert < experts ? expert : experts;
}

}  // namespace routing
}  // namespace blockscale
