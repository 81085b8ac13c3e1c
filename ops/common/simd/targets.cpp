#define BLOCKSCALE_WANT_AVX3_DL
#include "ops/common/simd/targets.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cctype>
#include <cstdlib>

#include "blockscale/error.h"
#include "blockscale/system.h"
#include "ops/common/simd/amx.h"
#include "ops/common/simd/requested.h"

namespace blockscale {
namespace {

/// The best of a set of targets: the lower a bit, the better, as Highway's own dispatch has it.
std::int64_t best_target(std::int64_t targets) {
  return targets & -targets;
}

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// The bit of the target of this name; 0 if none is compiled.
std::int64_t target_of(const std::string& name) {
  for (std::int64_t targets = HWY_TARGETS; targets != 0; targets &= targets - 1) {
    if (upper_case(name) == hwy::TargetName(best_target(targets))) return best_target(targets);
  }
  return 0;
}

bool obey_environment() {
  const char* const name = std::getenv("BLOCKSCALE_SIMD");
  if (name == nullptr || *name == '\0') return true;
  const auto list_of = [](std::int64_t set) {
    std::string list;
    for (std::int64_t targets = set; targets != 0; targets &= targets - 1) {
      list += std::string(list.empty() ? "" : ", ") + hwy::TargetName(best_target(targets));
    }
    return list;
  };
  if (upper_case(name) == "AMX") {
    if (has_amx()) return true;
    throw Error(ErrorCode::unsupported, "BLOCKSCALE_SIMD",
                std::string("is ") + name + ", which this CPU or its kernel lacks");
  }
  use_amx(false);
  const std::int64_t target = target_of(name);
  if (target == 0) {
    throw Error(ErrorCode::invalid_argument, "BLOCKSCALE_SIMD",
                std::string("is ") + name + ", must be one of AMX, " + list_of(HWY_TARGETS));
  }
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  if ((supported & target) == 0) {
    throw Error(ErrorCode::unsupported, "BLOCKSCALE_SIMD",
                std::string("is ") + name + ", which this CPU lacks; it has " + list_of(supported));
  }
  // Not DisableTargets: each later call of SupportedTargets would choose as if nothing were
  // disabled.
  hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~(target - 1));
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

}  // namespace

void use_requested_simd() {
  // A value that cannot be obeyed is reported by every call.
  [[maybe_unused]] static const bool is_obeyed = obey_environment();
}

std::string simd_target() {
  use_requested_simd();
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return usable == 0 ? "none" : hwy::TargetName(best_target(usable));
}

bool simd_has_tiles() {
  use_requested_simd();
  return uses_amx();
}

std::vector<std::string> simd_targets_compiled() {
  std::vector<std::string> names;
  for (std::int64_t targets = HWY_TARGETS; targets != 0; targets &= targets - 1) {
    names.emplace_back(hwy::TargetName(best_target(targets)));
  }
  return names;
}

}  // namespace blockscale
