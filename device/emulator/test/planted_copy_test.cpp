// Planted bugs in asynchronous copies: groups, mbarriers, proxies.
#include "device/emulator/test/planted_copy_test_support.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

TEST(PlantedCopy, ReadBeforeTheWait) {
  Mark bug;
  Memory memory;
  expect_planted(
      {kTwoWarps, memory.buffers(),
       [&] {
         init_barriers(1);
         if (ptx::tid_x() == 0) {
           ptx::mbarrier_arrive_expect_tx(full(), 1024);
           ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
         }
         ptx::barrier_sync_all();  // the copy is begun, not done
         ptx::ld_shared<uint32_t>(stage(0) + 4 * ptx::tid_x(), bug.here());
         device::mbarrier_wait(full(), 0);
       }},
      FindingKind::race, bug,
      {"is not ordered after the write at", "bulk copy that completes on mbarrier 'full'"});
}

TEST(PlantedCopy, WrongParity) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    device::mbarrier_wait(full(), 1);  // of the phase before the first: no wait
                    ptx::barrier_sync_all();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 1024);
                      ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
                    }
                    ptx::barrier_sync_all();
                    ptx::ld_shared<uint32_t>(stage(0) + 4 * ptx::tid_x(), bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::race, bug, {"mbarrier 'full'", "the read at"});
}

TEST(PlantedCopy, ExpectsTooManyBytes) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 2048);
                      ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
                    }
                    device::mbarrier_wait(full(), 0, bug.here());
                  }},
                 FindingKind::transaction_bytes, bug,
                 {"mbarrier 'full' parity 0", "0 of 1 arrival missing", "1024 bytes missing"});
}

TEST(PlantedCopy, ExpectsTooFewBytes) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 512, bug.here());
                      ptx::cp_async_bulk_shared_global(stage(0), memory.in, 512, full());
                      ptx::cp_async_bulk_shared_global(stage(1), memory.in, 512, full());
                    }
                    device::mbarrier_wait(full(), 0);
                    ptx::ld_shared<uint32_t>(stage(1));
                  }},
                 FindingKind::transaction_bytes, bug,
                 {"'full' completes phase 0 before", "of 512 bytes", "too few bytes"});
}

TEST(PlantedCopy, ExpectsHalfOfOneCopy) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_arrive_expect_tx(full(), 512);
                      ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
                    }
                    device::mbarrier_wait(full(), 0, bug.here());
                  }},
                 FindingKind::transaction_bytes, bug, {"512 bytes more than expected"});
}

/// A producer warp fills one stage three times, a consumer warp reads it.
void pipeline(Memory& memory, const std::function<void(uint32_t round)>& consume) {
  init_barriers(32);
  if (ptx::tid_x() < 32) {
    for (uint32_t round = 0; round < 3; ++round) {
      device::mbarrier_wait(empty(), (round & 1) ^ 1);
      if (ptx::elect_sync()) {
        ptx::mbarrier_arrive_expect_tx(full(), 1024);
        ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
      }
    }
    return;
  }
  for (uint32_t round = 0; round < 3; ++round) {
    device::mbarrier_wait(full(), round & 1);
    consume(round);
  }
}

TEST(PlantedCopy, StageIsReleasedBeforeItIsRead) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    pipeline(memory, [&](uint32_t) {
                      ptx::mbarrier_arrive(empty());
                      ptx::ld_shared<uint32_t>(stage(0) + 4 * ptx::laneid(), bug.here());
                    });
                  }},
                 FindingKind::race, bug, {"shared memory at offset", "the read at"});
}

TEST(PlantedCopy, StageIsNeverReleased) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(32);
                    if (ptx::tid_x() >= 32) return device::mbarrier_wait(full(), 0);
                    for (uint32_t round = 0; round < 2; ++round) {
                      device::mbarrier_wait(empty(), (round & 1) ^ 1, bug.here());
                      if (ptx::elect_sync()) {
                        ptx::mbarrier_arrive_expect_tx(full(), 1024);
                        ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full());
                      }
                    }
                  }},
                 FindingKind::deadlock, bug, {"'empty' parity 0", "32 of 32 arrivals missing"});
}

TEST(PlantedCopy, NobodyWaitsForALoad) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 1024);
                    ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full(), bug.here());
                  }},
                 FindingKind::outstanding_at_exit, bug, {"nobody has waited", "'full'"});
}

TEST(PlantedCopy, MbarrierInitIsNotFenced) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_init(full(), 1, "full");
                      ptx::mbarrier_arrive_expect_tx(full(), 1024);
                      ptx::cp_async_bulk_shared_global(stage(0), memory.in, 1024, full(),
                                                       bug.here());
                    }
                    ptx::barrier_sync_all();
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::missing_proxy_fence, bug, {"'full'", "no fence_mbarrier_init"});
}

