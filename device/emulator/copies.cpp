// cp.async and cp.async.bulk: accesses are checked when a copy is issued, bytes move later.
#include "device/emulator/copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/emulator/meaning/reduce.h"

namespace blockscale::emulator {
namespace {

uint64_t address_of(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

std::byte* shared_at(Block& block, uint32_t address) {
  return block.shared.data() + (address - kSharedBase);
}

/// Ends all copies of the engine in groups up to `group`, and forgets them.
void wait_groups(Machine& m, Engine engine, uint32_t group) {
  Thread& thread = m.self();
  uint32_t& known = thread.views[kSeen].own[engine];
  std::erase_if(thread.copies, [&](const auto& copy) {
    if (copy->engine != engine || copy->group > group) return false;
    m.complete(*copy);
    known = std::max(known, copy->clock);
    return true;
  });
}

/// What cp.reduce.async.bulk does: ptx::BulkReduce, in its order.
struct BulkReduction {
  ReduceOp op;
  TensorMapElement element;
};
constexpr BulkReduction kBulkReductions[] = {
    {ReduceOp::kAdd, TensorMapElement::u32},       {ReduceOp::kAdd, TensorMapElement::s32},
    {ReduceOp::kAdd, TensorMapElement::u64},       {ReduceOp::kAdd, TensorMapElement::f16},
    {ReduceOp::kAdd, TensorMapElement::bf16},      {ReduceOp::kAdd, TensorMapElement::f32},
    {ReduceOp::kMin, TensorMapElement::u32},       {ReduceOp::kMax, TensorMapElement::u32},
    {ReduceOp::kMin, TensorMapElement::s32},       {ReduceOp::kMax, TensorMapElement::s32},
    {ReduceOp::kMin, TensorMapElement::f16},       {ReduceOp::kMax, TensorMapElement::f16},
    {ReduceOp::kMin, TensorMapElement::bf16},      {ReduceOp::kMax, TensorMapElement::bf16},
    {ReduceOp::kIncrement, TensorMapElement::u32}, {ReduceOp::kDecrement, TensorMapElement::u32},
    {ReduceOp::kAnd, TensorMapElement::u32},       {ReduceOp::kOr, TensorMapElement::u32},
    {ReduceOp::kXor, TensorMapElement::u32}};

uint32_t bytes_of(TensorMapElement element) {
  switch (element) {
    case TensorMapElement::f16:
    case TensorMapElement::bf16: return 2;
    case TensorMapElement::u64: return 8;
    default: return 4;
  }
}

}  // namespace

std::string by_whom(Machine& m, const char* name, SourceLocation at) {
  return std::string(name) + " at " + text_of(at) + " by " + m.describe(m.self());
}

bool check_multiple(Machine& m, uint64_t value, uint32_t unit, const char* what, const char* name,
                    SourceLocation at) {
  if (value % unit == 0) return true;
  m.report(FindingKind::misaligned, {at},
           by_whom(m, name, at) + ": " + what + " is to be a multiple of " + std::to_string(unit));
  return false;
}

std::shared_ptr<Mbarrier> use_mbarrier_async(Machine& m, const Block& block, uint32_t address,
                                             const char* name, SourceLocation at) {
  auto mbarrier = use_mbarrier(m, block, address, name, at);
  if (!mbarrier->init_published) {
    m.report(FindingKind::missing_proxy_fence, {at, mbarrier->init.at},
             by_whom(m, name, at) + " completes on mbarrier '" + mbarrier->name +
                 "', whose mbarrier_init at " + text_of(mbarrier->init.at) +
                 " the asynchronous proxy need not see: no fence_mbarrier_init after it");
    mbarrier->init_published = true;  // said once
  }
  return mbarrier;
}

Accessor load_accessor(Machine& m, const Mbarrier& mbarrier, AccessKind kind, SourceLocation at) {
  return m.async_accessor(m.self(), kind, mbarrier.index, mbarrier.phase + 1, true, at);
}

Accessor store_accessor(Machine& m, AccessKind kind, SourceLocation at) {
  Thread& thread = m.self();
  const Engine engine = kind == AccessKind::read ? kBulkRead : kBulkWrite;
  return m.async_accessor(thread, kind, thread.engines[engine], thread.bulk_group, true, at);
}

void issue_load(Machine& m, const std::shared_ptr<Mbarrier>& mbarrier, uint64_t bytes,
                const char* name, SourceLocation at, std::function<void()> move) {
  auto transfer = std::make_shared<Transfer>();
  transfer->name = name;
  transfer->at = at;
  transfer->bytes = bytes;
  transfer->perform = [&m, mbarrier, bytes, move = std::move(move)] {
    move();
    complete_bytes(m, *mbarrier, bytes);
  };
  attach(*mbarrier, transfer);
  m.add_transfer(std::move(transfer));
}

void issue_store(Machine& m, uint64_t bytes, const char* name, SourceLocation at,
                 std::function<void()> move) {
  Thread& thread = m.self();
  auto transfer = std::make_shared<Transfer>();
  transfer->name = name;
  transfer->at = at;
  transfer->bytes = bytes;
  transfer->perform = std::move(move);
  transfer->engine = kBulkRead;
  transfer->group = thread.bulk_group;
  transfer->clock = thread.bulk_group;
  thread.copies.push_back(transfer);
  m.add_transfer(std::move(transfer));
}

void cp_async(uint32_t destination, const void* source, uint32_t bytes, uint32_t source_bytes,
              SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  const char* name = "cp_async";
  if (!check_multiple(m, destination, bytes, "the shared address", name, at) ||
      !check_multiple(m, address_of(source), bytes, "the global address", name, at)) {
    return;
  }
  const auto engine = [&](AccessKind kind) {
    return m.async_accessor(thread, kind, thread.engines[kCpAsync], thread.cp_async_clock, false,
                            at);
  };
  source_bytes = std::min(source_bytes, bytes);
  if (!m.access_shared(*thread.block, destination, bytes, engine(AccessKind::write), name)) return;
  if (source_bytes != 0 && !m.access_global(source, source_bytes, engine(AccessKind::read), name)) {
    return;
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->name = name;
  transfer->at = at;
  transfer->bytes = bytes;
  transfer->engine = kCpAsync;
  transfer->group = thread.cp_async_group;
  transfer->clock = thread.cp_async_clock;
  std::byte* to = shared_at(*thread.block, destination);
  transfer->perform = [to, source, bytes, source_bytes] {
    std::memset(to, 0, bytes);
    if (source_bytes != 0) std::memcpy(to, source, source_bytes);
  };
  thread.copies.push_back(transfer);
  m.add_transfer(std::move(transfer));
}

void cp_async_commit_group(SourceLocation) {
  Thread& thread = machine().self();
  ++thread.cp_async_group;
  ++thread.cp_async_clock;
}

void cp_async_wait_group(uint32_t pending, SourceLocation) {
  Machine& m = machine();
  const uint32_t committed = m.self().cp_async_group - 1;
  if (committed > pending) wait_groups(m, kCpAsync, committed - pending);
}

void cp_async_wait_all(SourceLocation) {
  Machine& m = machine();
  wait_groups(m, kCpAsync, m.self().cp_async_group);
  ++m.self().cp_async_clock;
}

void cp_async_mbarrier_arrive(uint32_t address, SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  const char* name = "cp_async_mbarrier_arrive_noinc";
  const auto mbarrier = use_mbarrier(m, *thread.block, address, name, at);
  std::vector<std::shared_ptr<Transfer>> copies;
  for (const auto& copy : thread.copies) {
    if (copy->engine != kCpAsync) continue;
    copy->tracked = true;
    copies.push_back(copy);
  }
  auto arrival = std::make_shared<Transfer>();
  arrival->name = name;
  arrival->at = at;
  const uint32_t index = thread.engines[kCpAsync], clock = thread.cp_async_clock++;
  arrival->perform = [&m, mbarrier, copies = std::move(copies), index, clock] {
    for (const auto& copy : copies) m.complete(*copy);
    complete_arrival(m, *mbarrier, index, clock);
  };
  attach(*mbarrier, arrival);
  m.add_transfer(std::move(arrival));
}

void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t address,
               SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  const char* name = "cp_async_bulk_shared_global";
  const auto mbarrier = use_mbarrier_async(m, block, address, name, at);
  bool valid = check_multiple(m, destination, 16, "the shared address", name, at);
  valid = check_multiple(m, address_of(source), 16, "the global address", name, at) && valid;
  valid = check_multiple(m, bytes, 16, "the number of bytes", name, at) && valid;
  valid = valid && m.access_shared(block, destination, bytes,
                                   load_accessor(m, *mbarrier, AccessKind::write, at), name);
  valid = valid &&
          m.access_global(source, bytes, load_accessor(m, *mbarrier, AccessKind::read, at), name);
  // One that has been reported completes its bytes all the same, so that the run can go on.
  std::byte* to = valid ? shared_at(block, destination) : nullptr;
  issue_load(m, mbarrier, bytes, name, at, [to, source, bytes] {
    if (to != nullptr) std::memcpy(to, source, bytes);
  });
}

void bulk_store(void* destination, uint32_t source, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  const char* name = "cp_async_bulk_global_shared";
  if (!check_multiple(m, address_of(destination), 16, "the global address", name, at) ||
      !check_multiple(m, source, 16, "the shared address", name, at) ||
      !check_multiple(m, bytes, 16, "the number of bytes", name, at) ||
      !m.access_shared(block, source, bytes, store_accessor(m, AccessKind::read, at), name) ||
      !m.access_global(destination, bytes, store_accessor(m, AccessKind::write, at), name)) {
    return;
  }
  const std::byte* from = shared_at(block, source);
  issue_store(m, bytes, name, at,
              [destination, from, bytes] { std::memcpy(destination, from, bytes); });
}

void bulk_reduce(int op, void* destination, uint32_t source, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  const char* name = "cp_reduce_async_bulk_global_shared";
  if (!check_multiple(m, address_of(destination), 16, "the global address", name, at) ||
      !check_multiple(m, source, 16, "the shared address", name, at) ||
      !check_multiple(m, bytes, 16, "the number of bytes", name, at) ||
      !m.access_shared(block, source, bytes, store_accessor(m, AccessKind::read, at), name) ||
      !m.access_global(destination, bytes, store_accessor(m, AccessKind::atomic_update, at),
                       name)) {
    return;
  }
  const BulkReduction reduction = kBulkReductions[op];
  const std::byte* from = shared_at(block, source);
  auto* to = static_cast<std::byte*>(destination);
  issue_store(m, bytes, name, at, [reduction, to, from, bytes] {
    const uint32_t step = bytes_of(reduction.element);
    for (uint32_t i = 0; i < bytes; i += step) {
      meaning::reduce_element(reduction.op, reduction.element, to + i, from + i);
    }
  });
}

void bulk_commit_group(SourceLocation) {
  ++machine().self().bulk_group;
}

void bulk_wait_group(uint32_t pending, bool reads_only, SourceLocation) {
  Machine& m = machine();
  Thread& thread = m.self();
  const uint32_t committed = thread.bulk_group - 1;
  if (committed <= pending) return;
  wait_groups(m, kBulkRead, committed - pending);
  if (!reads_only) {
    uint32_t& written = thread.views[kSeen].own[kBulkWrite];
    written = std::max(written, committed - pending);
  }
}

}  // namespace blockscale::emulator
