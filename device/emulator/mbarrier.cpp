// The mbarrier family.
#include <algorithm>
#include <cstdlib>

#include "device/emulator/machine.h"

namespace blockscale::emulator {
namespace {

constexpr uint32_t kMaxCount = (1u << 20) - 1;  // of arrivals, and of bytes expected at a time

std::string who(Machine& m, const char* name, SourceLocation at) {
  return std::string(name) + " at " + text_of(at) + " by " + m.describe(m.self());
}

/// Ends the phase if nothing is missing.
void try_complete_phase(Machine& m, Mbarrier& mbarrier) {
  if (mbarrier.pending != 0 || mbarrier.bytes != 0) return;
  for (const auto& transfer : mbarrier.transfers) {
    if (transfer->done || transfer->phase != mbarrier.phase) continue;
    m.report(FindingKind::transaction_bytes, {transfer->at, mbarrier.last_arrival},
             "mbarrier '" + mbarrier.name + "' completes phase " + std::to_string(mbarrier.phase) +
                 " before the " + transfer->name + " at " + text_of(transfer->at) + " of " +
                 std::to_string(transfer->bytes) + " bytes is done: too few bytes are expected; " +
                 "the last arrival was at " + text_of(mbarrier.last_arrival));
    m.stop();
  }
  ++mbarrier.phase;
  mbarrier.pending = mbarrier.count;
  mbarrier.released.raise(mbarrier.index, mbarrier.phase);
  mbarrier.completed = mbarrier.released.freeze();
  std::erase_if(mbarrier.transfers, [](const auto& transfer) { return transfer->done; });
  for (Thread* waiting : mbarrier.waiting) m.wake(*waiting);
  mbarrier.waiting.clear();
  m.progress();
}

void expect(Machine& m, Mbarrier& mbarrier, uint32_t bytes, const char* name, SourceLocation at) {
  mbarrier.bytes += bytes;
  if (bytes > kMaxCount || std::abs(mbarrier.bytes) > kMaxCount) {
    m.fail(FindingKind::transaction_bytes, {at},
           who(m, name, at) + ": mbarrier '" + mbarrier.name + "' is to wait for " +
               std::to_string(mbarrier.bytes) + " bytes; it counts to " +
               std::to_string(kMaxCount));
  }
}

/// Whether the phase with this parity is complete; if it is, what it released is known from now on.
bool test_parity(Machine& m, Mbarrier& mbarrier, uint32_t parity) {
  if ((mbarrier.phase & 1) == (parity & 1)) return false;
  mbarrier.observed = std::max(mbarrier.observed, mbarrier.phase);
  m.acquire(m.self(), mbarrier.completed);
  return true;
}

}  // namespace

void complete_bytes(Machine& m, Mbarrier& mbarrier, uint64_t bytes) {
  mbarrier.bytes -= static_cast<int64_t>(bytes);
  try_complete_phase(m, mbarrier);
}

void complete_arrival(Machine& m, Mbarrier& mbarrier, uint32_t index, uint32_t clock) {
  mbarrier.released.raise(index, clock);
  if (mbarrier.pending != 0) --mbarrier.pending;
  try_complete_phase(m, mbarrier);
}

void attach(Mbarrier& mbarrier, const std::shared_ptr<Transfer>& transfer) {
  transfer->phase = mbarrier.phase;
  mbarrier.transfers.push_back(transfer);
  mbarrier.last_transfer_phase = mbarrier.phase + 1;
  mbarrier.last_transfer = transfer->at;
}

std::shared_ptr<Mbarrier> use_mbarrier(Machine& m, const Block& block, uint32_t address,
                                       const char* name, SourceLocation at) {
  Thread& thread = m.self();
  const auto found = block.mbarriers.find(address - kSharedBase);
  if (found == block.mbarriers.end()) {
    m.fail(FindingKind::barrier_misuse, {at},
           who(m, name, at) + ": no mbarrier was initialised at offset " +
               std::to_string(static_cast<int64_t>(address) - kSharedBase) + " of shared memory");
  }
  const Record& init = found->second->init;
  const Accessor accessor = m.accessor(thread, AccessKind::read, at);
  const Actor actor = accessor.cluster_first + found->second->init_index;
  if (!knows(accessor, thread.views[kSeen], actor, 1)) {
    m.report(FindingKind::race, {at, init.at},
             who(m, name, at) + " is not ordered after the mbarrier_init of '" +
                 found->second->name + "' at " + text_of(init.at) + ": no barrier between the two");
  }
  return found->second;
}

void mbarrier_init(uint32_t address, uint32_t count, const char* name, SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  Block& block = *thread.block;
  const std::string by = who(m, "mbarrier_init", at) + " of '" + name + "'";
  if (address % 8 != 0) {
    m.fail(FindingKind::misaligned, {at}, by + ": its address is no multiple of 8");
  }
  if (count == 0 || count > kMaxCount) {
    m.fail(FindingKind::barrier_misuse, {at},
           by + ": a count of " + std::to_string(count) + "; 1 to " + std::to_string(kMaxCount) +
               " are allowed");
  }
  const uint32_t offset = address - kSharedBase;
  if (const auto old = block.mbarriers.find(offset); old != block.mbarriers.end()) {
    m.fail(FindingKind::barrier_misuse, {at, old->second->init.at},
           by + ": '" + old->second->name + "', initialised at " + text_of(old->second->init.at) +
               ", lies there: mbarrier_inval it first");
  }
  const Accessor accessor = m.accessor(thread, AccessKind::write, at);
  if (!m.access_shared(block, address, 8, accessor, "mbarrier_init")) {
    m.stop();
    throw Cancelled{};
  }
  std::fill_n(block.shared_state.begin() + offset, 8, SharedState::mbarrier);
  auto mbarrier = std::make_shared<Mbarrier>();
  mbarrier->name = name;
  mbarrier->index = block.cluster->next_actor++;
  mbarrier->init_index = block.cluster->next_actor++;
  mbarrier->count = count;
  mbarrier->pending = count;
  mbarrier->init = accessor.record;
  block.cluster->mbarrier_names.insert(block.cluster->mbarrier_names.end(), 2, name);
  auto initialised = std::make_shared<Clock>();
  raise(initialised->known, mbarrier->init_index, 1);
  m.acquire(thread, {initialised, nullptr, nullptr});
  block.mbarriers[offset] = std::move(mbarrier);
}

void mbarrier_inval(uint32_t address, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  const auto mbarrier = use_mbarrier(m, *m.self().block, address, "mbarrier_inval", at);
  const bool pending = std::any_of(mbarrier->transfers.begin(), mbarrier->transfers.end(),
                                   [](const auto& transfer) { return !transfer->done; });
  if (pending || !mbarrier->waiting.empty() || mbarrier->last_transfer_phase > mbarrier->observed) {
    m.fail(FindingKind::barrier_misuse, {at, mbarrier->init.at},
           who(m, "mbarrier_inval", at) + " of '" + mbarrier->name +
               "', on which threads or copies still wait");
  }
  const uint32_t offset = address - kSharedBase;
  std::fill_n(block.shared_state.begin() + offset, 8, SharedState::unwritten);
  block.mbarriers.erase(offset);
}

uint64_t arrive_mbarrier(Machine& m, const Block& block, uint32_t address, uint32_t count,
                         uint32_t bytes, const char* name, SourceLocation at) {
  Thread& thread = m.self();
  const auto mbarrier = use_mbarrier(m, block, address, name, at);
  if (count == 0 || count > mbarrier->pending) {
    m.fail(FindingKind::barrier_misuse, {at, mbarrier->init.at},
           who(m, name, at) + " arrives " + std::to_string(count) + " times on mbarrier '" +
               mbarrier->name + "', in whose phase " + std::to_string(mbarrier->pending) + " of " +
               std::to_string(mbarrier->count) + " arrivals are missing");
  }
  const uint64_t state = mbarrier->phase;
  mbarrier->last_arrival = at;
  expect(m, *mbarrier, bytes, name, at);
  mbarrier->released.add(thread.views, thread.engines);
  m.tick(thread);
  mbarrier->pending -= count;
  m.progress();
  try_complete_phase(m, *mbarrier);
  return state;
}

uint64_t mbarrier_arrive(uint32_t address, uint32_t count, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  const char* name = bytes != 0 ? "mbarrier_arrive_expect_tx" : "mbarrier_arrive";
  return arrive_mbarrier(m, *m.self().block, address, count, bytes, name, at);
}

void mbarrier_expect_tx(uint32_t address, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  const auto mbarrier = use_mbarrier(m, *m.self().block, address, "mbarrier_expect_tx", at);
  expect(m, *mbarrier, bytes, "mbarrier_expect_tx", at);
  m.progress();
}

bool mbarrier_test_wait(uint32_t address, uint64_t state, SourceLocation at) {
  Machine& m = machine();
  const auto mbarrier = use_mbarrier(m, *m.self().block, address, "mbarrier_test_wait", at);
  if (test_parity(m, *mbarrier, static_cast<uint32_t>(state & 1))) return true;
  m.yield_after_poll(at);
  return false;
}

bool mbarrier_test_wait_parity(uint32_t address, uint32_t parity, SourceLocation at) {
  Machine& m = machine();
  const auto mbarrier = use_mbarrier(m, *m.self().block, address, "mbarrier_test_wait_parity", at);
  if (test_parity(m, *mbarrier, parity)) return true;
  m.yield_after_poll(at);
  return false;
}

bool mbarrier_try_wait_parity(uint32_t address, uint32_t parity, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  const auto mbarrier = use_mbarrier(m, *m.self().block, address, "mbarrier_try_wait_parity", at);
  if (test_parity(m, *mbarrier, parity)) return true;
  if (m.random_order() && m.draw(4) == 0) {  // its time is up
    m.yield_after_poll(at);
    return false;
  }
  mbarrier->waiting.push_back(&m.self());
  Wait wait;
  wait.what = Wait::For::mbarrier;
  wait.at = at;
  wait.mbarrier = mbarrier;
  wait.parity = parity;
  m.block(std::move(wait));
  return test_parity(m, *mbarrier, parity);
}

}  // namespace blockscale::emulator