/// Threads write a stage, one stores it; `between` comes between the two.
void write_and_store(Memory& memory, Mark& bug, const std::function<void()>& between) {
  ptx::st_shared(stage(0) + 16 * ptx::tid_x(), Four{});
  between();
  if (ptx::tid_x() != 0) return;
  ptx::cp_async_bulk_global_shared(memory.out, stage(0), 1024, bug.here());
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group<0>();
}

TEST(PlantedCopy, StoreWithoutProxyFence) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] { write_and_store(memory, bug, [] { ptx::barrier_sync_all(); }); }},
                 FindingKind::missing_proxy_fence, bug,
                 {"bulk store", "asynchronous proxy", "no fence_proxy_async"});
}

/// Threads write global memory and one loads it again; `fence` comes before the barrier.
void write_and_load(Memory& memory, Mark& bug, const std::function<void()>& fence) {
  init_barriers(1);
  ptx::st_global(reinterpret_cast<Four*>(memory.out) + ptx::tid_x(), Four{});
  fence();
  ptx::barrier_sync_all();
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_arrive_expect_tx(full(), 1024);
    ptx::cp_async_bulk_shared_global(stage(0), memory.out, 1024, full(), bug.here());
  }
  device::mbarrier_wait(full(), 0);
  ptx::ld_shared<uint32_t>(stage(0) + 4 * ptx::tid_x());
}

TEST(PlantedCopy, LoadOfWrittenMemoryWithoutProxyFence) {
  Mark bug;
  Memory memory;
  const auto with = [&](void (*fence)()) {
    return Program{kTwoWarps, memory.buffers(),
                   [&memory, &bug, fence] { write_and_load(memory, bug, fence); }};
  };
  expect_planted(with([] {}), FindingKind::missing_proxy_fence, bug,
                 {"of 'out'", "the write at", "no fence_proxy_async"});
  expect_planted(with([] { ptx::fence_proxy_async_shared(); }), FindingKind::missing_proxy_fence,
                 bug, {"of 'out'"});
  expect_clean(with([] { ptx::fence_proxy_async_global(); }));
}

TEST(PlantedCopy, ProxyFenceOfTheWrongMemory) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    write_and_store(memory, bug, [] {
                      ptx::fence_proxy_async_global();
                      ptx::barrier_sync_all();
                    });
                  }},
                 FindingKind::missing_proxy_fence, bug, {"shared memory at offset"});
}

TEST(PlantedCopy, ProxyFenceButNoBarrier) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::tid_x(), Four{});
                    ptx::barrier_sync_all();
                    write_and_store(memory, bug, [] { ptx::fence_proxy_async_shared(); });
                  }},
                 FindingKind::race, bug, {"bulk store", "no barrier"});
}

TEST(PlantedCopy, SourceIsOverwrittenBeforeItIsRead) {
  Mark bug;
  Memory memory;
  expect_planted({{.block = {32}, .dynamic_shared_bytes = 8192},
                  memory.buffers(),
                  [&] {
                    for (uint32_t round = 0; round < 2; ++round) {
                      ptx::st_shared(stage(0) + 16 * ptx::laneid(), Four{}, bug.here());
                      ptx::fence_proxy_async_shared();
                      ptx::bar_warp_sync(ptx::kFullMask);
                      if (ptx::laneid() == 0) {
                        ptx::cp_async_bulk_global_shared(memory.out + 256 * round, stage(0), 512);
                        ptx::cp_async_bulk_commit_group();
                        ptx::cp_async_bulk_wait_group_read<1>();  // <0> is needed
                      }
                      ptx::bar_warp_sync(ptx::kFullMask);
                    }
                    if (ptx::laneid() == 0) ptx::cp_async_bulk_wait_group<0>();
                  }},
                 FindingKind::race, bug, {"the write at", "by a bulk store of block (0,0,0)"});
}

TEST(PlantedCopy, ExitsBeforeAStoreHasRead) {
  Mark bug;
  Memory memory;
  expect_planted({{.block = {32}, .dynamic_shared_bytes = 8192},
                  memory.buffers(),
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::laneid(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::bar_warp_sync(ptx::kFullMask);
                    if (ptx::laneid() != 0) return;
                    ptx::cp_async_bulk_global_shared(memory.out, stage(0), 512, bug.here());
                    ptx::cp_async_bulk_commit_group();
                  }},
                 FindingKind::outstanding_at_exit, bug,
                 {"warp 0 lane 0 exits", "cp_async_bulk_wait_group"});
}

