// Runs tests once for every instruction set of this machine.
#pragma once

#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"
//
#include <hwy/targets.h>

#include <cstdint>
#include <vector>

namespace blockscale::test {

/// The instruction sets that are compiled in and that this machine has, one bit each.
inline std::vector<std::int64_t> simd_targets() {
  std::vector<std::int64_t> result;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    result.push_back(left & -left);
  }
  return result;
}

/// While it lives, dynamic dispatch chooses `target`, or the best below it where a file is not
/// compiled for it: as on a CPU that has no better one.
class UseSimdTarget {
 public:
  explicit UseSimdTarget(std::int64_t target) : saved_(hwy::SupportedTargets()) {
    use(saved_ & ~(target - 1));
  }
  ~UseSimdTarget() { use(saved_); }
  UseSimdTarget(const UseSimdTarget&) = delete;
  UseSimdTarget& operator=(const UseSimdTarget&) = delete;

 private:
  static void use(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(targets);
  }

  std::int64_t saved_;
};

}  // namespace blockscale::test
