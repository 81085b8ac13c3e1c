// Planted bugs in barriers and collectives.
#include <array>

#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kTwoWarps = {.block = {64}, .dynamic_shared_bytes = 1024};

TEST(PlantedBarrier, WaitsForMoreThreadsThanCome) {
  Mark bug;
  expect_planted({{.block = {96}},
                  {},
                  [&] {
                    if (ptx::tid_x() < 64) ptx::bar_sync(1, 96, bug.here());
                  }},
                 FindingKind::deadlock, bug,
                 {"bar_sync 1 for 96 threads; 2 warps", "warp 0 lanes 0-31", "32 of the same"});
}

TEST(PlantedBarrier, TwoCountsForOneBarrier) {
  Mark bug;
  expect_planted(
      {{.block = {96}}, {}, [&] { ptx::bar_sync(1, ptx::tid_x() < 64 ? 96 : 64, bug.here()); }},
      FindingKind::barrier_misuse, bug, {"expects", "but the phase began at"});
}

TEST(PlantedBarrier, CountIsNoMultipleOf32) {
  Mark bug;
  expect_planted({kTwoWarps, {}, [&] { ptx::bar_sync(1, 40, bug.here()); }},
                 FindingKind::barrier_misuse, bug, {"40 threads", "multiple of 32"});
}

TEST(PlantedBarrier, IdOutOfRange) {
  Mark bug;
  expect_planted({kTwoWarps, {}, [&] { ptx::bar_sync(16, 64, bug.here()); }},
                 FindingKind::barrier_misuse, bug, {"bar_sync 16", "0 to 15"});
}

TEST(PlantedBarrier, HalvesOfAWarpAtTwoBarriers) {
  Mark bug;
  expect_planted({{.block = {32}},
                  {},
                  [&] {
                    if (ptx::laneid() < 16) {
                      ptx::bar_sync(1, 32, bug.here());
                    } else {
                      ptx::bar_sync(2, 32);
                    }
                  }},
                 FindingKind::divergent_collective, bug, {"of the same warp waits in bar_sync"});
}

TEST(PlantedBarrier, HalvesOfAWarpAtTwoLines) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() < 16) {
                      ptx::barrier_sync_all(bug.here());
                    } else {
                      ptx::barrier_sync_all();
                    }
                  }},
                 FindingKind::divergent_collective, bug,
                 {"of the same warp waits in bar_sync 0 at"});
}

TEST(PlantedBarrier, ArrivesTwice) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::tid_x() >= 32) return;
                    ptx::bar_arrive(1, 64);
                    ptx::bar_arrive(1, 64, bug.here());
                  }},
                 FindingKind::barrier_misuse, bug, {"bar_arrive 1", "arrives twice in one phase"});
}

TEST(PlantedBarrier, ShuffleInABranch) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() < 16) {
                      ptx::shfl_sync_bfly(ptx::kFullMask, 1u, 1, bug.here());
                    }
                    ptx::bar_warp_sync(ptx::kFullMask);
                  }},
                 FindingKind::divergent_collective, bug, {"shfl_sync", "bar_warp_sync", "mask"});
}

TEST(PlantedBarrier, MasksThatOverlap) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const uint32_t mask = ptx::laneid() < 8 ? 0xFFu : 0xFFFFFF80u;
                    ptx::vote_sync_any(mask, true, bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"vote_sync", "lane"});
}

TEST(PlantedBarrier, MaskWithoutTheLaneItself) {
  Mark bug;
  expect_planted({kTwoWarps, {}, [&] { ptx::redux_sync_max(0xFFFFu, 1, bug.here()); }},
                 FindingKind::divergent_collective, bug, {"does not name the lane itself"});
}

TEST(PlantedBarrier, ShuffleReadsALaneOutsideTheMask) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() < 4) ptx::shfl_sync_bfly(0xFu, 1u, 4, bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"reads lane", "0x0000000F"});
}

TEST(PlantedBarrier, MaskNamesLanesThatHaveExited) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() >= 24) return;
                    ptx::vote_sync_ballot(ptx::kFullMask, true, bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"exited"});
}

/// Lets one thread wait for a flag that nobody sets: `load(flag)` in a loop.
template <class Load>
void expect_endless_poll(Mark& bug, const Load& load) {
  std::vector<uint32_t> flag(1);
  expect_planted({{.grid = {2}, .block = {32}},
                  {in_out("flag", flag)},
                  [&] {
                    if (ptx::tid_x() != 0 || ptx::ctaid_x() != 0) return;
                    while (load(flag.data()) == 0) {
                    }
                  }},
                 FindingKind::deadlock, bug, {"poll", "block (0,0,0) warp 0 lanes 0x00000001"});
}

TEST(PlantedBarrier, PollsForAFlagThatNobodySets) {
  Mark bug;
  expect_endless_poll(bug,
                      [&](uint32_t* flag) { return ptx::ld_acquire_gpu_global(flag, bug.here()); });
}

