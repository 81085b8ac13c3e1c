// Planted bugs with the registers of products of warpgroups, and with setmaxnreg.
#include "device/emulator/test/wgmma_test_support.h"
#include "device/ptx/setmaxnreg.h"

namespace blockscale::emulator {
namespace {

constexpr ptx::WgmmaElement kE4m3 = ptx::WgmmaElement::e4m3;

TEST(PlantedRegisters, NoFenceAtAll) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    multiply(d, bug.here());
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group<0>(d);
                  }},
                 FindingKind::missing_wgmma_fence, bug, {"no wgmma_fence before it"});
}

TEST(PlantedRegisters, AccumulatorIsSetBehindTheFence) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    d.set(3, 1.0f, bug.here());
                    multiply(d);
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group<0>(d);
                  }},
                 FindingKind::missing_wgmma_fence, bug,
                 {"no wgmma_fence between the access to its accumulator at"});
}

// The second block of k: its sums were read since the fence of the first.
TEST(PlantedRegisters, NoFenceBehindAPromotion) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    for (int block = 0; block < 2; ++block) {
                      multiply(d, bug.here());
                      ptx::wgmma_commit_group();
                      ptx::wgmma_wait_group<0>(d);
                      d.get(0);
                    }
                  }},
                 FindingKind::missing_wgmma_fence, bug, {"its accumulator"});
}

TEST(PlantedRegisters, AIsSetBehindTheFence) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::WgmmaFragmentA a;
                    for (int i = 0; i < 3; ++i) a.set(i, 0);
                    ptx::wgmma_fence(d, a);
                    a.set(3, 0, bug.here());
                    ptx::wgmma_mma_async<kE4m3, kE4m3>(d, a, descriptor(tile_b()), false);
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group<0>(d, a);
                  }},
                 FindingKind::missing_wgmma_fence, bug, {"the access to its A registers at"});
}

TEST(PlantedRegisters, ReadBeforeTheWait) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    multiply(d);
                    ptx::wgmma_commit_group();
                    d.get(0, bug.here());
                    ptx::wgmma_wait_group<0>(d);
                  }},
                 FindingKind::pending_registers, bug,
                 {"registers of the wgmma_mma_async at", "no wgmma_wait_group has waited for"});
}

TEST(PlantedRegisters, WaitForTooFewGroups) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d[2];
                    ptx::wgmma_fence(d[0], d[1]);
                    for (Accumulator& each : d) {
                      multiply(each);
                      ptx::wgmma_commit_group();
                    }
                    ptx::wgmma_wait_group<1>(d[0]);
                    d[0].get(0);
                    d[1].get(0, bug.here());
                    ptx::wgmma_wait_group<0>(d[1]);
                  }},
                 FindingKind::pending_registers, bug, {"no wgmma_wait_group has waited for"});
}

TEST(PlantedRegisters, WaitNamesAnAccumulatorThatItLeavesPending) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d[2];
                    ptx::wgmma_fence(d[0], d[1]);
                    multiply(d[0]);
                    ptx::wgmma_commit_group();
                    multiply(d[1], bug.here());
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group<1>(d[1]);
                    ptx::wgmma_wait_group<0>(d[0]);
                  }},
                 FindingKind::pending_registers, bug, {"the wgmma_wait_group behind", "names"});
}

TEST(PlantedRegisters, NotCommitted) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    multiply(d);
                    ptx::wgmma_wait_group<0>();
                    d.get(0, bug.here());
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group<0>(d);
                  }},
                 FindingKind::pending_registers, bug,
                 {"no wgmma_commit_group has put into a group"});
}

TEST(PlantedRegisters, AIsOverwrittenBeforeTheWait) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::WgmmaFragmentA a;
                    for (int i = 0; i < 4; ++i) a.set(i, 0);
                    ptx::wgmma_fence(d, a);
                    ptx::wgmma_mma_async<kE4m3, kE4m3>(d, a, descriptor(tile_b()), false);
                    ptx::wgmma_commit_group();
                    a.set(0, 1, bug.here());
                    ptx::wgmma_wait_group<0>(d, a);
                  }},
                 FindingKind::pending_registers, bug, {"registers of the wgmma_mma_async at"});
}

TEST(PlantedRegisters, ExitWithoutAWait) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    multiply(d, bug.here());
                    ptx::wgmma_commit_group();
                  }},
                 FindingKind::outstanding_at_exit, bug,
                 {"has not waited for its wgmma_mma_async", "wgmma_wait_group"});
}

// --- setmaxnreg ---

TEST(PlantedSetmaxnreg, OneLane) {
  Mark bug;
  expect_planted({kOneWarpgroup,
                  {},
                  [&] {
                    if (ptx::laneid() == 0) ptx::setmaxnreg_dec<40>(bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"setmaxnreg_dec"});
}

TEST(PlantedSetmaxnreg, IncreasesToLess) {
  Mark bug;
  expect_planted({kOneWarpgroup,
                  {},
                  [&] {
                    ptx::setmaxnreg_dec<104>();
                    ptx::setmaxnreg_inc<40>(bug.here());
                  }},
                 FindingKind::invalid_operand, bug,
                 {"setmaxnreg_inc", "to 40 registers", "104 that the warp has"});
}

TEST(PlantedSetmaxnreg, MoreThanThereAre) {
  Mark bug;
  const LaunchShape shape = {.block = {384}};
  expect_planted({shape,
                  {},
                  [&] {
                    if (device::warp_index() < 4) {
                      ptx::setmaxnreg_dec<40>();
                    } else {
                      ptx::setmaxnreg_inc<256>(bug.here());
                    }
                  }},
                 FindingKind::invalid_operand, bug, {"registers, a multiprocessor 65536"});
}

}  // namespace
}  // namespace blockscale::emulator
