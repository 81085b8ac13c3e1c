// Correct programs that look like defects: no report under any schedule.
#include <array>
#include <numeric>

#include "device/emulator/planted_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {
namespace {

using Four = device::Vector<uint32_t, 4>;

template <std::size_t N>
struct alignas(128) Words {
  std::array<uint32_t, N> at = {};
  uint32_t* data() { return at.data(); }
  const uint32_t* data() const { return at.data(); }
  std::size_t size() const { return N; }
};

template <std::size_t N>
Words<N> counting() {
  Words<N> words;
  std::iota(words.at.begin(), words.at.end(), 1u);
  return words;
}

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

// A slot that cp.async fills again and again: that its own copies are over a producer hears from
// the consumers alone, who have waited for them.
TEST(Correct, ProducersHearOfTheirCopiesFromConsumers) {
  constexpr uint32_t kRounds = 5;
  const auto in = counting<4 * 32 * kRounds>();
  Words<4 * 32 * kRounds> out;
  const auto kernel = [&] {
    const ptx::SharedAddress full = device::shared_base();
    const ptx::SharedAddress empty = device::shared_base() + 8;
    if (ptx::tid_x() == 0) {
      ptx::mbarrier_init(full, 32, "full");
      ptx::mbarrier_init(empty, 32, "empty");
    }
    ptx::barrier_sync_all();
    const uint32_t lane = ptx::tid_x() % 32;
    const ptx::SharedAddress slot = device::shared_base() + (16 + 16 * lane);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint32_t at = 4 * (32 * round + lane);
      if (ptx::tid_x() < 32) {
        if (round > 0) device::mbarrier_wait(empty, (round - 1) % 2);
        ptx::cp_async_cg(slot, in.data() + at);
        ptx::cp_async_mbarrier_arrive_noinc(full);
      } else {
        device::mbarrier_wait(full, round % 2);
        const Four v = ptx::ld_shared<Four>(slot);
        ptx::mbarrier_arrive(empty);
        ptx::st_global(reinterpret_cast<Four*>(out.data() + at), v);
      }
    }
  };
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 16 + 512},
                {input("in", in), output("out", out)},
                kernel},
               [&] { EXPECT_EQ(out.at[4 * 32 * kRounds - 1], in.at[4 * 32 * kRounds - 1]); });
}

// Three stages, a producer warp that elects, two consumer warps, a bulk store of what they made.
TEST(Correct, BulkPipeline) {
  const auto in = counting<8 * 256>();
  Words<8 * 256> out;
  constexpr uint32_t kStages = 3, kBytes = 1024, kRounds = 8;
  const auto full = [](uint32_t i) { return device::shared_base() + 8 * i; };
  const auto empty = [](uint32_t i) { return device::shared_base() + 64 + 8 * i; };
  const auto stage = [](uint32_t i) { return device::shared_base() + 128 + kBytes * i; };
  const auto result = [](uint32_t i) {
    return device::shared_base() + 128 + kBytes * (kStages + i);
  };
  const auto kernel = [&] {
    if (ptx::tid_x() == 0) {
      for (uint32_t i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(full(i), 1, "full");
        ptx::mbarrier_init(empty(i), 64, "empty");
      }
      ptx::fence_mbarrier_init();
    }
    ptx::barrier_sync_all();
    if (device::warp_index() == 0) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        const uint32_t i = round % kStages, phase = round / kStages & 1;
        device::mbarrier_wait(empty(i), phase ^ 1);
        if (ptx::elect_sync()) {
          ptx::mbarrier_arrive_expect_tx(full(i), kBytes);
          ptx::cp_async_bulk_shared_global(stage(i), in.data() + 256 * round, kBytes / 2, full(i));
          ptx::cp_async_bulk_shared_global(stage(i) + kBytes / 2, in.data() + 256 * round + 128,
                                           kBytes / 2, full(i), ptx::createpolicy_evict_first());
        }
      }
      return;
    }
    const uint32_t offset = 16 * (ptx::tid_x() - 32);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint32_t i = round % kStages, phase = round / kStages & 1, buffer = round % 2;
      device::mbarrier_wait(full(i), phase);
      Four v = ptx::ld_shared<Four>(stage(i) + offset);
      ptx::mbarrier_arrive(empty(i));
      for (uint32_t& x : v.at) x *= 2;
      if (ptx::tid_x() == 32) ptx::cp_async_bulk_wait_group_read<1>();
      ptx::bar_sync(1, 64);  // the buffer of two rounds ago has been read
      ptx::st_shared(result(buffer) + offset, v);
      ptx::fence_proxy_async_shared();
      ptx::bar_sync(1, 64);
      if (ptx::tid_x() == 32) {
        ptx::cp_async_bulk_global_shared(out.data() + 256 * round, result(buffer), kBytes);
        ptx::cp_async_bulk_commit_group();
      }
    }
    if (ptx::tid_x() == 32) ptx::cp_async_bulk_wait_group<0>();
  };
  expect_clean({{.block = {96}, .dynamic_shared_bytes = 128 + 1024 * 5},
                {input("in", in), output("out", out)},
                kernel},
               [&] {
                 for (uint32_t i = 0; i < 8 * 256; ++i) ASSERT_EQ(out.at[i], 2 * in.at[i]);
                 out.at.fill(0);
               });
}

