#include "device/emulator/architecture.h"

#include <stdexcept>
#include <string>

namespace blockscale::emulator {
namespace {

struct ArchitectureTraits {
  const char* name;
  int major;  // of its devices' compute capability
  uint32_t shared_kib;
  uint32_t cluster_blocks;
};
constexpr ArchitectureTraits kArchitectures[] = {
    {"sm_90a", 9, 227, 8}, {"sm_100f", 10, 227, 8}, {"sm_120f", 12, 99, 1}};

struct FeatureTraits {
  bool is_of[3];  // in the order of Architecture
  const char* owners;
};
constexpr FeatureTraits kFeatures[] = {
    {{true, false, false}, "sm_90a"},
    {{true, true, false}, "sm_90a and sm_100f"},
    {{false, true, true}, "sm_100f and sm_120f"},
    {{false, true, true}, "sm_100f and sm_120f"},
    {{false, true, true}, "sm_100f and sm_120f"},
    {{false, true, true}, "sm_100f and sm_120f"},
    {{false, false, true}, "sm_120f"},
};

const ArchitectureTraits& traits_of(Architecture architecture) {
  return kArchitectures[static_cast<int>(architecture)];
}
const FeatureTraits& traits_of(Feature feature) {
  return kFeatures[static_cast<int>(feature)];
}

}  // namespace

const char* name_of(Architecture architecture) {
  return traits_of(architecture).name;
}

Architecture architecture_of(int capability) {
  for (int i = 0; i < 3; ++i) {
    if (kArchitectures[i].major == capability / 10) return static_cast<Architecture>(i);
  }
  throw std::invalid_argument("no architecture is emulated for compute capability " +
                              std::to_string(capability));
}

bool has(Architecture architecture, Feature feature) {
  return traits_of(feature).is_of[static_cast<int>(architecture)];
}

const char* owners_of(Feature feature) {
  return traits_of(feature).owners;
}

uint32_t max_shared_bytes(Architecture architecture) {
  return traits_of(architecture).shared_kib * 1024;
}

uint32_t max_cluster_blocks(Architecture architecture) {
  return traits_of(architecture).cluster_blocks;
}

}  // namespace blockscale::emulator
