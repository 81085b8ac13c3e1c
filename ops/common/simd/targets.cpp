#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include "blockscale/system.h"

namespace blockscale {
namespace {

/// The best of a set of targets: the lower a bit, the better, as Highway's own dispatch has it.
std::int64_t best_target(std::int64_t targets) {
  return targets & -targets;
}

}  // namespace

std::string simd_target() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return usable == 0 ? "none" : hwy::TargetName(best_target(usable));
}

std::vector<std::string> simd_targets_compiled() {
  std::vector<std::string> names;
  for (std::int64_t targets = HWY_TARGETS; targets != 0; targets &= targets - 1) {
    names.emplace_back(hwy::TargetName(best_target(targets)));
  }
  return names;
}

}  // namespace blockscale
