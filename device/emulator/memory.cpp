// Loads, stores and atomics of threads.
#include <cstring>

#include "device/emulator/machine.h"
#include "device/emulator/meaning/reduce.h"

namespace blockscale::emulator {
namespace {

uint64_t address_of(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

bool aligned(Machine& m, uint64_t address, uint32_t bytes, const char* name, SourceLocation at) {
  if (address % bytes == 0) return true;
  m.report(FindingKind::misaligned, {at},
           std::string(name) + " at " + text_of(at) + " by " + m.describe(m.self()) +
               ": its address is no multiple of its " + std::to_string(bytes) + " bytes");
  return false;
}

/// Memory order of an atomic access. Without acquire and release, what it releases is what a fence,
/// or a release of the same word, has before it; and what it reads a fence, or an acquire of the
/// same word, acquires after it. PTX ISA "Release and Acquire Patterns".
struct Order {
  bool acquire = false;
  bool release = false;
};

/// The thread has read the value of `p`, which has released `word`.
void acquire_word(Machine& m, const void* p, const GlobalRelease& word, bool acquires) {
  Thread& thread = m.self();
  if (!acquires) {
    if (!word.empty()) thread.to_acquire[p].add(word);
    return;
  }
  const uint32_t cluster = thread.cluster->index;
  if (!word.empty()) m.acquire(thread, word.view(cluster));
  const auto read_before = thread.to_acquire.find(p);
  if (read_before == thread.to_acquire.end()) return;
  m.acquire(thread, read_before->second.view(cluster));
  thread.to_acquire.erase(read_before);
}

/// What the thread's write to `p` releases, or null. The newest of its views that count says all
/// that the older ones do.
const Views* view_to_release(Thread& thread, const void* p, bool releases) {
  if (releases) return &(thread.released[p] = thread.views);
  const auto before = thread.released.find(p);
  if (before != thread.released.end()) return &before->second;
  return thread.has_fenced ? &thread.fenced : nullptr;
}

void synchronize(Machine& m, const void* p, AccessKind kind, Order order) {
  Thread& thread = m.self();
  GlobalRelease& word = m.released_words[p];
  if (reads(kind)) acquire_word(m, p, word, order.acquire);
  if (!writes(kind)) return;
  // Only a read-modify-write passes on what the value before it has released: a store ends that.
  // (A weak store needs no rule: it is a race, or so ordered that who reads its value knows all
  // that was released before.)
  if (kind == AccessKind::atomic_store) word = {};
  const Views* views = view_to_release(thread, p, order.release);
  if (views != nullptr) word.add(*views, thread.cluster->index, thread.engines);
  if (order.release) m.tick(thread);
}

/// Checks an atomic access to global memory, and says whether it may be done.
bool access_atomic(Machine& m, const void* p, uint32_t bytes, AccessKind kind, Order order,
                   const char* name, SourceLocation at) {
  if (!aligned(m, address_of(p), bytes, name, at)) return false;
  if (!m.access_global(p, bytes, m.accessor(m.self(), kind, at), name)) return false;
  synchronize(m, p, kind, order);
  return true;
}

constexpr const char* kLoadNames[] = {"ld_global", "ld_global_nc", "ld_relaxed_gpu_global",
                                      "ld_acquire_gpu_global"};
constexpr const char* kStoreNames[] = {"st_global", "st_relaxed_gpu_global",
                                       "st_release_gpu_global"};
constexpr const char* kAtomicNames[] = {"atom_global_add",  "atom_global_min", "atom_global_max",
                                        "atom_global_and",  "atom_global_or",  "atom_global_xor",
                                        "atom_global_exch", "atom_global_inc", "atom_global_dec"};

}  // namespace

void load_global(const void* p, uint32_t bytes, LoadKind kind, void* value, SourceLocation at) {
  Machine& m = machine();
  const char* name = kLoadNames[static_cast<int>(kind)];
  std::memset(value, 0, bytes);
  if (kind == LoadKind::relaxed || kind == LoadKind::acquire) {
    m.yield_after_poll(at);  // before it reads, so that polling makes room for others
    const Order order = {.acquire = kind == LoadKind::acquire};
    if (!access_atomic(m, p, bytes, AccessKind::atomic_load, order, name, at)) return;
  } else {
    m.note_read(at);
    if (!aligned(m, address_of(p), bytes, name, at)) return;
    const AccessKind access = kind == LoadKind::read_only ? AccessKind::read_nc : AccessKind::read;
    if (!m.access_global(p, bytes, m.accessor(m.self(), access, at), name)) return;
  }
  std::memcpy(value, p, bytes);
}

void store_global(void* p, uint32_t bytes, StoreKind kind, const void* value, SourceLocation at) {
  Machine& m = machine();
  const char* name = kStoreNames[static_cast<int>(kind)];
  if (kind == StoreKind::weak) {
    if (!aligned(m, address_of(p), bytes, name, at)) return;
    if (!m.access_global(p, bytes, m.accessor(m.self(), AccessKind::write, at), name)) return;
  } else {
    const Order order = {.release = kind == StoreKind::release};
    if (!access_atomic(m, p, bytes, AccessKind::atomic_store, order, name, at)) return;
  }
  m.progress();
  std::memcpy(p, value, bytes);
}

uint32_t atomic_global(ReduceOp op, uint32_t* p, uint32_t value, SourceLocation at,
                       bool acquire_release) {
  Machine& m = machine();
  m.maybe_preempt();
  m.note_read(at);
  const char* name = kAtomicNames[static_cast<int>(op)];
  const Order order = {acquire_release, acquire_release};
  if (!access_atomic(m, p, 4, AccessKind::atomic_update, order, name, at)) return 0;
  const uint32_t old = *p;
  *p = meaning::reduce(op, old, value);
  if (*p != old) m.progress();
  return old;
}

void atomic_global_add(float* p, float value, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  if (!access_atomic(m, p, 4, AccessKind::atomic_update, {}, "red_global_add", at)) return;
  *p = meaning::atomic_add_f32(*p, value);
  m.progress();
}

void atomic_global_add_words(Format dtype, uint32_t* p, const uint32_t* values, uint32_t words,
                             SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  constexpr const char* kName = "red_global_add";
  if (!aligned(m, address_of(p), 4 * words, kName, at)) return;
  for (uint32_t i = 0; i < words; ++i) {
    if (!access_atomic(m, p + i, 4, AccessKind::atomic_update, {}, kName, at)) return;
    uint32_t old = 0;
    std::memcpy(&old, p + i, 4);  // of 16-bit numbers, as a rule
    const uint32_t sum = meaning::atomic_add_word(dtype, old, values[i]);
    std::memcpy(p + i, &sum, 4);
  }
  m.progress();
}

uint32_t atomic_global_cas(uint32_t* p, uint32_t expected, uint32_t value, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  if (!access_atomic(m, p, 4, AccessKind::atomic_update, {}, "atom_global_cas", at)) return 0;
  const uint32_t old = *p;
  if (old == expected) {
    *p = value;
    m.progress();
  } else {
    m.yield_after_poll(at);  // a loop that waits for `expected`
  }
  return old;
}

void prefetch(const void* p, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  if (bytes != 1 && (address_of(p) % 16 != 0 || bytes % 16 != 0)) {
    m.report(FindingKind::misaligned, {at},
             "cp_async_bulk_prefetch_l2 at " + text_of(at) + " by " + m.describe(m.self()) +
                 ": its address and its " + std::to_string(bytes) +
                 " bytes are to be multiples of 16");
  }
  m.check_prefetch(p, bytes, at);
}

uint32_t shared_base() {
  return kSharedBase;
}

void load_shared(uint32_t address, uint32_t bytes, void* value, SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  std::memset(value, 0, bytes);
  m.note_read(at);
  if (!aligned(m, address, bytes, "ld_shared", at)) return;
  const Accessor accessor = m.accessor(thread, AccessKind::read, at);
  if (!m.access_shared(*thread.block, address, bytes, accessor, "ld_shared")) return;
  std::memcpy(value, thread.block->shared.data() + (address - kSharedBase), bytes);
}

void store_shared(uint32_t address, uint32_t bytes, const void* value, SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  if (!aligned(m, address, bytes, "st_shared", at)) return;
  const Accessor accessor = m.accessor(thread, AccessKind::write, at);
  if (!m.access_shared(*thread.block, address, bytes, accessor, "st_shared")) return;
  std::memcpy(thread.block->shared.data() + (address - kSharedBase), value, bytes);
  m.progress();
}

void accept_any_shared(uint32_t address, uint32_t bytes) {
  Block& block = *machine().self().block;
  for (uint64_t i = uint64_t{address} - kSharedBase, end = i + bytes; i < end; ++i) {
    SharedState& state = block.shared_state.at(i);
    if (state != SharedState::unwritten) continue;
    state = SharedState::written;
    block.shared.at(i) = std::byte{0xFF};
  }
}

uint32_t atomic_shared(ReduceOp op, uint32_t address, uint32_t value, SourceLocation at) {
  Machine& m = machine();
  m.maybe_preempt();
  m.note_read(at);
  Thread& thread = m.self();
  if (!aligned(m, address, 4, "atom_shared", at)) return 0;
  const Accessor accessor = m.accessor(thread, AccessKind::atomic_update, at);
  if (!m.access_shared(*thread.block, address, 4, accessor, "atom_shared")) return 0;
  std::byte* p = thread.block->shared.data() + (address - kSharedBase);
  uint32_t old = 0;
  std::memcpy(&old, p, sizeof(old));
  const uint32_t result = meaning::reduce(op, old, value);
  std::memcpy(p, &result, sizeof(result));
  if (result != old) m.progress();
  return old;
}

}  // namespace blockscale::emulator
