// Planted bugs in what the value of a word of global memory releases: a store ends what earlier
// values have released, and a release covers only what came before it.
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/special_registers.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kThreeBlocks = {.grid = {3}, .block = {32}};

/// What three threads, each of a block of its own, share.
struct Words {
  std::vector<uint32_t> data = {0}, flag = {0}, done = {0};
  std::vector<Buffer> buffers() {
    return {in_out("data", data), in_out("flag", flag), in_out("done", done)};
  }
  void reset() { data[0] = flag[0] = done[0] = 0; }
};

/// Waits without ordering anything.
void wait_relaxed(const std::vector<uint32_t>& word, uint32_t value) {
  while (ptx::ld_relaxed_gpu_global(word.data()) != value) {
  }
}

/// Block 0 releases data with flag = 1, block 1 makes the flag 2 by `change`, and block 2, which
/// has read no 1, acquires the 2 and reads the data.
void acquire_after_change(Words& words, Mark& bug, void (*change)(uint32_t* flag)) {
  if (ptx::tid_x() != 0) return;
  uint32_t* flag = words.flag.data();
  if (ptx::ctaid_x() == 0) {
    ptx::st_global(words.data.data(), 7u);
    ptx::st_release_gpu_global(flag, 1u);
  } else if (ptx::ctaid_x() == 1) {
    wait_relaxed(words.flag, 1);
    change(flag);
    ptx::st_relaxed_gpu_global(words.done.data(), 1u);
  } else {
    wait_relaxed(words.done, 1);
    EXPECT_EQ(ptx::ld_acquire_gpu_global(flag), 2u);
    ptx::ld_global(words.data.data(), bug.here());
    words.reset();  // for the next run: all others are past their last access
  }
}

Program changed_by(Words& words, Mark& bug, void (*change)(uint32_t* flag)) {
  return {kThreeBlocks, words.buffers(),
          [&words, &bug, change] { acquire_after_change(words, bug, change); }};
}

TEST(PlantedRelease, AnotherThreadsStoreEndsARelease) {
  Mark bug;
  Words words;
  expect_planted(changed_by(words, bug, [](uint32_t* p) { ptx::st_relaxed_gpu_global(p, 2u); }),
                 FindingKind::race, bug,
                 {"of 'data'", "the write at", "no barrier, fence or wait"});
}

// It releases what its own thread has done, and that is not the other's store.
TEST(PlantedRelease, AnotherThreadsReleaseEndsARelease) {
  Mark bug;
  Words words;
  expect_planted(changed_by(words, bug, [](uint32_t* p) { ptx::st_release_gpu_global(p, 2u); }),
                 FindingKind::race, bug, {"of 'data'", "the write at"});
}

TEST(PlantedRelease, ReadModifyWritesPassAReleaseOn) {
  Mark bug;
  Words words;
  expect_clean(changed_by(words, bug, [](uint32_t* p) { ptx::atom_global_add(p, 1); }));
  expect_clean(changed_by(words, bug, [](uint32_t* p) { ptx::atom_global_exch(p, 2); }));
  expect_clean(changed_by(words, bug, [](uint32_t* p) { ptx::atom_global_cas(p, 1, 2); }));
}

TEST(PlantedRelease, AFenceBeforeTheStoreAcquiresAndReleases) {
  Mark bug;
  Words words;
  expect_clean(changed_by(words, bug, [](uint32_t* p) {
    ptx::fence_acq_rel_gpu();
    ptx::st_relaxed_gpu_global(p, 2u);
  }));
}

/// Block 0 writes data between two stores to the flag, and block 1 acquires the second one.
void store_again(Words& words, Mark& bug, bool second_releases) {
  if (ptx::tid_x() != 0 || ptx::ctaid_x() == 2) return;
  if (ptx::ctaid_x() == 1) {
    while (ptx::ld_acquire_gpu_global(words.flag.data()) != 2) {
    }
    ptx::ld_global(words.data.data(), bug.here());
    words.reset();
    return;
  }
  ptx::st_release_gpu_global(words.flag.data(), 1u);
  ptx::st_global(words.data.data(), 7u);
  if (second_releases) {
    ptx::st_release_gpu_global(words.flag.data(), 2u);
  } else {
    ptx::st_relaxed_gpu_global(words.flag.data(), 2u);
  }
}

TEST(PlantedRelease, WriteBehindTheRelease) {
  Mark bug;
  Words words;
  expect_planted({kThreeBlocks, words.buffers(), [&] { store_again(words, bug, false); }},
                 FindingKind::race, bug, {"of 'data'", "the write at"});
  expect_clean({kThreeBlocks, words.buffers(), [&] { store_again(words, bug, true); }});
}

}  // namespace
}  // namespace blockscale::emulator
