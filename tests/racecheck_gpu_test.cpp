// A false report of compute-sanitizer's racecheck, as small as it gets:
//   ./dev gpu-test --sanitizer racecheck --gtest_filter='Racecheck*'
// reports a race of OneLaneArrivesForItsWarp, and none of EveryLaneArrives, where every lane orders
// its own accesses. Both leave what they should. The emulator checks the first one's order by the
// PTX memory model and finds no race (Correct.WarpsTellEachOtherInTwoPlacesInTurn).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/testing.h"
#include "runtime/kernel.h"
#include "tests/gpu.h"
#include "tests/two_places_spec.h"

namespace blockscale::test {
namespace {

using Racecheck = OnHopper;

void expect_told(const std::string& who) {
  constexpr uint32_t kRounds = 40;
  const ScratchFolder folder;
  runtime::KernelStore store(
      two_places_sources(), [](const std::string&) { return ""; },
      runtime::KernelCache(folder.path()));
  runtime::KernelSet set({two_places_spec(who)}, store);
  std::vector<uint32_t> told(kRounds * kTwoPlacesWarps);
  const runtime::DeviceBuffer out(told.size() * sizeof told[0]);
  launch(set.get(0),
         {.block = {32 * kTwoPlacesWarps}, .dynamic_shared_bytes = kTwoPlacesSharedBytes}, nullptr,
         TwoPlacesParams{reinterpret_cast<uint32_t*>(out.data()), kRounds});
  runtime::wait_for_device();
  out.copy_to_host(told.data(), out.bytes());
  for (uint32_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i], told_by_all(i / kTwoPlacesWarps, kTwoPlacesWarps)) << i;
  }
}

TEST_F(Racecheck, OneLaneArrivesForItsWarp) {
  expect_told("first_lane");
}

TEST_F(Racecheck, EveryLaneArrives) {
  expect_told("every_lane");
}

}  // namespace
}  // namespace blockscale::test
