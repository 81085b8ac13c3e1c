// Planted bugs in products of warpgroups: operands, memory, threads.
#include "device/emulator/test/wgmma_test_support.h"
#include "device/ptx/cp_async.h"

namespace blockscale::emulator {
namespace {

using ptx::WgmmaElement;
constexpr WgmmaElement kE4m3 = WgmmaElement::e4m3;

/// Where the defect is a product of its own.
template <class Multiply>
Program product_of(const Operands& operands, const Multiply& multiply_wrongly) {
  return {kOneWarpgroup, operands.buffers(), [&operands, multiply_wrongly] {
            load(operands);
            Accumulator d;
            ptx::wgmma_fence(d);
            multiply_wrongly(d);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<0>(d);
          }};
}

// --- Operands ---

TEST(PlantedWgmma, StartIsNoMultipleOfEightRows) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              ptx::wgmma_mma_async<kE4m3, kE4m3>(d, descriptor(tile_a() + 256),
                                                                 descriptor(tile_b()), false,
                                                                 bug.here());
                            }),
                 FindingKind::misaligned, bug,
                 {"A starts at offset 1280", "rows of 128 bytes", "a multiple of 1024"});
}

TEST(PlantedWgmma, StartIsNoMultipleOf32OfARow) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              ptx::wgmma_mma_async<kE4m3, kE4m3>(d, descriptor(tile_a()),
                                                                 descriptor(tile_b() + 16), false,
                                                                 bug.here());
                            }),
                 FindingKind::misaligned, bug, {"B starts at offset 9232", "a multiple of 32"});
}

TEST(PlantedWgmma, NoSwizzle) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              ptx::WgmmaDescriptor a = descriptor(tile_a());
                              a.bits &= (uint64_t{1} << 62) - 1;
                              ptx::wgmma_mma_async<kE4m3, kE4m3>(d, a, descriptor(tile_b()), false,
                                                                 bug.here());
                            }),
                 FindingKind::invalid_operand, bug, {"the descriptor of A has no swizzle"});
}

TEST(PlantedWgmma, OperandReachesBeyondSharedMemory) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              ptx::wgmma_mma_async<kE4m3, kE4m3>(d, descriptor(tile_a() + 2048),
                                                                 descriptor(tile_b()), false,
                                                                 bug.here());
                            }),
                 FindingKind::out_of_bounds, bug,
                 {"wgmma_mma_async", "offset 10240", "of which the launch gives 10240 bytes"});
}

TEST(PlantedWgmma, ElementsThatDoNotMeet) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              ptx::wgmma_mma_async<WgmmaElement::f16, WgmmaElement::bf16>(
                                  d, descriptor(tile_a()), descriptor(tile_b()), false, bug.here());
                            }),
                 FindingKind::invalid_operand, bug, {"no product of f16 and bf16"});
}

// --- What lies in shared memory ---

TEST(PlantedWgmma, NobodyHasWrittenB) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    init_barriers();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), kBytesOfA);
                      ptx::cp_async_bulk_tensor_shared_global<2>(tile_a(), &operands.a_map,
                                                                 {{0, 0}}, full());
                    }
                    device::mbarrier_wait(full(), 0);
                    fence_multiply_wait(bug.here());
                  }},
                 FindingKind::uninitialized_read, bug, {"wgmma_mma_async", "nobody has written"});
}

void write_operands() {
  for (uint32_t i = ptx::tid_x(); i < (kBytesOfA + kBytesOfB) / 4; i += 128) {
    ptx::st_shared(tile_a() + 4 * i, 0x38383838u);
  }
}

TEST(PlantedWgmma, NoProxyFenceBehindStores) {
  Mark bug;
  expect_planted({kOneWarpgroup,
                  {},
                  [&] {
                    write_operands();
                    ptx::barrier_sync_all();
                    fence_multiply_wait(bug.here());
                  }},
                 FindingKind::missing_proxy_fence, bug,
                 {"a product of the warpgroup of block (0,0,0) warps 0 to 3", "fence_proxy_async"});
}

// Rows that threads copy, as gathered rows of A are, are no tensor copies' either.
TEST(PlantedWgmma, NoProxyFenceBehindCopiesOfThreads) {
  Mark bug;
  const std::vector<uint32_t> rows((kBytesOfA + kBytesOfB) / 4, 0x38383838u);
  expect_planted({kOneWarpgroup,
                  {emulator::input("rows", rows)},
                  [&] {
                    for (uint32_t i = ptx::tid_x(); i < rows.size() / 4; i += 128) {
                      ptx::cp_async_cg(tile_a() + 16 * i, rows.data() + 4 * i);
                    }
                    ptx::cp_async_wait_all();
                    ptx::barrier_sync_all();
                    fence_multiply_wait(bug.here());
                  }},
                 FindingKind::missing_proxy_fence, bug, {"fence_proxy_async"});
}

// After the barrier a fence publishes to what its own thread issues; each warp reads its part.
TEST(PlantedWgmma, ProxyFenceOfOneWarp) {
  Mark bug;
  expect_planted({kOneWarpgroup,
                  {},
                  [&] {
                    write_operands();
                    ptx::barrier_sync_all();
                    if (device::warp_index() == 0) ptx::fence_proxy_async_shared();
                    fence_multiply_wait(bug.here());
                  }},
                 FindingKind::missing_proxy_fence, bug, {"fence_proxy_async"});
}