TEST(PlantedBarrier, SpinsOnAnOrdinaryLoadThatNobodyAnswers) {
  Mark bug;
  expect_endless_poll(bug, [&](uint32_t* flag) { return ptx::ld_global(flag, bug.here()); });
}

TEST(PlantedBarrier, SpinsOnAnOrdinaryLoadWhileAnotherStores) {
  Mark bug;
  std::vector<uint32_t> flag(1);
  expect_planted({{.grid = {2}, .block = {32}},
                  {in_out("flag", flag)},
                  [&] {
                    if (ptx::tid_x() != 0) return;
                    if (ptx::ctaid_x() == 1) ptx::st_global(flag.data(), 1u);
                    while (ptx::ld_global(flag.data(), bug.here()) == 0) {
                    }
                  }},
                 FindingKind::race, bug, {"flag"});
}

TEST(PlantedBarrier, TakesALockThatNobodyGivesBack) {
  Mark bug;
  std::vector<uint32_t> lock(1);
  expect_planted({kTwoWarps,
                  {in_out("lock", lock)},
                  [&] {
                    if (ptx::laneid() != 0) return;
                    while (ptx::atom_global_exch(lock.data(), 1u, bug.here()) != 0) {
                    }
                  }},
                 FindingKind::deadlock, bug, {"poll", "block (0,0,0) warp"});
}

TEST(PlantedBarrier, WaitsForABlockThatDoesNotFit) {
  Mark bug;
  std::vector<uint32_t> arrived(1);
  Program program = {{.grid = {8}, .block = {32}}, {in_out("arrived", arrived)}, [&] {
                       if (ptx::tid_x() != 0) return;
                       ptx::red_global_add(arrived.data(), 1);
                       while (ptx::ld_relaxed_gpu_global(arrived.data(), bug.here()) < 8) {
                       }
                     }};
  Options options;
  options.max_resident_clusters = 7;
  const Report report = launch(program.shape, program.buffers, options, program.kernel);
  EXPECT_TRUE(report.has(FindingKind::deadlock, bug.at().file_name(), bug.at().line()))
      << report.text();
  arrived[0] = 0;
  options.max_resident_clusters = 8;
  EXPECT_TRUE(launch(program.shape, program.buffers, options, program.kernel).ok());
}

TEST(PlantedBarrier, MbarrierIsNotInitialised) {
  Mark bug;
  expect_planted(
      {kTwoWarps, {}, [&] { ptx::mbarrier_arrive(device::shared_base() + 8, 1, bug.here()); }},
      FindingKind::barrier_misuse, bug, {"no mbarrier was initialised at offset 8"});
}

TEST(PlantedBarrier, MbarrierInitIsNotOrdered) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() == 0) ptx::mbarrier_init(s, 32, "done");
                    ptx::shfl_sync_idx(ptx::kFullMask, 0u, 0);  // orders nothing
                    if (ptx::tid_x() < 32) ptx::mbarrier_arrive(s, 1, bug.here());
                  }},
                 FindingKind::race, bug, {"mbarrier_init of 'done'", "no barrier between"});
}

TEST(PlantedBarrier, MbarrierHasTooFewArrivals) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() == 0) ptx::mbarrier_init(s, 64, "all threads");
                    ptx::barrier_sync_all();
                    if (ptx::elect_sync()) ptx::mbarrier_arrive(s);
                    device::mbarrier_wait(s, 0, bug.here());
                  }},
                 FindingKind::deadlock, bug,
                 {"mbarrier 'all threads' parity 0: it is in phase 0 (parity 0)",
                  "62 of 64 arrivals missing"});
}

TEST(PlantedBarrier, MbarrierHasTooManyArrivals) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_init(s, 2, "done");
                      ptx::mbarrier_arrive(s, 3, bug.here());
                    }
                  }},
                 FindingKind::barrier_misuse, bug, {"arrives 3 times", "2 of 2 arrivals"});
}

TEST(PlantedBarrier, MbarrierWaitsForThePhaseAfterTheLast) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() == 0) ptx::mbarrier_init(s, 64, "round");
                    ptx::barrier_sync_all();
                    ptx::mbarrier_arrive(s);
                    device::mbarrier_wait(s, 0);
                    device::mbarrier_wait(s, 1, bug.here());  // nobody arrives again
                  }},
                 FindingKind::deadlock, bug, {"'round' parity 1", "phase 1", "64 of 64 arrivals"});
}

TEST(PlantedBarrier, StoreOverAnMbarrier) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_init(s + 16, 1, "full");
                    ptx::st_shared(s + 20, 0u, bug.here());
                  }},
                 FindingKind::barrier_misuse, bug, {"offset 20", "where an mbarrier lies"});
}

TEST(PlantedBarrier, MbarrierInitialisedTwice) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::tid_x() >= 2) return;
                    ptx::mbarrier_init(device::shared_base(), 1, "full", bug.here());
                  }},
                 FindingKind::barrier_misuse, bug, {"'full', initialised at", "mbarrier_inval"});
}

}  // namespace
}  // namespace blockscale::emulator
