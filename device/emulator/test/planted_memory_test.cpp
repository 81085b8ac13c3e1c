// Planted bugs in accesses to memory: races, bounds, alignment, initialisation.
#include <array>

#include "device/emulator/test/planted_test_support.h"
#include "device/kernel.h"
#include "device/ptx/atomic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/prefetch.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kTwoWarps = {.block = {64}, .dynamic_shared_bytes = 1024};

TEST(PlantedMemory, NoBarrierBetweenWriteAndRead) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    ptx::st_shared(s + 4 * ptx::tid_x(), 0u);
                    ptx::barrier_sync_all();
                    ptx::st_shared(s + 4 * ptx::tid_x(), ptx::tid_x());
                    ptx::bar_warp_sync(ptx::kFullMask);
                    ptx::ld_shared<uint32_t>(s + 4 * (63 - ptx::tid_x()), bug.here());
                  }},
                 FindingKind::race, bug, {"shared memory at offset", "is not ordered after"});
}

TEST(PlantedMemory, NoBarrierBeforeTheNextRound) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    for (uint32_t round = 0; round < 2; ++round) {
                      ptx::st_shared(s + 4 * ptx::tid_x(), round, bug.here());
                      ptx::barrier_sync_all();
                      ptx::ld_shared<uint32_t>(s + 4 * (ptx::tid_x() ^ 32));
                    }
                  }},
                 FindingKind::race, bug, {"the write at", "the read at", "no barrier"});
}

TEST(PlantedMemory, LanesExchangeWithoutWarpSync) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base() + 4 * (ptx::tid_x() & 32u);
                    ptx::st_shared(s + 4 * ptx::laneid(), 0u);
                    ptx::bar_warp_sync(ptx::kFullMask);
                    ptx::st_shared(s + 4 * ptx::laneid(), 1u);
                    // A shuffle brings the lanes together, but orders no memory access.
                    ptx::shfl_sync_idx(ptx::kFullMask, 0u, 0);
                    ptx::ld_shared<uint32_t>(s + 4 * (ptx::laneid() ^ 1u), bug.here());
                  }},
                 FindingKind::race, bug, {"the read at", "the write at", "warp", "lane"});
}

TEST(PlantedMemory, TwoBlocksWriteOneElement) {
  Mark bug;
  std::vector<uint32_t> out(95);
  expect_planted({{.grid = {3}, .block = {32}},
                  {output("out", out)},
                  [&] {
                    // 31 elements a block were meant to be 32.
                    ptx::st_global(&out[ptx::ctaid_x() * 31 + ptx::tid_x()], 1u, bug.here());
                  }},
                 FindingKind::race, bug, {"of 'out'", "block (1,0,0)"});
}

TEST(PlantedMemory, TwoThreadsWriteOneByte) {
  Mark bug;
  std::vector<uint8_t> out(64);
  expect_planted({kTwoWarps,
                  {output("scales", out)},
                  [&] { ptx::st_global(&out[ptx::tid_x() / 2], uint8_t{1}, bug.here()); }},
                 FindingKind::race, bug, {"of 'scales'", "the write at"});
}

/// Blocks add up partial sums; the last one to come reads them all.
void last_block_sums(std::vector<uint32_t>& partial, std::vector<uint32_t>& count, Mark& bug,
                     bool fence_before, bool fence_after) {
  if (ptx::tid_x() != 0) return;
  ptx::st_global(&partial[ptx::ctaid_x()], 7u);
  if (fence_before) ptx::fence_acq_rel_gpu();
  const uint32_t before = ptx::atom_global_inc(count.data(), ptx::nctaid_x() - 1);
  if (before != ptx::nctaid_x() - 1) return;
  if (fence_after) ptx::fence_acq_rel_gpu();
  for (uint32_t i = 0; i < ptx::nctaid_x(); ++i) ptx::ld_global(&partial[i], bug.here());
}

TEST(PlantedMemory, LastBlockWithoutReleasingFence) {
  Mark bug;
  std::vector<uint32_t> partial(4), count(1);
  expect_planted({{.grid = {4}, .block = {32}},
                  {in_out("partial", partial), in_out("count", count)},
                  [&] { last_block_sums(partial, count, bug, false, true); }},
                 FindingKind::race, bug, {"of 'partial'", "the read at"});
}

TEST(PlantedMemory, LastBlockWithoutAcquiringFence) {
  Mark bug;
  std::vector<uint32_t> partial(4), count(1);
  expect_planted({{.grid = {4}, .block = {32}},
                  {in_out("partial", partial), in_out("count", count)},
                  [&] { last_block_sums(partial, count, bug, true, false); }},
                 FindingKind::race, bug, {"of 'partial'", "no barrier, fence or wait"});
}

TEST(PlantedMemory, PlainReadBesideAtomics) {
  Mark bug;
  std::vector<uint32_t> amax(1);
  expect_planted({{.grid = {2}, .block = {32}},
                  {in_out("amax", amax)},
                  [&] {
                    ptx::red_global_max(amax.data(), ptx::tid_x());
                    ptx::barrier_sync_all();
                    ptx::ld_global(amax.data(), bug.here());
                  }},
                 FindingKind::race, bug, {"the atomic operation at", "of 'amax'"});
}

