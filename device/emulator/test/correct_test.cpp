// Correct programs that look like defects: no report under any schedule.
#include "device/emulator/test/correct_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {
namespace {

using Four = device::Vector<uint32_t, 4>;

TEST(Correct, ReversesThroughSharedMemory) {
  const auto in = counting<1024>();
  Words<1024> out;
  expect_clean({{.grid = {4}, .block = {256}, .dynamic_shared_bytes = 1024},
                {input("in", in), output("out", out)},
                [&] {
                  const uint32_t first = ptx::ctaid_x() * 256, i = ptx::tid_x();
                  const ptx::SharedAddress s = device::shared_base();
                  ptx::st_shared(s + 4 * i, ptx::ld_global_nc(in.data() + first + i));
                  ptx::barrier_sync_all();
                  ptx::st_global(out.data() + first + i,
                                 ptx::ld_shared<uint32_t>(s + 4 * (255 - i)));
                }},
               [&] {
                 for (uint32_t i = 0; i < 1024; ++i) {
                   ASSERT_EQ(out.at[i], in.at[i / 256 * 256 + 255 - i % 256]);
                 }
               });
}

// Neighbours write the bytes of one word, and read their own again.
TEST(Correct, ThreadsShareWords) {
  std::vector<uint8_t> scales(256);
  expect_clean({{.grid = {2}, .block = {128}},
                {output("scales", scales)},
                [&] {
                  uint8_t* p = &scales[ptx::ctaid_x() * 128 + ptx::tid_x()];
                  ptx::st_global(p, static_cast<uint8_t>(ptx::tid_x()));
                  ptx::st_global(p, static_cast<uint8_t>(ptx::ld_global(p) + 1));
                }},
               [&] { EXPECT_EQ(scales[255], 128); });
}

// Partial sums, a fence, a counter: whoever comes last adds them up.
TEST(Correct, LastBlockReduces) {
  const auto in = counting<512>();
  std::vector<uint32_t> partial(4), count(1), total(1);
  expect_clean({{.grid = {4}, .block = {128}, .dynamic_shared_bytes = 4},
                {input("in", in), in_out("partial", partial), in_out("count", count),
                 output("total", total)},
                [&] {
                  const ptx::SharedAddress s = device::shared_base();
                  if (ptx::tid_x() == 0) ptx::st_shared(s, 0u);
                  ptx::barrier_sync_all();
                  const uint32_t i = ptx::ctaid_x() * 128 + ptx::tid_x();
                  ptx::red_shared_add(s, ptx::ld_global_nc(in.data() + i));
                  ptx::barrier_sync_all();
                  if (ptx::tid_x() != 0) return;
                  ptx::st_global(&partial[ptx::ctaid_x()], ptx::ld_shared<uint32_t>(s));
                  ptx::fence_acq_rel_gpu();
                  if (ptx::atom_global_inc(count.data(), 3) != 3) return;
                  ptx::fence_acq_rel_gpu();
                  uint32_t sum = 0;
                  for (uint32_t block = 0; block < 4; ++block)
                    sum += ptx::ld_global(&partial[block]);
                  ptx::st_global(total.data(), sum);
                }},
               [&] { EXPECT_EQ(total[0], 512u * 513 / 2); });
}

// The same with one acquire-release counter, and the whole last block reading.
TEST(Correct, LastBlockReadsBehindABarrier) {
  std::vector<uint32_t> partial(64), count(1), total(1);
  expect_clean({{.grid = {2}, .block = {32}, .dynamic_shared_bytes = 4},
                {in_out("partial", partial), in_out("count", count), in_out("total", total)},
                [&] {
                  const uint32_t i = ptx::ctaid_x() * 32 + ptx::tid_x();
                  ptx::st_global(&partial[i], i);
                  ptx::barrier_sync_all();  // the thread that releases has seen the others' writes
                  uint32_t before = 0;
                  if (ptx::tid_x() == 0) before = ptx::atom_acq_rel_global_add(count.data(), 1);
                  before = ptx::shfl_sync_idx(ptx::kFullMask, before, 0);
                  ptx::barrier_sync_all();
                  if (before % 2 == 0) return;
                  const uint32_t sum = ptx::ld_global(&partial[ptx::tid_x()]) +
                                       ptx::ld_global(&partial[ptx::tid_x() + 32]);
                  const uint32_t all = ptx::redux_sync_add(ptx::kFullMask, sum);
                  if (ptx::elect_sync()) ptx::st_global(total.data(), all);
                }},
               [&] { EXPECT_EQ(total[0], 63u * 64 / 2); });
}

// A block waits for a flag of the other one: both must run, in whatever order they begin.
TEST(Correct, BlocksHandOverThroughAFlag) {
  std::vector<uint32_t> data(1), flag(1), result(1);
  expect_clean({{.grid = {2}, .block = {32}},
                {in_out("data", data), in_out("flag", flag), in_out("result", result)},
                [&] {
                  if (ptx::tid_x() != 0) return;
                  if (ptx::ctaid_x() == 1) {
                    ptx::st_global(data.data(), 41u);
                    ptx::st_release_gpu_global(flag.data(), 1u);
                    return;
                  }
                  while (ptx::ld_acquire_gpu_global(flag.data()) == 0) {
                  }
                  ptx::st_global(result.data(), ptx::ld_global(data.data()) + 1);
                }},
               [&] {
                 EXPECT_EQ(result[0], 42u);
                 flag[0] = 0;
               });
}

// A thread's fence releases with each store behind it, its release with its next stores to the same
// word: relaxed stores may then count further.
TEST(Correct, RelaxedStoresAfterAReleaseOfTheSameThread) {
  std::vector<uint32_t> data(2), flag(2), result(1);
  expect_clean({{.grid = {2}, .block = {32}},
                {in_out("data", data), in_out("flag", flag), in_out("result", result)},
                [&] {
                  if (ptx::tid_x() != 0) return;
                  if (ptx::ctaid_x() == 1) {
                    ptx::st_global(&data[0], 40u);
                    ptx::st_release_gpu_global(&flag[0], 1u);
                    ptx::st_relaxed_gpu_global(&flag[0], 2u);
                    ptx::st_release_gpu_global(&flag[1], 0u);  // says less than the fence does
                    ptx::st_global(&data[1], 2u);
                    ptx::fence_acq_rel_gpu();
                    for (uint32_t i = 1; i <= 3; ++i) ptx::st_relaxed_gpu_global(&flag[1], i);
                    return;
                  }
                  while (ptx::ld_acquire_gpu_global(&flag[0]) != 2) {
                  }
                  const uint32_t first = ptx::ld_global(&data[0]);
                  while (ptx::ld_acquire_gpu_global(&flag[1]) != 3) {
                  }
                  ptx::st_global(result.data(), first + ptx::ld_global(&data[1]));
                }},
               [&] {
                 EXPECT_EQ(result[0], 42u);
                 flag = {0, 0};
               });
}

// Who comes last sets the counter back by an exchange, which passes on what the others released.
TEST(Correct, CounterIsResetByAnExchange) {
  std::vector<uint32_t> partial(3), count(1), go(1), total(1);
  expect_clean({{.grid = {4}, .block = {32}},
                {in_out("partial", partial), in_out("count", count), in_out("go", go),
                 in_out("total", total)},
                [&] {
                  if (ptx::tid_x() != 0) return;
                  if (ptx::ctaid_x() == 3) {  // learns of the others from the counter alone
                    while (ptx::ld_relaxed_gpu_global(go.data()) == 0) {
                    }
                    EXPECT_EQ(ptx::ld_acquire_gpu_global(count.data()), 0u);
                    uint32_t sum = 0;
                    for (const uint32_t& word : partial) sum += ptx::ld_global(&word);
                    return ptx::st_global(total.data(), sum);
                  }
                  ptx::st_global(&partial[ptx::ctaid_x()], 7u);
                  ptx::fence_acq_rel_gpu();
                  if (ptx::atom_global_add(count.data(), 1) != 2) return;
                  ptx::atom_global_exch(count.data(), 0);
                  ptx::st_relaxed_gpu_global(go.data(), 1u);
                }},
               [&] {
                 EXPECT_EQ(total[0], 21u);
                 go[0] = 0;
               });
}

// A relaxed load has read the release, an acquire of the same word completes it: also where another
// thread has stored to the word in between.
TEST(Correct, PollsRelaxedThenAcquires) {
  std::vector<uint32_t> data(1), flag(1), turn(1), result(1);
  expect_clean(
      {{.grid = {3}, .block = {32}},
       {in_out("data", data), in_out("flag", flag), in_out("turn", turn), in_out("result", result)},
       [&] {
         if (ptx::tid_x() != 0) return;
         const auto wait = [](const std::vector<uint32_t>& word, uint32_t value) {
           while (ptx::ld_relaxed_gpu_global(word.data()) != value) {
           }
         };
         if (ptx::ctaid_x() == 0) {
           ptx::st_global(data.data(), 42u);
           ptx::st_release_gpu_global(flag.data(), 1u);
         } else if (ptx::ctaid_x() == 1) {
           wait(turn, 1);
           ptx::st_relaxed_gpu_global(flag.data(), 2u);
           ptx::st_relaxed_gpu_global(turn.data(), 2u);
         } else {
           wait(flag, 1);
           ptx::st_relaxed_gpu_global(turn.data(), 1u);
           wait(turn, 2);
           EXPECT_EQ(ptx::ld_acquire_gpu_global(flag.data()), 2u);
           ptx::st_global(result.data(), ptx::ld_global(data.data()));
         }
       }},
      [&] {
        EXPECT_EQ(result[0], 42u);
        flag[0] = turn[0] = 0;
      });
}

// Many relaxed loads in a row are no polling.
TEST(Correct, RelaxedLoadsOfManyWords) {
  std::vector<uint32_t> words(64, 3);
  expect_clean({{.grid = {4}, .block = {256}}, {input("words", words)}, [&] {
                  uint32_t sum = 0;
                  for (const uint32_t& word : words) sum += ptx::ld_relaxed_gpu_global(&word);
                  EXPECT_EQ(sum, 192u);
                }});
}

// A lock of compare-and-swap around plain accesses.
TEST(Correct, BlocksTakeTurnsWithALock) {
  std::vector<uint32_t> lock(1), sum(1);
  expect_clean({{.grid = {6}, .block = {32}},
                {in_out("lock", lock), in_out("sum", sum)},
                [&] {
                  if (ptx::tid_x() != 0) return;
                  while (ptx::atom_global_cas(lock.data(), 0, 1) != 0) {
                  }
                  ptx::fence_acq_rel_gpu();
                  ptx::st_global(sum.data(), ptx::ld_global(sum.data()) + 1);
                  ptx::fence_acq_rel_gpu();
                  ptx::atom_global_exch(lock.data(), 0);
                }},
               [&] {
                 EXPECT_EQ(sum[0], 6u);
                 sum[0] = 0;
               });
}

// Two warps pass a buffer to and fro: one arrives without waiting, the other waits.
TEST(Correct, NamedBarriersPassABuffer) {
  Words<32> out;
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 128},
                {output("out", out)},
                [&] {
                  const ptx::SharedAddress s = device::shared_base() + 4 * ptx::laneid();
                  constexpr uint32_t kFilled = 1, kEmptied = 2;
                  uint32_t sum = 0;
                  for (uint32_t round = 0; round < 5; ++round) {
                    if (device::warp_index() == 0) {
                      if (round != 0) ptx::bar_sync(kEmptied, 64);
                      ptx::st_shared(s, round * ptx::laneid());
                      ptx::bar_arrive(kFilled, 64);
                    } else {
                      ptx::bar_sync(kFilled, 64);
                      sum += ptx::ld_shared<uint32_t>(s);
                      if (round != 4) ptx::bar_arrive(kEmptied, 64);
                    }
                  }
                  if (device::warp_index() == 1) ptx::st_global(out.data() + ptx::laneid(), sum);
                }},
               [&] { EXPECT_EQ(out.at[31], 310u); });
}