TEST(PlantedWgmma, OneWarpWaitsForTheLoad) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    init_barriers();
                    if (ptx::tid_x() == 0) begin_load(operands);
                    if (device::warp_index() == 0) device::mbarrier_wait(full(), 0);
                    ptx::bar_warp_sync(ptx::kFullMask);
                    fence_multiply_wait(bug.here());
                  }},
                 FindingKind::race, bug,
                 {"is not ordered after the write at", "completes on mbarrier 'full'"});
}

TEST(PlantedWgmma, WrongParity) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    init_barriers();
                    device::mbarrier_wait(full(), 1);  // of the phase before the first: no wait
                    ptx::barrier_sync_all();
                    if (ptx::tid_x() == 0) begin_load(operands);
                    ptx::barrier_sync_all();
                    fence_multiply_wait(bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::race, bug, {"the read at", "completes on mbarrier 'full'"});
}

TEST(PlantedWgmma, StageIsLoadedAgainBeforeTheWait) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    multiply(d);
                    ptx::wgmma_commit_group();
                    ptx::barrier_sync_all();  // the products are begun, not done
                    if (ptx::tid_x() == 0) begin_load(operands, bug.here());
                    ptx::wgmma_wait_group<0>(d);
                    device::mbarrier_wait(full(), 1);
                  }},
                 FindingKind::race, bug,
                 {"the write at", "is not ordered after the read at",
                  "a product of the warpgroup of block (0,0,0) warps 0 to 3"});
}

TEST(PlantedWgmma, StageIsReleasedBeforeTheWait) {
  Mark bug;
  const Operands operands;
  const LaunchShape shape = {.block = {160},
                             .dynamic_shared_bytes = kOneWarpgroup.dynamic_shared_bytes};
  expect_planted({shape, operands.buffers(),
                  [&] {
                    init_barriers(4);
                    if (device::warp_index() == 4) {
                      for (uint32_t round = 0; round < 3; ++round) {
                        device::mbarrier_wait(empty(), (round & 1) ^ 1);
                        if (ptx::elect_sync()) begin_load(operands);
                      }
                      return;
                    }
                    Accumulator d;
                    for (uint32_t round = 0; round < 3; ++round) {
                      device::mbarrier_wait(full(), round & 1);
                      ptx::wgmma_fence(d);
                      multiply(d, bug.here());
                      ptx::wgmma_commit_group();
                      if (ptx::laneid() == 0) ptx::mbarrier_arrive(empty());
                      ptx::wgmma_wait_group<0>(d);
                    }
                  }},
                 FindingKind::race, bug, {"the write at", "is not ordered after the read at"});
}

// --- All 128 threads ---

TEST(PlantedWgmma, WarpsHaveOtherOperands) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              const uint32_t k = device::warp_index() / 2;
                              ptx::wgmma_mma_async<kE4m3, kE4m3>(d, descriptor(tile_a() + 32 * k),
                                                                 descriptor(tile_b() + 32 * k),
                                                                 false, bug.here());
                            }),
                 FindingKind::divergent_collective, bug,
                 {"of the same warpgroup executed", "their operands differ"});
}

TEST(PlantedWgmma, WarpsAreAtOtherLines) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              if (device::warp_index() < 2) {
                                multiply(d);
                              } else {
                                multiply(d, bug.here());
                              }
                            }),
                 FindingKind::divergent_collective, bug, {"of the same warpgroup executed"});
}

TEST(PlantedWgmma, OneLaneIssues) {
  Mark bug;
  const Operands operands;
  expect_planted(product_of(operands,
                            [&](Accumulator& d) {
                              if (ptx::elect_sync()) multiply(d, bug.here());
                            }),
                 FindingKind::divergent_collective, bug,
                 {"wgmma_commit_group", "wgmma_mma_async", "of the same warpgroup"});
}

TEST(PlantedWgmma, AWarpExits) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    if (device::warp_index() == 3) return;
                    Accumulator d;
                    ptx::wgmma_fence(d);
                    multiply(d, bug.here());
                    ptx::wgmma_commit_group(bug.at());
                    ptx::wgmma_wait_group<0>(d);
                  }},
                 FindingKind::divergent_collective, bug,
                 {"warps 0 to 3", "all 128 threads execute it"});
}

TEST(PlantedWgmma, AWarpWaitsElsewhere) {
  Mark bug;
  const Operands operands;
  expect_planted({kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    if (device::warp_index() != 3) {
                      Accumulator d;
                      ptx::wgmma_fence(d);
                      multiply(d);
                      ptx::wgmma_commit_group(bug.here());
                      ptx::wgmma_wait_group<0>(d);
                    }
                    ptx::barrier_sync_all();
                  }},
                 FindingKind::deadlock, bug,
                 {"warp 0 lanes 0-31", "wait in wgmma_wait_group", "96 of the 128 threads"});
}

TEST(PlantedWgmma, ThreeWarpsAreNoWarpgroup) {
  Mark bug;
  const LaunchShape shape = {.block = {96},
                             .dynamic_shared_bytes = kOneWarpgroup.dynamic_shared_bytes};
  expect_planted({shape,
                  {},
                  [&] {
                    Accumulator d;
                    multiply(d, bug.here());
                  }},
                 FindingKind::divergent_collective, bug, {"a warpgroup is 4 warps", "has 3"});
}

}  // namespace
}  // namespace blockscale::emulator
