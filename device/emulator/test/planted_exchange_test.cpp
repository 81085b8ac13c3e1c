// Planted bugs in an exchange of partial sums, as the blocks of a cluster that divide K do it
// (ops/gemm/kernels/sm90/fp8_entry.cuh): each warp's rows are one block's own; the others send it
// theirs by st.async, and it waits for their bytes and adds up in the order of ranks.
#include <optional>

#include "device/emulator/test/cluster_test_support.h"
#include "device/emulator/test/correct_test_support.h"

namespace blockscale::emulator {
namespace {

using Four = device::Vector<uint32_t, 4>;

constexpr uint32_t kBlocks = 3, kWarps = 3, kOthers = kBlocks - 1;
constexpr uint32_t kWarpBytes = 32 * sizeof(Four);
constexpr LaunchShape kThreeBlocks = {
    .grid = {kBlocks}, .block = {32 * kWarps}, .cluster = {kBlocks}, .dynamic_shared_bytes = 4096};

/// The exchange, and where each test's differs. A location stands for that of the call it is named
/// after.
struct Exchange {
  bool begins_together = true;  // behind a cluster barrier
  uint32_t expected = kOthers * kWarpBytes;
  uint32_t parity = 0;
  bool waits = true;
  bool stores = true;          // the owner; else it leaves, as where its rows are outside of D
  uint32_t lanes = 32;         // that send
  uint32_t to = 0;             // added to the rank of the owner
  uint32_t to_barrier = 0;     // added to the warp whose mbarrier is told
  bool owner_sends = false;    // too
  bool slots_collide = false;  // those of the ranks before the owner and behind it
  uint32_t tiles = 1;

