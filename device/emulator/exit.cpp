// The ends of threads, blocks and copies, and the report when nothing can go on.
#include <algorithm>
#include <utility>

#include "device/emulator/machine.h"

namespace blockscale::emulator {

void Machine::finish_thread(Thread& thread) {
  check_thread_exit(thread);
  leave_warpgroup(*this, thread);
  thread.finished = true;
  Warp& warp = *thread.warp;
  warp.live &= ~(1u << thread.identity.laneid);
  --thread.block->live_threads;
  --thread.cluster->live_threads;
  if (thread.cluster->blocks.size() > 1) {
    ClusterBarrier& barrier = thread.cluster->barrier;
    if (thread.cluster_arrived && thread.cluster_barriers == barrier.phase) --barrier.arrived;
    thread.block->known_at_exit.add(thread.views, thread.engines);
    if (thread.block->live_threads == 0) check_remote_accesses(*thread.block);
  }
  try_complete_cluster_barrier(*this, *thread.cluster);
  progress();
  for (const Collective& waiting : warp.collectives) {
    if ((waiting.mask >> thread.identity.laneid & 1u) == 0) continue;
    report(FindingKind::divergent_collective, {waiting.at},
           std::string(waiting.name) + " at " + text_of(waiting.at) + " names " + describe(thread) +
               ", which has exited");
    cancelled_ = true;
  }
  for (NamedBarrier& barrier : thread.block->barriers) {
    try_complete_barrier(*this, *thread.block, barrier);
  }
}

void Machine::check_thread_exit(Thread& thread) {
  for (const auto& copy : thread.copies) {
    if (copy->engine == kCpAsync && copy->tracked) continue;
    report(
        FindingKind::outstanding_at_exit, {copy->at},
        describe(thread) + " exits, and has not waited for its " + copy->name + " at " +
            text_of(copy->at) +
            (copy->engine == kCpAsync ? ": no cp_async_wait_group or cp_async_wait_all covers it"
                                      : " to read shared memory: no cp_async_bulk_commit_group and "
                                        "cp_async_bulk_wait_group (or _wait_group_read) cover it"));
  }
}

void Machine::check_block_exit(Block& block) {
  for (const auto& [offset, mbarrier] : block.mbarriers) {
    if (mbarrier->last_transfer_phase <= mbarrier->observed) continue;
    report(FindingKind::outstanding_at_exit, {mbarrier->last_transfer, mbarrier->init.at},
           "block (" + std::to_string(block.position.x) + "," + std::to_string(block.position.y) +
               "," + std::to_string(block.position.z) + ") has exited, and nobody has waited for " +
               "the bulk copy at " + text_of(mbarrier->last_transfer) + " on mbarrier '" +
               mbarrier->name + "'");
  }
}

void Machine::check_remote_accesses(Block& block) {
  const ClockPointer known = block.known_at_exit.freeze()[kSeen];
  for (const auto& [actor, access] : block.remote_accesses) {
    const uint32_t index = actor - block.cluster->first_actor;
    if (known != nullptr && index < known->known.size() && known->known[index] >= access.clock) {
      continue;
    }
    report(FindingKind::block_has_exited, {access.at},
           describe(access) + " of shared memory of " + describe(block) +
               " is not ordered before that block's exit: no thread of it waits, at a cluster " +
               "barrier or an mbarrier, for who did it");
  }
}

void Machine::add_transfer(std::shared_ptr<Transfer> transfer) {
  transfers_.push_back(std::move(transfer));
}

void Machine::complete(Transfer& transfer) {
  if (transfer.done) return;
  transfer.done = true;
  std::exchange(transfer.perform, nullptr)();  // and lets go of its mbarrier
  std::erase_if(transfers_, [&](const auto& other) { return other.get() == &transfer; });
  progress();
}

namespace {

/// Threads of a warp that wait for the same at the same line.
struct Group {
  const Block* block;
  const Warp* warp;
  SourceLocation at;
  std::string what;
  uint32_t lanes;
  bool blocks_others;  // waits for more than its own warp
};

std::string count_of(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string what_for(const Thread& thread) {
  const Wait& wait = thread.wait;
  switch (wait.what) {
    case Wait::For::collective: {
      char mask[16];
      std::snprintf(mask, sizeof(mask), "0x%08X", wait.mask);
      return std::string("wait in ") + wait.name + " for all lanes of its mask " + mask;
    }
    case Wait::For::named_barrier: {
      const NamedBarrier& barrier = thread.block->barriers[wait.id];
      std::string text = "wait in bar_sync " + std::to_string(wait.id) + " for ";
      text += barrier.all ? "all threads" : count_of(barrier.expected, "thread");
      uint32_t warps = 0;
      for (const auto& arrival : barrier.warps) warps += arrival.lanes != 0 ? 1 : 0;
      return text + "; " + count_of(warps, "warp") + " of the block are there";
    }
    case Wait::For::mbarrier: {
      const Mbarrier& m = *wait.mbarrier;
      std::string text = "wait for mbarrier '" + m.name + "' parity " +
                         std::to_string(wait.parity) + ": it is in phase " +
                         std::to_string(m.phase) + " (parity " + std::to_string(m.phase & 1) +
                         "), " + std::to_string(m.pending) + " of " + count_of(m.count, "arrival") +
                         " missing";
      if (m.bytes > 0) text += ", " + count_of(static_cast<uint64_t>(m.bytes), "byte") + " missing";
      if (m.bytes < 0) {
        text += ", " + count_of(static_cast<uint64_t>(-m.bytes), "byte") + " more than expected";
      }
      return text;
    }
    case Wait::For::wgmma: {
      const std::size_t index = thread.index / meaning::kWgmmaThreads;
      return "wait in wgmma_wait_group for the products up to this line; " +
             group_text(*thread.block->warpgroups[index], wait.id);
    }
    case Wait::For::cluster_barrier: {
      const Cluster& cluster = *thread.cluster;
      return "wait in barrier_cluster_wait; " + std::to_string(cluster.barrier.arrived) + " of " +
             count_of(cluster.live_threads, "thread") +
             " of the cluster that have not exited have " + "arrived";
    }
    case Wait::For::poll: return "poll";
    case Wait::For::nothing: break;
  }
  return "can run";
}

}  // namespace

void Machine::report_deadlock(const char* headline) {
  std::vector<Group> groups;
  uint64_t exited = 0, running = 0;
  bool bytes_wrong = false;
  for (const auto& cluster : resident_) {
    for (const auto& block : cluster->blocks) {
      for (const auto& thread : block->threads) {
        if (thread->finished) {
          ++exited;
          continue;
        }
        ++running;
        const Wait& wait = thread->wait;
        const std::string what = what_for(*thread);
        if (wait.what == Wait::For::mbarrier && wait.mbarrier->pending == 0) bytes_wrong = true;
        const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
          return g.warp == thread->warp && same_line(g.at, wait.at) && g.what == what;
        });
        const uint32_t lane = 1u << thread->identity.laneid;
        if (known != groups.end()) {
          known->lanes |= lane;
        } else {
          groups.push_back(
              {block.get(), thread->warp, wait.at, what, lane, wait.what != Wait::For::collective});
        }
      }
    }
  }
  // What others wait for comes first: a warp that waits for its own lanes is a consequence.
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.blocks_others > b.blocks_others;
  });
  std::string text = std::string(headline) + "; " + count_of(running, "thread") + " left, " +
                     std::to_string(exited) + " of the same clusters have exited";
  std::vector<SourceLocation> lines;
  constexpr std::size_t kShown = 24;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Group& g = groups[i];
    if (std::none_of(lines.begin(), lines.end(),
                     [&](const SourceLocation& at) { return same_line(at, g.at); })) {
      lines.push_back(g.at);
    }
    if (i == kShown) text += "\n  and " + count_of(groups.size() - kShown, "more group");
    if (i >= kShown) continue;
    char lanes[16];
    std::snprintf(lanes, sizeof(lanes), "0x%08X", g.lanes);
    const Dim3& p = g.block->position;
    text += "\n  block (" + std::to_string(p.x) + "," + std::to_string(p.y) + "," +
            std::to_string(p.z) + ") warp " + std::to_string(g.warp->index) + " lanes " +
            (g.lanes == ~0u ? "0-31" : lanes) + " at " + text_of(g.at) + " " + g.what;
  }
  report(bytes_wrong ? FindingKind::transaction_bytes : FindingKind::deadlock, std::move(lines),
         std::move(text));
  cancelled_ = true;
}

}  // namespace blockscale::emulator
