// Correct programs with asynchronous copies that look like defects: no report under any schedule.
#include "device/emulator/test/correct_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {
namespace {

using Four = device::Vector<uint32_t, 4>;

// A slot that cp.async fills again and again: that its own copies are over a producer hears from
// the consumers alone, who have waited for them.
TEST(CorrectCopy, ProducersHearOfTheirCopiesFromConsumers) {
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
TEST(CorrectCopy, BulkPipeline) {
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

TEST(CorrectCopy, CpAsyncDoubleBuffer) {
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
TEST(CorrectCopy, CpAsyncArrivesOnAnMbarrier) {
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
TEST(CorrectCopy, ProxyFenceBehindTheBarrier) {
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
TEST(CorrectCopy, ReducingCopiesMeet) {
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

// A box goes through shared memory with each swizzle and comes back the same.
TEST(CorrectCopy, BoxesThroughSharedMemory) {
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