TEST(Correct, CpAsyncDoubleBuffer) {
  const auto in = counting<4 * 256>();
  Words<4 * 256> out;
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 2048},
                {input("in", in), output("out", out)},
                [&] {
                  const auto stage = [](uint32_t round) {
                    return device::shared_base() + 1024 * (round % 2);
                  };
                  const auto load = [&](uint32_t round) {
                    const uint32_t word = 4 * ptx::tid_x();
                    ptx::cp_async_cg(stage(round) + 4 * word, in.data() + 256 * round + word);
                    ptx::cp_async_commit_group();
                  };
                  load(0);
                  for (uint32_t round = 0; round < 4; ++round) {
                    if (round != 3) load(round + 1);
                    if (round != 3) {
                      ptx::cp_async_wait_group<1>();
                    } else {
                      ptx::cp_async_wait_group<0>();
                    }
                    ptx::barrier_sync_all();
                    const uint32_t other = 63 - ptx::tid_x();
                    ptx::st_global(reinterpret_cast<Four*>(out.data()) + 64 * round + other,
                                   ptx::ld_shared<Four>(stage(round) + 16 * other));
                    ptx::barrier_sync_all();
                  }
                }},
               [&] { EXPECT_EQ(out.at, in.at); });
}

// Copies of every thread arrive on an mbarrier; the ends of rows are filled with zeros.
TEST(Correct, CpAsyncArrivesOnAnMbarrier) {
  const auto in = counting<64>();
  Words<256> out;
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 2048},
                {input("in", in), output("out", out)},
                [&] {
                  const ptx::SharedAddress barrier = device::shared_base();
                  const ptx::SharedAddress data = barrier + 1024;
                  if (ptx::tid_x() == 0) ptx::mbarrier_init(barrier, 64, "filled");
                  ptx::barrier_sync_all();
                  const uint32_t i = ptx::tid_x();
                  ptx::cp_async_ca<16>(data + 16 * i, in.data() + 4 * (i % 16), i < 16 ? 16 : 0);
                  ptx::cp_async_mbarrier_arrive_noinc(barrier);
                  device::mbarrier_wait(barrier, 0);
                  ptx::st_global(reinterpret_cast<Four*>(out.data()) + (63 - i),
                                 ptx::ld_shared<Four>(data + 16 * (63 - i)));
                }},
               [&] {
                 EXPECT_EQ(out.at[63], 64u);
                 EXPECT_EQ(out.at[64], 0u);
               });
}

// The proxy fence may come after the barrier, in the thread that issues the store.
TEST(Correct, ProxyFenceBehindTheBarrier) {
  Words<256> out;
  expect_clean({{.block = {64}, .dynamic_shared_bytes = 1024},
                {output("out", out)},
                [&] {
                  ptx::st_shared(device::shared_base() + 16 * ptx::tid_x(), Four{{1, 2, 3, 4}});
                  ptx::barrier_sync_all();
                  if (ptx::tid_x() != 0) return;
                  ptx::fence_proxy_async();
                  ptx::cp_async_bulk_global_shared(out.data(), device::shared_base(), 1024);
                  ptx::cp_async_bulk_commit_group();
                  ptx::cp_async_bulk_wait_group<0>();
                }},
               [&] { EXPECT_EQ(out.at[255], 4u); });
}

