// Planted bugs in mma.sync: all lanes of a warp execute it, at one line, of one element.
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/mma.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

using ptx::MmaElement;

constexpr LaunchShape kTwoWarps = {.block = {64}};

template <MmaElement kElement = MmaElement::f16>
void multiply(SourceLocation at = SourceLocation::current()) {
  const ptx::MmaFragmentA a = {};
  const ptx::MmaFragmentB b = {};
  ptx::MmaAccumulator d = {};
  ptx::mma_sync_m16n8<kElement>(d, a, b, at);
}

TEST(PlantedMma, ALaneIsMissing) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() != 17) multiply(bug.here());
                    ptx::bar_warp_sync(ptx::kFullMask);
                  }},
                 FindingKind::divergent_collective, bug, {"mma_sync at", "bar_warp_sync at"});
}

TEST(PlantedMma, ALaneHasExited) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::tid_x() != 40) multiply(bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"mma_sync at", "exited"});
}

TEST(PlantedMma, HalvesOfAWarpAtTwoLines) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() < 16) {
                      multiply(bug.here());
                    } else {
                      multiply();
                    }
                  }},
                 FindingKind::divergent_collective, bug, {"of the same warp are at mma_sync"});
}

TEST(PlantedMma, LanesMultiplyDifferentElements) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const SourceLocation at = bug.here();
                    ptx::laneid() == 3 ? multiply<MmaElement::e4m3>(at)
                                       : multiply<MmaElement::f16>(at);
                  }},
                 FindingKind::divergent_collective, bug, {"mma_sync at"});
}

}  // namespace
}  // namespace blockscale::emulator
