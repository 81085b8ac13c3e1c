// Clusters: their barrier, and the shared memory of other blocks.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "device/emulator/copies.h"
#include "device/emulator/machine.h"

namespace blockscale::emulator {
namespace {

// Addresses of the shared::cluster window: 1 + the rank in the highest byte, or 0 for the thread's
// own block, and the address in that block's shared::cta window.
constexpr int kRankShift = 24;
constexpr uint32_t kAddressMask = (1u << kRankShift) - 1;

/// Some block's shared memory, as an address names it.
struct Place {
  Block* block;
  uint32_t address;
  bool remote;

  std::byte* data() const { return block->shared.data() + (address - kSharedBase); }
};

Place find_place(Machine& m, uint32_t address, const char* name, SourceLocation at) {
  Thread& thread = m.self();
  const uint32_t rank = address >> kRankShift;
  Block& block = rank == 0 ? *thread.block : use_block(m, rank - 1, name, at);
  return {&block, address & kAddressMask, &block != thread.block};
}

/// The place of an access of the thread itself, checked; none where it cannot be done.
bool access_place(Machine& m, const Place& place, uint32_t bytes, AccessKind kind, const char* name,
                  SourceLocation at) {
  if (!check_multiple(m, place.address, bytes, "its address", name, at)) return false;
  const Accessor accessor = m.accessor(m.self(), kind, at);
  if (!m.access_shared(*place.block, place.address, bytes, accessor, name)) return false;
  if (place.remote) note_remote_access(*place.block, accessor.record);
  return true;
}

}  // namespace

Block& use_block(Machine& m, uint32_t rank, const char* name, SourceLocation at) {
  Thread& thread = m.self();
  Cluster& cluster = *thread.cluster;
  if (rank >= cluster.blocks.size()) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + " names block " + std::to_string(rank) + " of a cluster of " +
               std::to_string(cluster.blocks.size()));
  }
  Block& block = *cluster.blocks[rank];
  if (&block == thread.block) return block;
  if (block.live_threads == 0) {
    m.fail(
        FindingKind::block_has_exited, {at},
        by_whom(m, name, at) + " touches shared memory of " + m.describe(block) +
            ", which has exited: its threads are to wait, at a cluster barrier or an mbarrier, " +
            "for who does that");
  }
  const Accessor accessor = m.accessor(thread, AccessKind::read, at);
  const auto heard_of = [&](const auto& other) {
    return knows(accessor, thread.views[kSeen], cluster.first_actor + other->engines.first, 1);
  };
  if (thread.cluster_barriers == 0 &&
      std::none_of(block.threads.begin(), block.threads.end(), heard_of)) {
    m.report(
        FindingKind::race, {at},
        by_whom(m, name, at) + " touches shared memory of " + m.describe(block) +
            ", which need not have begun: no barrier_cluster_arrive and barrier_cluster_wait " +
            "before it");
  }
  return block;
}

void note_remote_access(Block& block, const Record& record) {
  Record& newest = block.remote_accesses[record.actor];
  if (record.clock >= newest.clock) newest = record;
}

void try_complete_cluster_barrier(Machine& m, Cluster& cluster) {
  ClusterBarrier& barrier = cluster.barrier;
  if (barrier.arrived == 0 || barrier.arrived < cluster.live_threads) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.completed = barrier.released.freeze();
  for (Thread* waiting : barrier.waiting) m.wake(*waiting);
  barrier.waiting.clear();
  m.progress();
}

void barrier_cluster_arrive(bool release, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  Thread& thread = m.self();
  const char* name = release ? "barrier_cluster_arrive" : "barrier_cluster_arrive_relaxed";
  meet_lanes(name, thread.warp->live, 0, at);
  if (thread.cluster_arrived) {
    m.fail(FindingKind::barrier_misuse, {at, thread.cluster_arrival},
           by_whom(m, name, at) + " arrives twice: no barrier_cluster_wait since its arrival at " +
               text_of(thread.cluster_arrival));
  }
  ClusterBarrier& barrier = thread.cluster->barrier;
  if (release) {
    barrier.released.add(thread.views, thread.engines);
  } else {
    // What fences have released before it.
    if (thread.has_fenced) barrier.released.add(thread.fenced, thread.engines);
    const Actor self = thread.cluster->first_actor + thread.engines.first;
    for (const auto& [offset, mbarrier] : thread.block->mbarriers) {
      if (mbarrier->init.actor == self && mbarrier->init_published) {
        barrier.released.raise(mbarrier->init_index, 1);
      }
    }
  }
  m.tick(thread);
  thread.cluster_arrived = true;
  thread.cluster_arrival = at;
  ++barrier.arrived;
  try_complete_cluster_barrier(m, *thread.cluster);
}

