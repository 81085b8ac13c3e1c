// Planted bugs in ldmatrix and stmatrix.
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kTwoWarps = {.block = {64}, .dynamic_shared_bytes = 1024};

/// A row of 16 bytes for each thread.
ptx::SharedAddress row_of(uint32_t thread) {
  return device::shared_base() + 16 * thread;
}

void write_row(uint32_t thread, SourceLocation at = SourceLocation::current()) {
  for (uint32_t i = 0; i < 4; ++i) ptx::st_shared(row_of(thread) + 4 * i, i, at);
}

TEST(PlantedLdmatrix, RowsOfOtherLanesWithoutWarpSync) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    write_row(ptx::tid_x());
                    (void)ptx::ldmatrix<4>(row_of(ptx::tid_x()), bug.here());
                  }},
                 FindingKind::race, bug, {"the read at", "shared memory at offset"});
}

TEST(PlantedLdmatrix, RowsOfAnotherWarpWithoutBarrier) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    write_row(ptx::tid_x());
                    ptx::bar_warp_sync(ptx::kFullMask);
                    (void)ptx::ldmatrix<2, true>(row_of(ptx::tid_x() ^ 32), bug.here());
                  }},
                 FindingKind::race, bug, {"the read at", "no barrier"});
}

TEST(PlantedLdmatrix, NobodyHasWritten) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    if (ptx::laneid() != 11) write_row(ptx::tid_x());
                    ptx::barrier_sync_all();
                    (void)ptx::ldmatrix<4>(row_of(ptx::tid_x()), bug.here());
                  }},
                 FindingKind::uninitialized_read, bug, {"ldmatrix"});
}

TEST(PlantedLdmatrix, ARowThatIsNotAligned) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    write_row(ptx::tid_x());
                    ptx::barrier_sync_all();
                    const uint32_t odd = ptx::laneid() == 9 ? 8 : 0;
                    (void)ptx::ldmatrix<2>(row_of(ptx::tid_x()) + odd, bug.here());
                  }},
                 FindingKind::misaligned, bug, {"lane 9", "no multiple of 16"});
}

TEST(PlantedLdmatrix, ARowOutOfBounds) {
  Mark bug;
  expect_planted(
      {kTwoWarps,
       {},
       [&] { ptx::stmatrix(row_of(ptx::tid_x() + 33), ptx::MatrixFragment<4>{}, bug.here()); }},
      FindingKind::out_of_bounds, bug, {"stmatrix"});
}

TEST(PlantedLdmatrix, ALaneIsMissing) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::MatrixFragment<1> f = {};
                    if (ptx::laneid() != 30) ptx::stmatrix(row_of(ptx::tid_x()), f, bug.here());
                    ptx::bar_warp_sync(ptx::kFullMask);
                  }},
                 FindingKind::divergent_collective, bug, {"stmatrix at", "bar_warp_sync at"});
}

TEST(PlantedLdmatrix, LanesMoveDifferentNumbers) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const SourceLocation at = bug.here();
                    if (ptx::laneid() < 8) {
                      ptx::stmatrix(row_of(ptx::tid_x()), ptx::MatrixFragment<1>{}, at);
                    } else {
                      ptx::stmatrix(row_of(ptx::tid_x()), ptx::MatrixFragment<2>{}, at);
                    }
                  }},
                 FindingKind::divergent_collective, bug, {"of the same warp are at stmatrix"});
}

TEST(PlantedLdmatrix, OverwritesRowsThatAreStillRead) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    write_row(ptx::tid_x());
                    ptx::barrier_sync_all();
                    const auto f = ptx::ldmatrix<4>(row_of(ptx::tid_x()));
                    ptx::stmatrix<true>(row_of(ptx::tid_x()), f, bug.here());
                  }},
                 FindingKind::race, bug, {"the write at", "the read at"});
}

}  // namespace
}  // namespace blockscale::emulator
