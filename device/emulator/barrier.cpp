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
    const uint32_t arrived = barrier.arrived[warp->index];
    if (arrived != 0 && (warp->live & ~arrived) == 0) ++count;
  }
  return count;
}

uint32_t warps_expected(const Block& block, const NamedBarrier& barrier) {
  if (!barrier.all) return barrier.expected / kWarpSize;
  return static_cast<uint32_t>(std::count_if(
      block.warps.begin(), block.warps.end(),
      [&](const auto& warp) { return warp->live != 0 || barrier.arrived[warp->index] != 0; }));
}

void arrive(uint32_t id, uint32_t threads, bool all, bool waits, const char* name,
            SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  Thread& thread = m.self();
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  const std::string who = std::string(name) + " " + std::to_string(id) + " at " + text_of(at) +
                          " by " + m.describe(thread);
  if (id >= kNamedBarriers) {
    m.fail(FindingKind::barrier_misuse, {at}, who + ": a block has barriers 0 to 15");
  }
  const auto limit = kWarpSize * static_cast<uint32_t>(block.warps.size());
  if (!all && (threads == 0 || threads % kWarpSize != 0 || threads > limit)) {
    m.fail(FindingKind::barrier_misuse, {at},
           who + ": " + std::to_string(threads) + " threads are expected, which is to be a " +
               "positive multiple of 32 of at most the block's " + std::to_string(limit));
  }
  // The lanes of a warp execute the same aligned barrier.
  for (uint32_t other = 0; other < kNamedBarriers; ++other) {
    const uint32_t there = block.barriers[other].arrived[warp.index];
    if (other == id || there == 0) continue;
    for (const Thread* waiting : block.barriers[other].waiting) {
      if (waiting->warp != &warp) continue;
      m.fail(FindingKind::divergent_collective, {at, waiting->wait.at},
             who + ", while " + m.describe(*waiting) + " of the same warp waits in bar_sync " +
                 std::to_string(other) + " at " + text_of(waiting->wait.at));
    }
  }
  // One that does not wait would let lanes run ahead of those that have yet to arrive.
  if (!waits) meet_lanes("bar_arrive", warp.live, id, at);
  NamedBarrier& barrier = block.barriers[id];
  for (const Thread* waiting : barrier.waiting) {
    if (waiting->warp != &warp || same_line(waiting->wait.at, at)) continue;
    m.fail(FindingKind::divergent_collective, {at, waiting->wait.at},
           who + ", while " + m.describe(*waiting) + " of the same warp is at " +
               text_of(waiting->wait.at) + " in the same phase");
  }
  if (barrier.expected == 0) {
    barrier.expected = all ? limit : threads;
    barrier.all = all;
    barrier.at = at;
  } else if (barrier.all != all || (!all && barrier.expected != threads)) {
    m.fail(FindingKind::barrier_misuse, {at, barrier.at},
           who + " expects " + (all ? "all" : std::to_string(threads)) +
               " threads, but the phase began at " + text_of(barrier.at) + " with " +
               (barrier.all ? "all" : std::to_string(barrier.expected)));
  }
  const uint32_t lane = 1u << thread.identity.laneid;
  if ((barrier.arrived[warp.index] & lane) != 0) {
    m.fail(FindingKind::barrier_misuse, {at, barrier.at},
           who + " arrives twice in one phase, which began at " + text_of(barrier.at));
  }
  barrier.arrived[warp.index] |= lane;
  barrier.released.add(thread.views, thread.first);
  m.tick(thread);
  if (waits) barrier.waiting.push_back(&thread);
  if (try_complete_barrier(m, block, barrier)) return;
  if (!waits) return;
  Wait wait;
  wait.what = Wait::For::named_barrier;
  wait.at = at;
  wait.id = id;
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
  barrier.arrived.resize(block.warps.size());
  m.progress();
  return true;
}

void bar_sync_all(SourceLocation at) {
  arrive(0, 0, true, true, "barrier_sync_all: bar_sync", at);
}

void bar_sync(uint32_t id, uint32_t threads, SourceLocation at) {
  arrive(id, threads, false, true, "bar_sync", at);
}

void bar_arrive(uint32_t id, uint32_t threads, SourceLocation at) {
  arrive(id, threads, false, false, "bar_arrive", at);
}

void fence_acq_rel(SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  if (!thread.to_acquire.empty()) {
    m.acquire(thread, thread.to_acquire.view(thread.cluster->index));
    thread.to_acquire = {};
  }
  thread.fenced = thread.views;
  thread.has_fenced = true;
  m.tick(thread);
}

void fence_proxy_async(FenceSpace space, SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  if (space != FenceSpace::global) thread.views[kPublishedShared] = thread.views[kSeen];
  if (space != FenceSpace::shared) thread.views[kPublishedGlobal] = thread.views[kSeen];
  for (const auto& [offset, mbarrier] : thread.block->mbarriers) {
    const Accessor self = m.accessor(thread, AccessKind::read, mbarrier->init.at);
    if (space != FenceSpace::global &&
        knows(self, thread.views[kSeen], mbarrier->init.actor, mbarrier->init.clock)) {
      mbarrier->init_published = true;
    }
  }
  m.tick(thread);
}

void fence_mbarrier_init(SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  const Actor self = thread.cluster->first_actor + thread.first;
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