void barrier_cluster_wait(SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  const char* name = "barrier_cluster_wait";
  meet_lanes(name, thread.warp->live, 0, at);
  if (!thread.cluster_arrived) {
    m.fail(FindingKind::barrier_misuse, {at},
           by_whom(m, name, at) + " has not arrived: no barrier_cluster_arrive before it");
  }
  ClusterBarrier& barrier = thread.cluster->barrier;
  while (barrier.phase == thread.cluster_barriers) {
    barrier.waiting.push_back(&thread);
    Wait wait;
    wait.what = Wait::For::cluster_barrier;
    wait.at = at;
    m.block(std::move(wait));
  }
  ++thread.cluster_barriers;
  thread.cluster_arrived = false;
  m.acquire(thread, barrier.completed);
}

uint32_t mapa(uint32_t address, uint32_t rank, SourceLocation at) {
  Machine& m = machine();
  const std::size_t blocks = m.self().cluster->blocks.size();
  if (rank >= blocks) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, "mapa_shared_cluster", at) + " names block " + std::to_string(rank) +
               " of a cluster of " + std::to_string(blocks));
  }
  return (rank + 1) << kRankShift | (address & kAddressMask);
}

void load_shared_cluster(uint32_t address, uint32_t bytes, void* value, SourceLocation at) {
  Machine& m = machine();
  const char* name = "ld_shared_cluster";
  std::memset(value, 0, bytes);
  m.note_read(at);
  const Place place = find_place(m, address, name, at);
  if (!access_place(m, place, bytes, AccessKind::read, name, at)) return;
  std::memcpy(value, place.data(), bytes);
}

void store_shared_cluster(uint32_t address, uint32_t bytes, const void* value, SourceLocation at) {
  Machine& m = machine();
  const char* name = "st_shared_cluster";
  const Place place = find_place(m, address, name, at);
  if (!access_place(m, place, bytes, AccessKind::write, name, at)) return;
  std::memcpy(place.data(), value, bytes);
  m.progress();
}

void mbarrier_arrive_cluster(uint32_t address, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  const char* name = "mbarrier_arrive_cluster";
  const Place place = find_place(m, address, name, at);
  if (place.remote) {
    note_remote_access(*place.block, m.accessor(m.self(), AccessKind::atomic_update, at).record);
  }
  arrive_mbarrier(m, *place.block, place.address, 1, 0, name, at);
}

void st_async(uint32_t address, uint32_t bytes, const void* value, uint32_t mbarrier_address,
              SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  const char* name = "st_async";
  if (m.self().cluster->blocks.size() == 1) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) +
               ": the kernel is not launched as clusters, without which it is an " +
               "illegal instruction");
  }
  const Place place = find_place(m, address, name, at);
  const Place barrier = find_place(m, mbarrier_address, name, at);
  if (place.block != barrier.block) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + " stores to " + m.describe(*place.block) +
               ", its mbarrier is one of " + m.describe(*barrier.block));
  }
  const auto mbarrier = use_mbarrier(m, *barrier.block, barrier.address, name, at);
  Accessor accessor = load_accessor(m, *mbarrier, AccessKind::write, at);
  accessor.record.async = false;  // it is no access of the asynchronous proxy
  const bool valid = check_multiple(m, place.address, bytes, "its address", name, at) &&
                     m.access_shared(*place.block, place.address, bytes, accessor, name);
  std::array<std::byte, 16> copy;
  std::memcpy(copy.data(), value, bytes);
  std::byte* to = valid ? place.data() : nullptr;
  issue_load(m, mbarrier, bytes, name, at, [to, copy, bytes] {
    if (to != nullptr) std::memcpy(to, copy.data(), bytes);
  });
}

}  // namespace blockscale::emulator