// The lane that comes last to a collective goes on first, past bar_arrive and into the next
// barrier.
TEST(Correct, ArriveThenSyncAll) {
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 128}, {}, [&] {
                  const ptx::SharedAddress s = device::shared_base() + 4 * ptx::laneid();
                  if (device::warp_index() == 0) {
                    ptx::st_shared(s, ptx::laneid());
                    ptx::bar_arrive(1, 64);
                  } else {
                    ptx::bar_sync(1, 64);
                    EXPECT_EQ(ptx::ld_shared<uint32_t>(s), ptx::laneid());
                  }
                  ptx::barrier_sync_all();
                }});
}

TEST(Correct, WarpsExitBeforeTheBarrierOfAll) {
  expect_clean({{.block = {128}, .dynamic_shared_bytes = 512}, {}, [&] {
                  if (ptx::tid_x() >= 80) return;  // half a warp among them
                  const ptx::SharedAddress s = device::shared_base();
                  ptx::st_shared(s + 4 * ptx::tid_x(), 1u);
                  ptx::barrier_sync_all();
                  ptx::ld_shared<uint32_t>(s + 4 * (79 - ptx::tid_x()));
                }});
}

// Four groups of eight lanes run different numbers of rounds.
TEST(Correct, CollectivesOfPartsOfAWarp) {
  Words<32> out;
  expect_clean({{.block = {32}},
                {output("out", out)},
                [&] {
                  const uint32_t group = ptx::laneid() / 8, mask = 0xFFu << (8 * group);
                  uint32_t x = ptx::laneid();
                  for (uint32_t round = 0; round <= group; ++round) {
                    for (uint32_t lanes = 4; lanes != 0; lanes /= 2) {
                      x += ptx::shfl_sync_bfly(mask, x, lanes);
                    }
                  }
                  ptx::st_global(out.data() + ptx::laneid(), x);
                }},
               [&] {
                 EXPECT_EQ(out.at[0], 28u);
                 EXPECT_EQ(out.at[31], 220u * 8 * 8 * 8);
               });
}

