// Planted bugs in clusters: the barrier, each other's shared memory, multicast.
#include "device/emulator/test/cluster_test_support.h"

namespace blockscale::emulator {
namespace {

// --- Who is there ---

TEST(PlantedCluster, RankBeyondTheCluster) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    ptx::mapa_shared_cluster(word(), 2, bug.here());
                    cluster_sync();
                  }},
                 FindingKind::invalid_operand, bug, {"block 2 of a cluster of 2"});
}

TEST(PlantedCluster, NoBarrierBeforeARemoteStore) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    ptx::st_shared_cluster(of_other(word()), 1u, bug.here());
                    cluster_sync();
                  }},
                 FindingKind::race, bug,
                 {"which need not have begun", "barrier_cluster_arrive and barrier_cluster_wait"});
}

TEST(PlantedCluster, NoBarrierBehindARemoteLoad) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    ptx::st_shared(word(), 1u);
                    cluster_sync();
                    ptx::ld_shared_cluster<uint32_t>(of_other(word()), bug.here());
                  }},
                 FindingKind::block_has_exited, bug, {"shared memory of block ("});
}

// The consumers of the last box: nobody waits for their arrivals.
TEST(PlantedCluster, NoBarrierBehindRemoteArrivals) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers(32);
                    ptx::mbarrier_arrive_cluster(of_other(empty()), bug.here());
                  }},
                 FindingKind::block_has_exited, bug, {"of block ("});
}

TEST(PlantedCluster, BlockHasExitedInOrder) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    ptx::st_shared(word(), 1u);
                    cluster_sync();
                    if (ptx::cluster_ctarank() == 0) return;
                    for (int i = 0; i < 100; ++i) {
                      ptx::bar_warp_sync(ptx::kFullMask);
                      ptx::ld_shared_cluster<uint32_t>(of_other(word()), bug.here());
                    }
                  }},
                 FindingKind::block_has_exited, bug, {"block (0,0,0)", "exit"});
}

// --- The barrier ---

TEST(PlantedCluster, ABlockDoesNotArrive) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    if (ptx::cluster_ctarank() == 0) {
                      ptx::barrier_cluster_arrive();
                      ptx::barrier_cluster_wait(bug.here());
                    } else {
                      device::mbarrier_wait(full(), 0);
                    }
                  }},
                 FindingKind::deadlock, bug,
                 {"wait in barrier_cluster_wait; 32 of 64 threads of the cluster"});
}

TEST(PlantedCluster, ArrivesTwice) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    ptx::barrier_cluster_arrive();
                    ptx::barrier_cluster_arrive(bug.here());
                    ptx::barrier_cluster_wait();
                  }},
                 FindingKind::barrier_misuse, bug, {"arrives twice", "no barrier_cluster_wait"});
}

TEST(PlantedCluster, WaitsWithoutAnArrival) {
  Mark bug;
  expect_planted({kTwoBlocks, {}, [&] { ptx::barrier_cluster_wait(bug.here()); }},
                 FindingKind::barrier_misuse, bug, {"has not arrived"});
}

TEST(PlantedCluster, OneLaneArrives) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    if (ptx::tid_x() == 0) ptx::barrier_cluster_arrive(bug.here());
                    ptx::barrier_cluster_wait();
                  }},
                 FindingKind::divergent_collective, bug, {"barrier_cluster_arrive"});
}

// --- Each other's shared memory ---

TEST(PlantedCluster, TwoBlocksWriteOneWord) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    if (ptx::cluster_ctarank() == 0) {
                      ptx::st_shared_cluster(of_other(word()), 1u, bug.here());
                    } else {
                      ptx::st_shared(word(), 2u);
                    }
                    cluster_sync();
                  }},
                 FindingKind::race, bug, {"shared memory of block (1,0,0) at offset "});
}

