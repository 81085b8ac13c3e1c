// Correct programs of clusters that look like defects: no report under any schedule.
#include "device/emulator/test/cluster_test_support.h"
#include "device/emulator/test/correct_test_support.h"

namespace blockscale::emulator {
namespace {

using Two = device::Vector<uint32_t, 2>;
using Four = device::Vector<uint32_t, 4>;

TEST(CorrectCluster, RemoteStoresAndLoads) {
  Words<64> out;
  expect_clean({kTwoBlocks,
                {output("out", out)},
                [&] {
                  const uint32_t i = 32 * ptx::cluster_ctarank() + ptx::tid_x();
                  cluster_sync();
                  ptx::st_shared_cluster(of_other(word()), i);
                  cluster_sync();
                  const uint32_t mine = ptx::ld_shared<uint32_t>(word());
                  const uint32_t theirs = ptx::ld_shared_cluster<uint32_t>(of_other(word()));
                  // Only the loads of the other block's memory are waited for.
                  ptx::barrier_cluster_arrive();
                  ptx::st_global(out.data() + i, 100 * mine + theirs);
                  ptx::barrier_cluster_wait();
                }},
               [&] {
                 for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(out.at[i], 100 * (i ^ 32) + i);
               });
}

// An arrival that releases nothing, behind the fence for mbarriers, as at the start of a kernel.
TEST(CorrectCluster, RelaxedArrivalBehindAFence) {
  expect_clean({kTwoBlocks, {}, [&] {
                  if (ptx::tid_x() == 0) {
                    ptx::mbarrier_init(empty(), 32, "empty");
                    ptx::fence_mbarrier_init();
                  }
                  ptx::barrier_cluster_arrive_relaxed();
                  ptx::barrier_cluster_wait();
                  ptx::mbarrier_arrive_cluster(of_other(empty()));
                  device::mbarrier_wait(empty(), 0);
                }});
}

// A block's own memory by its cluster address; a cluster of one.
TEST(CorrectCluster, OfOneBlock) {
  expect_clean({{.block = {32}, .dynamic_shared_bytes = 4096}, {}, [&] {
                  const ptx::ClusterAddress own = ptx::mapa_shared_cluster(word(), 0);
                  ptx::st_shared_cluster(own, 7u);
                  EXPECT_EQ(ptx::ld_shared<uint32_t>(word()), 7u);
                  EXPECT_EQ(ptx::ld_shared_cluster<uint32_t>({word().value}), 7u);
                  cluster_sync();
                }});
}

// Threads that have exited are not waited for.
TEST(CorrectCluster, AWarpExits) {
  LaunchShape shape = kTwoBlocks;
  shape.block = {64};
  expect_clean({shape, {}, [&] {
                  cluster_sync();
                  if (ptx::tid_x() < 32) return;
                  cluster_sync();
                  cluster_sync();
                }});
}

// Sums pushed to their owner, who waits for the bytes: no closing cluster barrier.
TEST(CorrectCluster, StAsyncToTheOwner) {
  LaunchShape shape = kTwoBlocks;
  shape.grid = shape.cluster = {4};
  Words<32> out;
  expect_clean({shape,
                {output("out", out)},
                [&] {
                  const uint32_t rank = ptx::cluster_ctarank(), lane = ptx::tid_x();
                  init_cluster_barriers();
                  if (rank != 0) {
                    const auto to = ptx::mapa_shared_cluster(box() + 512 * (rank - 1), 0);
                    const auto done = ptx::mapa_shared_cluster(full(), 0);
                    if (rank == 1) ptx::st_async(to + 4 * lane, lane, done);
                    if (rank == 2) ptx::st_async(to + 8 * lane, Two{{lane, rank}}, done);
                    if (rank == 3) ptx::st_async(to + 16 * lane, Four{{lane, rank, 0, 0}}, done);
                    return;
                  }
                  if (lane == 0) ptx::mbarrier_arrive_expect_tx(full(), 32 * (4 + 8 + 16));
                  device::mbarrier_wait(full(), 0);
                  const uint32_t sum = ptx::ld_shared<uint32_t>(box() + 4 * lane) +
                                       ptx::ld_shared<Two>(box() + 512 + 8 * lane).at[1] +
                                       ptx::ld_shared<Four>(box() + 1024 + 16 * lane).at[1];
                  ptx::st_global(out.data() + lane, sum);
                }},
               [&] {
                 for (uint32_t i = 0; i < 32; ++i) ASSERT_EQ(out.at[i], i + 5);
               });
}

// Each block loads half of each box for both. A box is loaded again when the threads of both blocks
// have read it, and the last ones are waited for.
TEST(CorrectCluster, MulticastPipeline) {
  constexpr uint32_t kRounds = 4, kHalf = 512;
  Matrix matrix;
  Words<2 * 256> out;
  TensorMapDescription half;
  half.address = reinterpret_cast<uint64_t>(matrix.words.data());
  half.sizes[0] = half.sizes[1] = 32;
  half.strides[0] = 128;
  half.box[0] = 32;
  half.box[1] = 4;
  half.element_strides[0] = half.element_strides[1] = 1;
  half.rank = 2;
  half.element = TensorMapElement::u32;
  matrix.map = encode_tensor_map(half);
  LaunchShape shape = kTwoBlocks;
  shape.block = {64};
  const auto kernel = [&] {
    const uint32_t rank = ptx::cluster_ctarank(), lane = ptx::laneid();
    init_cluster_barriers(64);
    if (device::warp_index() == 0) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        device::mbarrier_wait(empty(), (round & 1) ^ 1);
        if (!ptx::elect_sync()) continue;
        ptx::mbarrier_arrive_expect_tx(full(), 2 * kHalf);
        const auto row = static_cast<int32_t>(8 * round + 4 * rank);
        if (round % 2 == 0) {
          ptx::cp_async_bulk_tensor_shared_global_multicast<2>(box() + rank * kHalf, &matrix.map,
                                                               {{0, row}}, full(), 3);
        } else {
          ptx::cp_async_bulk_tensor_shared_global_multicast<2>(box() + rank * kHalf, &matrix.map,
                                                               {{0, row}}, full(), 3,
                                                               ptx::createpolicy_evict_first());
        }
      }
      device::mbarrier_wait(empty(), (kRounds & 1) ^ 1);  // no arrival comes after the exit
      return;
    }
    uint32_t sums[8] = {};
    for (uint32_t round = 0; round < kRounds; ++round) {
      device::mbarrier_wait(full(), round & 1);
      for (uint32_t i = 0; i < 8; ++i) {
        sums[i] += ptx::ld_shared<uint32_t>(box() + 128 * i + 4 * lane);
      }
      for (uint32_t i = 0; i < 2; ++i) {
        ptx::mbarrier_arrive_cluster(ptx::mapa_shared_cluster(empty(), i));
      }
    }
    for (uint32_t i = 0; i < 8; ++i)
      ptx::st_global(out.data() + 256 * rank + 32 * i + lane, sums[i]);
  };
  expect_clean({shape, {input("words", matrix.words), output("out", out)}, kernel}, [&] {
    for (uint32_t i = 0; i < 512; ++i) ASSERT_EQ(out.at[i], 4 * (i % 256) + 256 * 6);
  });
}

}  // namespace
}  // namespace blockscale::emulator