// Blocks add to the same words: each element of a reducing copy is atomic.
TEST(Correct, ReducingCopiesMeet) {
  Words<128> out;
  expect_clean({{.grid = {5}, .block = {32}, .dynamic_shared_bytes = 512},
                {in_out("out", out)},
                [&] {
                  ptx::st_shared(device::shared_base() + 16 * ptx::laneid(), Four{{1, 2, 3, 4}});
                  ptx::fence_proxy_async_shared();
                  ptx::bar_warp_sync(ptx::kFullMask);
                  if (!ptx::elect_sync()) return;
                  ptx::cp_reduce_async_bulk_global_shared<ptx::BulkReduce::add_u32>(
                      out.data(), device::shared_base(), 512);
                  ptx::cp_async_bulk_commit_group();
                  ptx::cp_async_bulk_wait_group<0>();
                  ptx::red_global_add(out.data(), 1);
                }},
               [&] {
                 EXPECT_EQ(out.at[0], 10u);
                 EXPECT_EQ(out.at[127], 20u);
                 out.at.fill(0);
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

// A copy that nobody reads may begin before what it copies is known.
TEST(Correct, CopiesForL2BeforeTheWait) {
  const auto x = counting<256>();
  Words<256> out;
  LaunchShape shape = {.block = {32}, .dynamic_shared_bytes = 2048};
  shape.programmatic_dependent_launch = true;
  expect_clean({shape,
                {input("x", x), output("out", out)},
                [&] {
                  const ptx::SharedAddress copied = device::shared_base();
                  const ptx::SharedAddress copy = copied + 1024;
                  if (ptx::tid_x() == 0) {
                    ptx::mbarrier_init(copied, 1, "copied");
                    ptx::fence_mbarrier_init();
                    ptx::mbarrier_arrive_expect_tx(copied, 1024);
                    ptx::cp_async_bulk_shared_global_unread(copy, x.data(), 1024, copied);
                  }
                  ptx::bar_warp_sync(ptx::kFullMask);
                  ptx::griddepcontrol_wait();
                  for (uint32_t i = ptx::tid_x(); i < 256; i += 32) {
                    ptx::st_global(out.data() + i, ptx::ld_global(x.data() + i));
                  }
                  device::mbarrier_wait(copied, 0);
                }},
               [&] { EXPECT_EQ(out.at, x.at); });
}

// A box goes through shared memory with each swizzle and comes back the same.
TEST(Correct, BoxesThroughSharedMemory) {
  auto in = counting<48 * 40>();
  Words<48 * 40> out;
  for (const TensorMapSwizzle swizzle : {TensorMapSwizzle::none, TensorMapSwizzle::bytes_32,
                                         TensorMapSwizzle::bytes_64, TensorMapSwizzle::bytes_128}) {
    const uint32_t columns =
        swizzle == TensorMapSwizzle::none ? 16 : 4u << static_cast<int>(swizzle);
    TensorMapDescription d;
    d.sizes[0] = 40;  // the last box reaches beyond, for 16 and 32 columns
    d.sizes[1] = 48;
    d.strides[0] = 160;
    d.box[0] = columns;
    d.box[1] = 16;
    d.element_strides[0] = d.element_strides[1] = 1;
    d.rank = 2;
    d.element = TensorMapElement::u32;
    d.swizzle = swizzle;
    d.address = reinterpret_cast<uint64_t>(in.data());
    const TensorMap from = encode_tensor_map(d);
    d.address = reinterpret_cast<uint64_t>(out.data());
    const TensorMap to = encode_tensor_map(d);
    const uint32_t bytes = columns * 4 * 16;
    out.at.fill(0);
    expect_clean(
        {{.grid = {(40 + columns - 1) / columns, 3},
          .block = {32},
          .dynamic_shared_bytes = 1024 + bytes},
         {input("in", in), output("out", out)},
         [&] {
           const ptx::SharedAddress barrier = device::shared_base(), box = barrier + 1024;
           if (ptx::tid_x() != 0) return;
           ptx::mbarrier_init(barrier, 1, "box");
           ptx::fence_mbarrier_init();
           const ptx::TensorCoordinates<2> c = {{static_cast<int32_t>(columns * ptx::ctaid_x()),
                                                 static_cast<int32_t>(16 * ptx::ctaid_y())}};
           ptx::mbarrier_arrive_expect_tx(barrier, bytes);
           ptx::cp_async_bulk_tensor_shared_global<2>(box, &from, c, barrier);
           device::mbarrier_wait(barrier, 0);
           ptx::cp_async_bulk_tensor_global_shared<2>(&to, c, box);
           ptx::cp_async_bulk_commit_group();
           ptx::cp_async_bulk_wait_group<0>();
         }},
        [&] { ASSERT_EQ(out.at, in.at); });
  }
}

}  // namespace
}  // namespace blockscale::emulator