TEST(PlantedCluster, RelaxedArrivalReleasesNothing) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    ptx::st_shared_cluster(of_other(word()), 1u);
                    ptx::barrier_cluster_arrive_relaxed();
                    ptx::barrier_cluster_wait();
                    ptx::ld_shared<uint32_t>(word(), bug.here());
                  }},
                 FindingKind::race, bug, {"is not ordered after the write at"});
}

TEST(PlantedCluster, MbarrierWithoutAFence) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    if (ptx::tid_x() == 0) ptx::mbarrier_init(empty(), 32, "empty");
                    ptx::barrier_cluster_arrive_relaxed();
                    ptx::barrier_cluster_wait();
                    ptx::mbarrier_arrive_cluster(of_other(empty()), bug.here());
                    cluster_sync();
                  }},
                 FindingKind::race, bug, {"is not ordered after the mbarrier_init of 'empty'"});
}

TEST(PlantedCluster, NobodyHasWrittenIt) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    ptx::ld_shared_cluster<uint32_t>(of_other(word()), bug.here());
                    cluster_sync();
                  }},
                 FindingKind::uninitialized_read, bug, {"ld_shared_cluster", "nobody has written"});
}

TEST(PlantedCluster, MisalignedRemoteStore) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    ptx::st_shared_cluster(of_other(box() + 4), device::Vector<uint32_t, 2>{},
                                           bug.here());
                    cluster_sync();
                  }},
                 FindingKind::misaligned, bug, {"st_shared_cluster", "a multiple of 8"});
}

TEST(PlantedCluster, RemoteStoreBeyondSharedMemory) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    cluster_sync();
                    ptx::st_shared_cluster(of_other(device::shared_base() + 4096), 1u, bug.here());
                    cluster_sync();
                  }},
                 FindingKind::out_of_bounds, bug, {"offset 4096 of shared memory of block ("});
}

TEST(PlantedCluster, TooManyRemoteArrivals) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect_tx(full(), 128);
                    cluster_sync();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_cluster(of_other(full()), bug.here());
                    }
                    ptx::st_async(of_other(word()), 1u, of_other(full()));
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::barrier_misuse, bug, {"'full'", "0 of 1 arrivals are missing"});
}

// --- st.async ---

TEST(PlantedCluster, StAsyncWithoutACluster) {
  Mark bug;
  expect_planted({{.block = {32}, .dynamic_shared_bytes = 4096},
                  {},
                  [&] {
                    init_cluster_barriers();
                    ptx::st_async(ptx::mapa_shared_cluster(word(), 0), 1u,
                                  ptx::mapa_shared_cluster(full(), 0), bug.here());
                  }},
                 FindingKind::invalid_operand, bug, {"is not launched as clusters"});
}

TEST(PlantedCluster, StAsyncCompletesInAnotherBlock) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    ptx::st_async(of_other(word()), 1u,
                                  ptx::mapa_shared_cluster(full(), ptx::cluster_ctarank()),
                                  bug.here());
                    cluster_sync();
                  }},
                 FindingKind::invalid_operand, bug, {"st_async", "its mbarrier is one of block ("});
}

TEST(PlantedCluster, StAsyncOfBytesThatNobodyExpects) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect_tx(full(), 124);
                    cluster_sync();
                    ptx::st_async(of_other(word()), 1u, of_other(full()), bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::transaction_bytes, bug,
                 {"'full' completes phase 0 before", "st_async", "too few bytes"});
}

TEST(PlantedCluster, StAsyncIsReadBeforeTheWait) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect_tx(full(), 128);
                    ptx::st_async(of_other(word()), 1u, of_other(full()));
                    cluster_sync();  // the stores are begun, not done
                    ptx::ld_shared<uint32_t>(word(), bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::race, bug, {"completes on mbarrier 'full'"});
}

TEST(PlantedCluster, StAsyncThatNobodyWaitsFor) {
  Mark bug;
  expect_planted({kTwoBlocks,
                  {},
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) ptx::mbarrier_arrive_expect_tx(full(), 128);
                    ptx::st_async(of_other(word()), 1u, of_other(full()), bug.here());
                    cluster_sync();
                  }},
                 FindingKind::outstanding_at_exit, bug, {"nobody has waited for", "'full'"});
}

