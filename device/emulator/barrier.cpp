// bar.sync and bar.arrive, fences, griddepcontrol.
#include <algorithm>
#include <bit>

#include "device/emulator/machine.h"

namespace blockscale::emulator {
namespace {

/// Warps whose lanes that are alive have all arrived. The aligned barriers count whole warps.
uint32_t warps_here(const Block& block, const NamedBarrier& barrier) {
  uint32_t count = 0;
  for (const auto& warp : block.warps) {
    const uint32_t arrived = barrier.warps[warp->index].lanes;
    if (arrived != 0 && (warp->live & ~arrived) == 0) ++count;
  }
  return count;
}

uint32_t warps_expected(const Block& block, const NamedBarrier& barrier) {
  if (!barrier.all) return barrier.expected / kWarpSize;
  return static_cast<uint32_t>(std::count_if(
      block.warps.begin(), block.warps.end(),
      [&](const auto& warp) { return warp->live != 0 || barrier.warps[warp->index].lanes != 0; }));
}

/// One execution of bar.sync or bar.arrive.
struct Arrival {
  const char* name;
  uint32_t id;
  uint32_t threads;  // expected, if not all
  bool all;
  bool waits;
  SourceLocation at;

  std::string who(Machine& m) const {
    return std::string(name) + " " + std::to_string(id) + " at " + text_of(at) + " by " +
           m.describe(m.self());
  }
};

void check_operands(Machine& m, const Arrival& a, uint32_t block_threads) {
  if (a.id >= kNamedBarriers) {
    m.fail(FindingKind::barrier_misuse, {a.at}, a.who(m) + ": a block has barriers 0 to 15");
  }
  if (!a.all && (a.threads == 0 || a.threads % kWarpSize != 0 || a.threads > block_threads)) {
    m.fail(FindingKind::barrier_misuse, {a.at},
           a.who(m) + ": " + std::to_string(a.threads) + " threads are expected, which is to be " +
               "a positive multiple of 32 of at most the block's " + std::to_string(block_threads));
  }
}

/// The lanes of a warp execute the same aligned barrier at the same line.
void check_warp_agrees(Machine& m, const Arrival& a, const Block& block, const Warp& warp) {
  for (uint32_t id = 0; id < kNamedBarriers; ++id) {
    const Thread* waiting = block.barriers[id].warps[warp.index].waiting;
    if (waiting == nullptr || (id == a.id && same_line(waiting->wait.at, a.at))) continue;
    m.fail(FindingKind::divergent_collective, {a.at, waiting->wait.at},
           a.who(m) + ", while " + m.describe(*waiting) + " of the same warp waits in bar_sync " +
               std::to_string(id) + " at " + text_of(waiting->wait.at));
  }
}

/// The arrivals of one phase expect the same number of threads, and come once.
void check_phase(Machine& m, const Arrival& a, const NamedBarrier& barrier, uint32_t arrived) {
  if (barrier.expected == 0) return;
  if (barrier.all != a.all || (!a.all && barrier.expected != a.threads)) {
    m.fail(FindingKind::barrier_misuse, {a.at, barrier.at},
           a.who(m) + " expects " + (a.all ? "all" : std::to_string(a.threads)) +
               " threads, but the phase began at " + text_of(barrier.at) + " with " +
               (barrier.all ? "all" : std::to_string(barrier.expected)));
  }
  if ((arrived >> m.self().identity.laneid & 1u) != 0) {
    m.fail(FindingKind::barrier_misuse, {a.at, barrier.at},
           a.who(m) + " arrives twice in one phase, which began at " + text_of(barrier.at));
  }
}

void arrive(const Arrival& a) {
  Machine& m = machine();
  m.maybe_preempt();
  Thread& thread = m.self();
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  const auto block_threads = kWarpSize * static_cast<uint32_t>(block.warps.size());
  check_operands(m, a, block_threads);
  check_warp_agrees(m, a, block, warp);
  // One that does not wait would let lanes run ahead of those that have yet to arrive.
  if (!a.waits) meet_lanes("bar_arrive", warp.live, a.id, a.at);
  NamedBarrier& barrier = block.barriers[a.id];
  NamedBarrier::WarpArrival& here = barrier.warps[warp.index];
  check_phase(m, a, barrier, here.lanes);
  if (barrier.expected == 0) {
    barrier.expected = a.all ? block_threads : a.threads;
    barrier.all = a.all;
    barrier.at = a.at;
  }
  here.lanes |= 1u << thread.identity.laneid;
  barrier.released.add(thread.views, thread.engines);
  m.tick(thread);
  if (a.waits) barrier.waiting.push_back(&thread);
  if (try_complete_barrier(m, block, barrier)) return;
  if (!a.waits) return;
  if (here.waiting == nullptr) here.waiting = &thread;
  Wait wait;
  wait.what = Wait::For::named_barrier;
  wait.at = a.at;
  wait.id = a.id;
  m.block(std::move(wait));
}

}  // namespace

bool try_complete_barrier(Machine& m, Block& block, NamedBarrier& barrier) {
  if (barrier.expected == 0) return false;
  const uint32_t here = warps_here(block, barrier), expected = warps_expected(block, barrier);
  if (here < expected) return false;
  for (Thread* waiting : barrier.waiting) {
    m.acquire(*waiting, barrier.released.freeze());
    m.wake(*waiting);
  }
  barrier = {};
  barrier.warps.resize(block.warps.size());
  m.progress();
  return true;
}

void bar_sync_all(SourceLocation at) {
  arrive({"barrier_sync_all: bar_sync", 0, 0, true, true, at});
}

void bar_sync(uint32_t id, uint32_t threads, SourceLocation at) {
  arrive({"bar_sync", id, threads, false, true, at});
}

void bar_arrive(uint32_t id, uint32_t threads, SourceLocation at) {
  arrive({"bar_arrive", id, threads, false, false, at});
}

void fence_acq_rel(SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  if (!thread.to_acquire.empty()) {
    GlobalRelease all;
    for (const auto& [p, released] : thread.to_acquire) all.add(released);
    m.acquire(thread, all.view(thread.cluster->index));
    thread.to_acquire.clear();
  }
  thread.fenced = thread.views;
  thread.has_fenced = true;
  thread.released.clear();  // `fenced` says more
  m.tick(thread);
}

void fence_proxy_async(FenceSpace space, SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  if (!m.proxy_fences()) return m.tick(thread);
  if (space != FenceSpace::global) thread.views[kPublishedShared] = thread.views[kSeen];
  if (space != FenceSpace::shared) thread.views[kPublishedGlobal] = thread.views[kSeen];
  for (const auto& [offset, mbarrier] : thread.block->mbarriers) {
    const Accessor self = m.accessor(thread, AccessKind::read, mbarrier->init.at);
    if (space != FenceSpace::global &&
        knows(self, thread.views[kSeen], self.cluster_first + mbarrier->init_index, 1)) {
      mbarrier->init_published = true;
    }
  }
  m.tick(thread);
}

void fence_mbarrier_init(SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  const Actor self = thread.cluster->first_actor + thread.engines.first;
  for (const auto& [offset, mbarrier] : thread.block->mbarriers) {
    if (mbarrier->init.actor == self) mbarrier->init_published = true;
  }
}

void griddepcontrol_wait(SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  auto ended = std::make_shared<Clock>();
  raise(ended->known, m.previous_kernel_index(), 1);
  m.acquire(thread, {ended, nullptr, nullptr});
}

void griddepcontrol_launch_dependents(SourceLocation) {}

}  // namespace blockscale::emulator