TEST(PlantedMemory, ReadOnlyLoadOfWhatTheKernelWrites) {
  Mark bug;
  std::vector<uint32_t> out(64);
  expect_planted({kTwoWarps,
                  {output("out", out)},
                  [&] {
                    ptx::st_global(&out[ptx::tid_x()], 1u);
                    ptx::barrier_sync_all();
                    ptx::ld_global_nc(&out[63 - ptx::tid_x()], bug.here());
                  }},
                 FindingKind::race, bug,
                 {"of 'out' goes past the coherent caches", "need not see the write at"});
}

TEST(PlantedMemory, ReadOnlyLoadOfWhatAtomicsHaveChanged) {
  Mark bug;
  std::vector<uint32_t> amax(1);
  expect_planted({kTwoWarps,
                  {in_out("amax", amax)},
                  [&] {
                    ptx::red_global_max(amax.data(), ptx::tid_x());
                    ptx::barrier_sync_all();
                    ptx::ld_global_nc(amax.data(), bug.here());
                  }},
                 FindingKind::race, bug,
                 {"of 'amax' goes past the coherent caches", "need not see the atomic operation"});
}

TEST(PlantedMemory, ReadOnlyLoadOfWhatIsWrittenLater) {
  Mark bug;
  std::vector<uint32_t> x(64);
  expect_planted({kTwoWarps,
                  {in_out("x", x)},
                  [&] {
                    // In place: the load of all comes before any store, and is wrong all the same.
                    const uint32_t v = ptx::ld_global_nc(&x[63 - ptx::tid_x()], bug.here());
                    ptx::barrier_sync_all();
                    ptx::st_global(&x[ptx::tid_x()], v);
                  }},
                 FindingKind::race, bug,
                 {"the write at", "of 'x' changes what is read past the coherent caches",
                  "the ld_global_nc at", "nobody writes while the kernel runs"});
}

TEST(PlantedMemory, ReadOnlyLoadOfWhatAtomicsChangeLater) {
  Mark bug;
  std::vector<uint32_t> count(1);
  expect_planted({kTwoWarps,
                  {in_out("count", count)},
                  [&] {
                    ptx::ld_global(count.data());  // beside another reader of the same word
                    ptx::ld_global_nc(count.data(), bug.here());
                    ptx::barrier_sync_all();
                    ptx::red_global_add(count.data(), 1u);
                  }},
                 FindingKind::race, bug,
                 {"the atomic operation at", "of 'count' changes what is read past"});
}

TEST(PlantedMemory, ReadOnlyLoadOfAByteOfAWordThatIsWrittenLater) {
  Mark bug;
  std::vector<uint8_t> scales(64);
  expect_planted({kTwoWarps,
                  {in_out("scales", scales)},
                  [&] {
                    const uint32_t i = ptx::tid_x();
                    ptx::ld_global_nc(&scales[i], bug.here());
                    ptx::barrier_sync_all();
                    auto* words = reinterpret_cast<uint32_t*>(scales.data());
                    if (i == 9) ptx::st_global(words + i, 0u);
                  }},
                 FindingKind::race, bug, {"of 'scales' changes what is read past"});
}

TEST(PlantedMemory, SharedOutOfBounds) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    ptx::st_shared(device::shared_base() + 16 * ptx::tid_x() + 4, 1u);
                    ptx::st_shared(device::shared_base() + 17 * 16 * ptx::tid_x(),
                                   device::Vector<uint32_t, 4>{}, bug.here());
                  }},
                 FindingKind::out_of_bounds, bug,
                 {"st_shared", "touches 16 bytes at offset", "1024 bytes"});
}

TEST(PlantedMemory, TailIsNotMasked) {
  Mark bug;
  std::vector<float> x(100);
  expect_planted({{.grid = {4}, .block = {32}},
                  {input("x", x)},
                  [&] {
                    const uint32_t i = ptx::ctaid_x() * ptx::ntid_x() + ptx::tid_x();
                    ptx::ld_global_nc(x.data() + i, bug.here());
                  }},
                 FindingKind::out_of_bounds, bug,
                 {"ld_global_nc", "touches 4 bytes at offset 4", "'x' (400 bytes)"});
}

TEST(PlantedMemory, BeforeTheBuffer) {
  Mark bug;
  std::vector<uint32_t> x(32);
  expect_planted({{.block = {32}},
                  {input("x", x)},
                  [&] { ptx::ld_global(x.data() + ptx::tid_x() - 1, bug.here()); }},
                 FindingKind::out_of_bounds, bug, {"4 bytes that begin 4 before 'x'", "lane 0"});
}

TEST(PlantedMemory, NotRegistered) {
  Mark bug;
  static std::array<uint32_t, 32> hidden;
  expect_planted(
      {{.block = {32}}, {}, [&] { ptx::st_global(&hidden[ptx::tid_x()], 1u, bug.here()); }},
      FindingKind::out_of_bounds, bug, {"st_global", "memory that is not registered"});
}

