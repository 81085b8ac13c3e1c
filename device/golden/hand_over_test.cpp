// hand_over.h on the emulator: no finding under any schedule, and what the reader reads is right.
#include "device/golden/hand_over.h"

#include <gtest/gtest.h>

#include <array>

#include "device/emulator/emulator.h"

namespace blockscale::golden {
namespace {

template <bool kAllArrive, bool kCopies>
void expect_right() {
  std::array<uint32_t, 32> from{}, to{};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    to.fill(~0u);
    const emulator::Report report =
        emulator::launch({.block = {kHandOverThreads}, .dynamic_shared_bytes = kHandOverBytes},
                         {emulator::input("from", from), emulator::output("to", to)},
                         seed == 0 ? emulator::in_order() : emulator::random_order(seed),
                         [&] { hand_over<kAllArrive, kCopies>(from.data(), to.data()); });
    ASSERT_TRUE(report.ok()) << report.text();
    for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(to.at(lane), handed_over(lane));
  }
}

TEST(HandOver, OneLaneArrives) {
  expect_right<false, false>();
}
TEST(HandOver, AllLanesArrive) {
  expect_right<true, false>();
}
TEST(HandOver, OneLaneArrivesBesideACopy) {
  expect_right<false, true>();
}
TEST(HandOver, AllLanesArriveBesideACopy) {
  expect_right<true, true>();
}

}  // namespace
}  // namespace blockscale::golden