TEST(PlantedCopy, ReadOnlyLoadOfWhatAReducingCopyHasChanged) {
  Mark bug;
  Memory memory;
  expect_planted({{.block = {32}, .dynamic_shared_bytes = 8192},
                  {in_out("out", memory.out)},
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::laneid(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::bar_warp_sync(ptx::kFullMask);
                    if (ptx::laneid() == 0) {
                      ptx::cp_reduce_async_bulk_global_shared<ptx::BulkReduce::add_u32>(
                          memory.out, stage(0), 512);
                      ptx::cp_async_bulk_commit_group();
                      ptx::cp_async_bulk_wait_group<0>();
                    }
                    ptx::bar_warp_sync(ptx::kFullMask);
                    ptx::ld_global_nc(&memory.out[ptx::laneid()], bug.here());
                  }},
                 FindingKind::race, bug,
                 {"of 'out' goes past the coherent caches", "by a bulk store of block (0,0,0)"});
}

TEST(PlantedCopy, ResultIsReadBeforeTheStoreHasWritten) {
  Mark bug;
  Memory memory;
  Buffer out = in_out("out", memory.out);
  expect_planted({{.block = {32}, .dynamic_shared_bytes = 8192},
                  {out},
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::laneid(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::bar_warp_sync(ptx::kFullMask);
                    if (ptx::laneid() != 0) return;
                    ptx::cp_async_bulk_global_shared(memory.out, stage(0), 512);
                    ptx::cp_async_bulk_commit_group();
                    ptx::cp_async_bulk_wait_group_read<0>();  // of the source alone
                    ptx::ld_global(memory.out, bug.here());
                  }},
                 FindingKind::race, bug, {"of 'out'", "bulk store"});
}

TEST(PlantedCopy, StoresOfTwoBlocksOverlap) {
  Mark bug;
  Memory memory;
  expect_planted({{.grid = {2}, .block = {32}, .dynamic_shared_bytes = 8192},
                  {in_out("out", memory.out)},
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::laneid(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::bar_warp_sync(ptx::kFullMask);
                    if (ptx::laneid() != 0) return;
                    ptx::cp_async_bulk_global_shared(memory.out + 64 * ptx::ctaid_x(), stage(0),
                                                     512, bug.here());
                    ptx::cp_async_bulk_commit_group();
                    ptx::cp_async_bulk_wait_group<0>();
                  }},
                 FindingKind::race, bug, {"of 'out'", "bulk store of block"});
}

TEST(PlantedCopy, BulkLoadIsMisaligned) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 64);
                    ptx::cp_async_bulk_shared_global(stage(0), memory.in + 2, 64, full(),
                                                     bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::misaligned, bug, {"the global address", "multiple of 16"});
}

TEST(PlantedCopy, BulkLoadOutOfBounds) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps,
                  {input("in", memory.in)},
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 1024);
                    ptx::cp_async_bulk_shared_global(stage(0), memory.in + 896, 1024, full(),
                                                     bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::out_of_bounds, bug, {"1024 bytes at offset 3584 of 'in'"});
}

TEST(PlantedCopy, CpAsyncReadBeforeTheWait) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    const uint32_t offset = 16 * ptx::tid_x();
                    ptx::cp_async_cg(stage(0) + offset, memory.in + 4 * ptx::tid_x());
                    ptx::cp_async_commit_group();
                    ptx::ld_shared<Four>(stage(0) + offset, bug.here());
                    ptx::cp_async_wait_group<0>();
                  }},
                 FindingKind::race, bug, {"by cp.async of block (0,0,0) warp"});
}

TEST(PlantedCopy, CpAsyncWaitsForTheGroupBefore) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    const uint32_t offset = 16 * ptx::tid_x();
                    for (uint32_t i = 0; i < 2; ++i) {
                      ptx::cp_async_cg(stage(i) + offset, memory.in + 4 * ptx::tid_x());
                      ptx::cp_async_commit_group();
                    }
                    ptx::cp_async_wait_group<1>();
                    ptx::ld_shared<Four>(stage(0) + offset);
                    ptx::ld_shared<Four>(stage(1) + offset, bug.here());
                    ptx::cp_async_wait_group<0>();
                  }},
                 FindingKind::race, bug, {"cp.async"});
}

TEST(PlantedCopy, CpAsyncOfOtherThreadsWithoutBarrier) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    const uint32_t offset = 16 * ptx::tid_x();
                    ptx::st_shared(stage(0) + offset, Four{});
                    ptx::barrier_sync_all();
                    ptx::cp_async_cg(stage(0) + offset, memory.in + 4 * ptx::tid_x());
                    ptx::cp_async_wait_all();
                    ptx::ld_shared<Four>(stage(0) + (offset ^ 512), bug.here());
                  }},
                 FindingKind::race, bug, {"cp.async", "no barrier"});
}

TEST(PlantedCopy, CpAsyncAtExit) {
  Mark bug;
  Memory memory;
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    ptx::cp_async_ca<4>(stage(0) + 4 * ptx::tid_x(), memory.in + ptx::tid_x(), 4,
                                        bug.here());
                    ptx::cp_async_commit_group();
                  }},
                 FindingKind::outstanding_at_exit, bug, {"exits", "cp_async_wait_group"});
}

}  // namespace
}  // namespace blockscale::emulator