  std::optional<SourceLocation> sent_at = {};
  std::optional<SourceLocation> waited_at = {};
  std::optional<SourceLocation> read_at = {};
};

ptx::SharedAddress sum_barrier(uint32_t warp) {
  return device::shared_base() + 8 * (warp % kWarps);
}
ptx::SharedAddress sums(uint32_t warp, uint32_t slot) {
  return device::shared_base() + 1024 + (warp * kOthers + slot) * kWarpBytes + 16 * ptx::laneid();
}

void send(const Exchange& x, uint32_t warp, uint32_t owner) {
  const uint32_t rank = ptx::cluster_ctarank(), lane = ptx::laneid();
  if (lane >= x.lanes) return;
  const uint32_t slot = x.slots_collide || rank < owner ? rank % kOthers : rank - 1;
  const uint32_t to = (owner + x.to) % kBlocks;
  ptx::st_async(ptx::mapa_shared_cluster(sums(warp, slot % kOthers), to),
                Four{{lane, rank, warp, 1}},
                ptx::mapa_shared_cluster(sum_barrier(warp + x.to_barrier), to),
                x.sent_at.value_or(SourceLocation::current()));
}

/// Of each warp, what the rank's number and the ones of all ranks add up to.
Four receive(const Exchange& x, uint32_t warp, uint32_t tile) {
  if (ptx::laneid() == 0) {
    ptx::mbarrier_arrive_expect_tx(sum_barrier(warp), x.expected);
  }
  if (x.waits) {
    device::mbarrier_wait(sum_barrier(warp), (x.parity + tile) % 2,
                          x.waited_at.value_or(SourceLocation::current()));
  }
  Four sum = {{ptx::laneid(), ptx::cluster_ctarank(), warp, 1}};
  for (uint32_t slot = 0; slot < kOthers; ++slot) {
    const Four add =
        ptx::ld_shared<Four>(sums(warp, slot), x.read_at.value_or(SourceLocation::current()));
    for (uint32_t i = 0; i < 4; ++i) sum.at[i] += add.at[i];
  }
  return sum;
}

Program program(const Exchange& x, Words<4 * 32 * kWarps>& out) {
  return {kThreeBlocks, {output("out", out)}, [&x, &out] {
            const uint32_t warp = device::warp_index(), owner = warp % kBlocks;
            if (ptx::laneid() == 0) {
              ptx::mbarrier_init(sum_barrier(warp), 1, "sums");
              ptx::fence_mbarrier_init();
            }
            ptx::barrier_sync_all();
            if (x.begins_together) {
              ptx::barrier_cluster_arrive_relaxed();
              ptx::barrier_cluster_wait();
            }
            for (uint32_t tile = 0; tile < x.tiles; ++tile) {
              const bool owns = ptx::cluster_ctarank() == owner;
              if (!owns || x.owner_sends) send(x, warp, owner);
              if (!owns || !x.stores) continue;
              const Four sum = receive(x, warp, tile);
              for (uint32_t i = 0; i < 4; ++i) {
                ptx::st_global(out.data() + 128 * warp + 4 * ptx::laneid() + i, sum.at[i]);
              }
            }
          }};
}

void expect_planted(const Exchange& x, FindingKind kind, const Mark& bug,
                    const std::vector<std::string>& texts) {
  Words<4 * 32 * kWarps> out;
  expect_planted(program(x, out), kind, bug, texts);
}

TEST(PlantedExchange, IsCorrectWithoutABug) {
  Words<4 * 32 * kWarps> out;
  const Exchange x;
  expect_clean(program(x, out), [&] {
    for (uint32_t i = 0; i < 32 * kWarps; ++i) {
      ASSERT_EQ(out.at[4 * i], 3 * (i % 32));
      ASSERT_EQ(out.at[4 * i + 1], 0u + 1u + 2u);
      ASSERT_EQ(out.at[4 * i + 2], 3 * (i / 32));
      ASSERT_EQ(out.at[4 * i + 3], 3u);
    }
  });
}

TEST(PlantedExchange, OwnerExpectsTooFewBytes) {
  Mark bug;
  expect_planted({.expected = (kOthers - 1) * kWarpBytes, .sent_at = bug.here()},
                 FindingKind::transaction_bytes, bug, {"'sums'", "too few bytes"});
}

TEST(PlantedExchange, OwnerExpectsTooManyBytes) {
  Mark bug;
  expect_planted({.expected = kBlocks * kWarpBytes, .waited_at = bug.here()},
                 FindingKind::transaction_bytes, bug, {"'sums'", "512 bytes"});
}

TEST(PlantedExchange, OwnerDoesNotWait) {
  Mark bug;
  expect_planted({.waits = false, .read_at = bug.here()}, FindingKind::uninitialized_read, bug,
                 {"nobody has written"});
}

TEST(PlantedExchange, OwnerWaitsForTheOtherParity) {
  Mark bug;
  expect_planted({.parity = 1, .read_at = bug.here()}, FindingKind::uninitialized_read, bug,
                 {"nobody has written"});
}

TEST(PlantedExchange, NoClusterBarrierBeforeSums) {
  Mark bug;
  expect_planted({.begins_together = false, .sent_at = bug.here()}, FindingKind::race, bug,
                 {"which need not have begun"});
}

TEST(PlantedExchange, OwnerWhoseRowsAreOutsideDoesNotWait) {
  Mark bug;
  expect_planted({.stores = false, .sent_at = bug.here()}, FindingKind::block_has_exited, bug,
                 {"st_async", "which has exited"});
}

TEST(PlantedExchange, ALaneDoesNotSend) {
  Mark bug;
  expect_planted({.lanes = 31, .waited_at = bug.here()}, FindingKind::transaction_bytes, bug,
                 {"'sums'", "32 bytes"});
}

TEST(PlantedExchange, SumsGoToAnotherBlock) {
  Mark bug;
  expect_planted({.to = 1, .waited_at = bug.here()}, FindingKind::transaction_bytes, bug,
                 {"'sums'", "1024 bytes missing"});
}

TEST(PlantedExchange, BytesCompleteOnAnotherWarpsBarrier) {
  Mark bug;
  expect_planted({.to_barrier = 1, .waited_at = bug.here()}, FindingKind::transaction_bytes, bug,
                 {"'sums'", "1024 bytes missing"});
}

TEST(PlantedExchange, OwnerSendsToItself) {
  Mark bug;
  expect_planted({.owner_sends = true, .sent_at = bug.here()}, FindingKind::race, bug,
                 {"shared memory of block (", "is not ordered after"});
}

TEST(PlantedExchange, TwoBlocksSendToOnePlace) {
  Mark bug;
  expect_planted({.slots_collide = true, .sent_at = bug.here()}, FindingKind::race, bug,
                 {"shared memory of block (", "is not ordered after"});
}

// The kernel's clusters have one tile: nobody tells the others that their places are free again.
TEST(PlantedExchange, PlacesAreUsedAgain) {
  Mark bug;
  expect_planted({.tiles = 2, .sent_at = bug.here()}, FindingKind::race, bug, {"'sums'"});
}

}  // namespace
}  // namespace blockscale::emulator