TEST(PlantedMemory, PrefetchOutOfBounds) {
  Mark bug;
  std::vector<uint32_t> x(32);
  expect_planted({{.block = {32}},
                  {input("x", x)},
                  [&] { ptx::prefetch_global_l2(x.data() + 2 * ptx::tid_x(), bug.here()); }},
                 FindingKind::out_of_bounds, bug, {"prefetch", "'x' (128 bytes)"});
}

TEST(PlantedMemory, MisalignedVector) {
  Mark bug;
  alignas(16) static std::array<uint32_t, 132> x;
  using Four = device::Vector<uint32_t, 4>;
  expect_planted({{.block = {32}},
                  {input("x", x)},
                  [&] {
                    const auto* p = reinterpret_cast<const Four*>(x.data() + 1);
                    ptx::ld_global_nc(p + ptx::tid_x(), bug.here());
                  }},
                 FindingKind::misaligned, bug, {"ld_global_nc", "no multiple of its 16 bytes"});
}

TEST(PlantedMemory, SharedReadBeforeWritten) {
  Mark bug;
  expect_planted({kTwoWarps,
                  {},
                  [&] {
                    const ptx::SharedAddress s = device::shared_base();
                    if (ptx::tid_x() < 32) ptx::st_shared(s + 4 * ptx::tid_x(), 1u);
                    ptx::barrier_sync_all();
                    ptx::ld_shared<uint32_t>(s + 8 * ptx::tid_x(), bug.here());
                  }},
                 FindingKind::uninitialized_read, bug,
                 {"ld_shared", "shared memory at offset", "nobody has written"});
}

TEST(PlantedMemory, AtomicOnUnwrittenShared) {
  Mark bug;
  expect_planted(
      {kTwoWarps, {}, [&] { ptx::red_shared_add(device::shared_base(), 1u, bug.here()); }},
      FindingKind::uninitialized_read, bug, {"offset 0", "nobody has written"});
}

TEST(PlantedMemory, OutputReadBeforeWritten) {
  Mark bug;
  std::vector<uint32_t> sum(1);
  expect_planted(
      {kTwoWarps, {output("sum", sum)}, [&] { ptx::red_global_add(sum.data(), 1u, bug.here()); }},
      FindingKind::uninitialized_read, bug, {"offset 0 of 'sum'", "nobody has written"});
}

TEST(PlantedMemory, WriteToInput) {
  Mark bug;
  std::vector<uint32_t> x(64);
  expect_planted(
      {kTwoWarps, {input("x", x)}, [&] { ptx::st_global(&x[ptx::tid_x()], 0u, bug.here()); }},
      FindingKind::write_to_input, bug, {"of 'x'", "registered as input"});
}

TEST(PlantedMemory, ReadBeforeGriddepcontrolWait) {
  Mark bug;
  std::vector<uint32_t> x(64), weights(64), out(64);
  Buffer constant = input("weights", weights);
  constant.dependent = false;
  LaunchShape shape = kTwoWarps;
  shape.programmatic_dependent_launch = true;
  expect_planted({shape,
                  {input("x", x), constant, output("out", out)},
                  [&] {
                    const uint32_t i = ptx::tid_x();
                    const uint32_t w = ptx::ld_global_nc(&weights[i]);
                    const uint32_t v = ptx::ld_global(&x[i], bug.here());
                    ptx::griddepcontrol_wait();
                    ptx::st_global(&out[i], v + w);
                  }},
                 FindingKind::dependent_access, bug, {"of 'x'", "no griddepcontrol_wait"});
}

TEST(PlantedMemory, BrokenAssumption) {
  Mark bug;
  expect_planted({kTwoWarps, {}, [&] { assume(ptx::tid_x() < 63, "tid_x() < 63", bug.here()); }},
                 FindingKind::broken_assumption, bug, {"(tid_x() < 63)", "lane 31", "is false"});
}

TEST(PlantedMemory, LaunchesThatTheDeviceOrTheEmulatorRefuses) {
  const auto refused = [](LaunchShape shape, const char* text) {
    const Report report = launch(shape, {}, in_order(), [] { FAIL() << "the kernel ran"; });
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].kind, FindingKind::launch_limits);
    EXPECT_THAT(report.text(), testing::HasSubstr(text));
  };
  refused({.block = {32}, .dynamic_shared_bytes = 227 * 1024 + 1}, "at most 232448");
  refused({.block = {1056}}, "1 to 1024");
  refused({.block = {1, 2, 128}}, "z is at most 64");
  refused({.block = {48}}, "the emulator asks for whole warps");
  refused({.grid = {3}, .block = {32}, .cluster = {2}}, "multiple of its cluster (2,1,1)");
  refused({.grid = {16}, .block = {32}, .cluster = {16}},
          "the emulator asks for a portable size, 1 to 8");
  refused({.grid = {1, 65536}, .block = {32}}, "65535");
  refused({.grid = {65535}, .block = {32}}, "more than the emulator numbers");
}

}  // namespace
}  // namespace blockscale::emulator
