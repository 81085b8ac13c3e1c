// A false report of compute-sanitizer's racecheck, as small as it gets:
//   ./dev gpu-test --sanitizer racecheck --gtest_filter='Racecheck*'
// reports a race of OneLaneArrivesForItsWarp, and none of EveryLaneArrives, where every lane orders
// its own accesses. Both leave what they should. The emulator checks the first one's order by the
// PTX memory model and finds no race (Correct.WarpsTellEachOtherInTwoPlacesInTurn).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/testing.h"
#include "runtime/kernel.h"
#include "runtime/kernel_sources.h"
#include "tests/gpu.h"
#include "tests/two_places.h"

namespace blockscale::test {
namespace {

constexpr const char* kHeader = "tests/two_places.h";

/// Lives as long as the program: source trees refer to it.
const std::string& text_of_header() {
  static const std::string text = [] {
    std::stringstream stream;
    stream << std::ifstream(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / kHeader).rdbuf();
    return stream.str();
  }();
  return text;
}

class Racecheck : public OnHopper {
 protected:
  static void expect_told(const std::string& who) {
    runtime::SourceTree tree = runtime::embedded_sources();
    tree.add(kHeader, text_of_header());
    const ScratchFolder folder;
    runtime::KernelStore store(
        std::move(tree), [](const std::string&) { return ""; },
        runtime::KernelCache(folder.path()));
    runtime::KernelSet set(
        {runtime::with_parameters<TwoPlacesParams>({.name = "two_places_" + who,
                                                    .header = kHeader,
                                                    .call = "blockscale::test::tell_each_other<2, "
                                                            "blockscale::test::WhoArrives::" +
                                                            who + ">",
                                                    .threads = 32 * kWarps},
                                                   "blockscale::test::TwoPlacesParams")},
        store);
    std::vector<uint32_t> told(kRounds * kWarps);
    const runtime::DeviceBuffer out(told.size() * sizeof told[0]);
    launch(set.get(0), {.block = {32 * kWarps}, .dynamic_shared_bytes = kTwoPlacesSharedBytes},
           nullptr, TwoPlacesParams{reinterpret_cast<uint32_t*>(out.data()), kRounds});
    runtime::wait_for_device();
    out.copy_to_host(told.data(), out.bytes());
    for (uint32_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], told_by_all(i / kWarps, kWarps));
  }

 private:
  static constexpr uint32_t kWarps = 16, kRounds = 40;
};

TEST_F(Racecheck, OneLaneArrivesForItsWarp) {
  expect_told("first_lane");
}

TEST_F(Racecheck, EveryLaneArrives) {
  expect_told("every_lane");
}

}  // namespace
}  // namespace blockscale::test
