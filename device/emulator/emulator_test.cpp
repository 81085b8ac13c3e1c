// Kernels without a defect: right results, and no report, in order and in random order.
#include "device/emulator/emulator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale {
namespace {

void expect_clean(const LaunchShape& shape, const std::vector<emulator::Buffer>& buffers,
                  const std::function<void()>& kernel) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const emulator::Options options =
        seed == 0 ? emulator::in_order() : emulator::random_order(seed);
    const emulator::Report report = emulator::launch(shape, buffers, options, kernel);
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

TEST(Emulator, ReversesThroughSharedMemory) {
  std::vector<uint32_t> in(1024), out(1024);
  std::iota(in.begin(), in.end(), 0u);
  expect_clean({.grid = {4}, .block = {256}, .dynamic_shared_bytes = 1024},
               {emulator::input("in", in), emulator::output("out", out)}, [&] {
                 const uint32_t i = ptx::ctaid_x() * ptx::ntid_x() + ptx::tid_x();
                 const ptx::SharedAddress s = device::shared_base();
                 ptx::st_shared(s + 4 * ptx::tid_x(), ptx::ld_global_nc(&in[i]));
                 ptx::barrier_sync_all();
                 ptx::st_global(&out[i], ptx::ld_shared<uint32_t>(s + 4 * (255 - ptx::tid_x())));
               });
  for (uint32_t i = 0; i < 1024; ++i) EXPECT_EQ(out[i], i / 256 * 256 + 255 - i % 256);
}

TEST(Emulator, ReducesByShufflesAndAnAtomic) {
  std::vector<uint32_t> in(4096);
  std::iota(in.begin(), in.end(), 7u);
  std::vector<uint32_t> sum(1);
  expect_clean({.grid = {8}, .block = {128}},
               {emulator::input("in", in), emulator::in_out("sum", sum)}, [&] {
                 using Four = device::Vector<uint32_t, 4>;
                 const uint32_t i = ptx::ctaid_x() * ptx::ntid_x() + ptx::tid_x();
                 const Four v =
                     ptx::ld_global_nc<Four>(reinterpret_cast<const Four*>(in.data()) + i);
                 uint32_t x = v.at[0] + v.at[1] + v.at[2] + v.at[3];
                 for (uint32_t lanes = 16; lanes != 0; lanes /= 2) {
                   x += ptx::shfl_sync_bfly(ptx::kFullMask, x, lanes);
                 }
                 if (ptx::elect_sync()) ptx::red_global_add(sum.data(), x);
               });
  EXPECT_EQ(sum[0], 4 * std::accumulate(in.begin(), in.end(), 0u));  // four launches
}

}  // namespace
}  // namespace blockscale