// --- Multicast ---

TEST(PlantedMulticast, MaskNamesAnAbsentBlock) {
  Mark bug;
  const Matrix matrix;
  expect_planted({kTwoBlocks, matrix.buffers(),
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 1024);
                      if (ptx::cluster_ctarank() == 0) {
                        ptx::cp_async_bulk_tensor_shared_global_multicast<2>(
                            box(), &matrix.map, {{0, 0}}, full(), 0b101, bug.here());
                      }
                    }
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::invalid_operand, bug, {"its mask 5", "a cluster of 2"});
}

// It completes too early, or waits for ever: as the copy comes later than the arrival, or before.
TEST(PlantedMulticast, OneBlockExpectsNoBytes) {
  Mark bug;
  const Matrix matrix;
  expect_planted({kTwoBlocks, matrix.buffers(),
                  [&] {
                    init_cluster_barriers();
                    const bool loads = ptx::cluster_ctarank() == 0;
                    if (loads && ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 1024);
                      ptx::cp_async_bulk_tensor_shared_global_multicast<2>(box(), &matrix.map,
                                                                           {{0, 0}}, full(), 3);
                    }
                    cluster_sync();
                    if (!loads && ptx::tid_x() == 0) ptx::mbarrier_arrive(full(), 1, bug.here());
                    device::mbarrier_wait(full(), 0, loads ? SourceLocation::current() : bug.at());
                  }},
                 FindingKind::transaction_bytes, bug, {"'full'", "1024 bytes"});
}

/// Block 0 loads each of two boxes into one place of both blocks.
void share_boxes(const Matrix& matrix, const std::function<void()>& release, SourceLocation at) {
  init_cluster_barriers(64);
  for (uint32_t round = 0; round < 2; ++round) {
    if (ptx::tid_x() == 0) {
      ptx::mbarrier_arrive_expect_tx(full(), 1024);
      if (ptx::cluster_ctarank() == 0) {
        if (round != 0) device::mbarrier_wait(empty(), 0);
        ptx::cp_async_bulk_tensor_shared_global_multicast<2>(
            box(), &matrix.map, {{0, static_cast<int32_t>(8 * round)}}, full(), 3, at);
      }
    }
    device::mbarrier_wait(full(), round);
    ptx::ld_shared<uint32_t>(box() + 4 * ptx::tid_x());
    release();
  }
  cluster_sync();
}

// Block 0's threads arrive for both; it does not hear of block 1.
TEST(PlantedMulticast, OtherBlockHasNotReadTheBox) {
  Mark bug;
  const Matrix matrix;
  expect_planted({kTwoBlocks, matrix.buffers(),
                  [&] {
                    share_boxes(
                        matrix,
                        [] {
                          if (ptx::cluster_ctarank() == 0) ptx::mbarrier_arrive(empty(), 2);
                        },
                        bug.here());
                  }},
                 FindingKind::race, bug,
                 {"shared memory of block (1,0,0)", "is not ordered after"});
}

TEST(PlantedMulticast, BlockThatDoesNotWait) {
  Mark bug;
  const Matrix matrix;
  expect_planted({kTwoBlocks, matrix.buffers(),
                  [&] {
                    init_cluster_barriers();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 1024);
                      if (ptx::cluster_ctarank() == 0) {
                        ptx::cp_async_bulk_tensor_shared_global_multicast<2>(
                            box(), &matrix.map, {{0, 0}}, full(), 3, bug.here());
                      }
                    }
                    if (ptx::cluster_ctarank() == 0) device::mbarrier_wait(full(), 0);
                    cluster_sync();
                  }},
                 FindingKind::outstanding_at_exit, bug, {"block (1,0,0) has exited", "'full'"});
}

}  // namespace
}  // namespace blockscale::emulator