// An mbarrier's bytes are used for data once it is invalid.
TEST(Correct, BytesOfAnMbarrierAreUsedAgain) {
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 64}, {}, [&] {
                  const ptx::SharedAddress s = device::shared_base();
                  for (uint32_t round = 0; round < 2; ++round) {
                    if (ptx::tid_x() == 0) ptx::mbarrier_init(s, 64, "round");
                    ptx::barrier_sync_all();
                    const uint64_t state = ptx::mbarrier_arrive(s);
                    while (!ptx::mbarrier_test_wait(s, state)) {
                    }
                    ptx::barrier_sync_all();
                    if (ptx::tid_x() == 0) {
                      ptx::mbarrier_inval(s);
                      ptx::st_shared(s, uint64_t{round});
                    }
                    ptx::barrier_sync_all();
                    EXPECT_EQ(ptx::ld_shared<uint64_t>(s), round);
                    ptx::barrier_sync_all();
                  }
                }});
}

// One thread waits for the previous kernel, the others behind a barrier; weights need no wait.
TEST(Correct, OneThreadWaitsForThePreviousKernel) {
  const auto x = counting<64>(), weights = counting<64>();
  Words<64> out;
  Buffer constant = input("weights", weights);
  constant.dependent = false;
  LaunchShape shape = {.block = {64}};
  shape.programmatic_dependent_launch = true;
  expect_clean({shape,
                {input("x", x), constant, output("out", out)},
                [&] {
                  const uint32_t i = ptx::tid_x(), w = ptx::ld_global_nc(weights.data() + i);
                  if (i == 0) ptx::griddepcontrol_wait();
                  ptx::barrier_sync_all();
                  ptx::griddepcontrol_launch_dependents();
                  ptx::st_global(out.data() + i, w * ptx::ld_global(x.data() + i));
                }},
               [&] { EXPECT_EQ(out.at[63], 64u * 64); });
}

}  // namespace
}  // namespace blockscale::emulator
