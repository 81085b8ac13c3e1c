// wgmma: threads say what they issue; a product is done when the last thread of the warpgroup has
// issued it, which nobody can see before a wait; waits wait until all have committed the group.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "device/emulator/machine.h"

namespace blockscale::emulator {
namespace {

using meaning::kWgmmaBytes;
using meaning::kWgmmaRows;
using meaning::kWgmmaThreads;
using Kind = WgmmaStep::Kind;
using Registers = WgmmaThread::Registers;

constexpr const char* kName = "wgmma_mma_async";

std::string who(Machine& m, const char* name, SourceLocation at) {
  return std::string(name) + " at " + text_of(at) + " by " + m.describe(m.self());
}

std::string warps_text(const Warpgroup& warpgroup) {
  const uint32_t first = 4 * warpgroup.index;
  return "warps " + std::to_string(first) + " to " + std::to_string(first + 3);
}

std::string step_text(const WgmmaStep& step) {
  switch (step.kind) {
    case Kind::fence: return "wgmma_fence";
    case Kind::product: return std::string(kName) + " at " + text_of(step.at);
    case Kind::commit: return "wgmma_commit_group at " + text_of(step.at);
    case Kind::wait: return "wgmma_wait_group<" + std::to_string(step.parameter) + ">";
  }
  return "";
}

Warpgroup& warpgroup_of(Machine& m, const char* name, SourceLocation at) {
  Thread& thread = m.self();
  Block& block = *thread.block;
  const uint32_t index = thread.index / kWgmmaThreads;
  if (index >= block.warpgroups.size()) {
    m.fail(FindingKind::divergent_collective, {at},
           who(m, name, at) + ": a warpgroup is 4 warps, from a multiple of 4 on; the block has " +
               std::to_string(block.warps.size()));
  }
  return *block.warpgroups[index];
}

bool has_line(const SourceLocation& at) {
  return at.line() != 0;
}

/// Adds the step's line. Fences and waits have none: that of the thread's newest product or commit.
void add_line(std::vector<SourceLocation>& lines, const WgmmaStep& step, const Thread& thread) {
  const SourceLocation at = has_line(step.at) ? step.at : thread.wgmma.at;
  if (has_line(at)) lines.push_back(at);
}

[[noreturn]] void fail_divergent(Machine& m, const WgmmaStep& mine, const WgmmaStep& other) {
  Thread& thread = m.self();
  std::vector<SourceLocation> lines;
  add_line(lines, mine, thread);
  add_line(lines, other, *other.first);
  std::string text = m.describe(thread) + " executes " + step_text(mine) + " where " +
                     m.describe(*other.first) + " of the same warpgroup executed " +
                     step_text(other);
  if (mine.kind == Kind::product && other.kind == mine.kind && same_line(mine.at, other.at)) {
    text += ": their operands differ";
  }
  m.fail(FindingKind::divergent_collective, lines, text);
}

bool same_step(const WgmmaStep& a, const WgmmaStep& b) {
  if (a.kind != b.kind || a.parameter != b.parameter) return false;
  if (a.kind == Kind::commit) return same_line(a.at, b.at);
  if (a.kind != Kind::product) return true;
  return same_line(a.at, b.at) && a.operands == b.operands;
}

/// What this thread does next, after checking that the others of its warpgroup do the same.
WgmmaStep& take_step(Machine& m, Warpgroup& warpgroup, WgmmaStep mine) {
  Thread& thread = m.self();
  const uint64_t index = thread.wgmma.steps++ - warpgroup.ended;
  if (index == warpgroup.steps.size()) {
    if (warpgroup.exited != nullptr && has_line(mine.at)) {
      m.fail(FindingKind::divergent_collective, {mine.at},
             m.describe(thread) + " executes " + step_text(mine) + ", but " +
                 m.describe(*warpgroup.exited) + " of the same warpgroup (" +
                 warps_text(warpgroup) + ") has exited: all 128 threads execute it");
    }
    mine.first = &thread;
    return warpgroup.steps.emplace_back(std::move(mine));
  }
  WgmmaStep& step = warpgroup.steps[index];
  if (!same_step(mine, step)) fail_divergent(m, mine, step);
  return step;
}

// --- The product ---

/// Bytes of an operand's rows, one row after the other; false where they cannot be read.
bool gather(Machine& m, Block& block, const meaning::WgmmaOperand& operand, uint32_t rows,
            const Accessor& accessor, std::byte* bytes) {
  constexpr uint32_t kChunk = 16;  // what a swizzle leaves together
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t first = meaning::wgmma_address(operand, row, 0);
    const uint32_t second = meaning::wgmma_address(operand, row, kChunk);
    // Two chunks that a swizzle may exchange, for the row begins at a multiple of two.
    if (!m.access_shared(block, std::min(first, second), kWgmmaBytes, accessor, kName)) {
      return false;
    }
    const std::byte* shared = block.shared.data();
    std::memcpy(bytes + row * kWgmmaBytes, shared + (first - kSharedBase), kChunk);
    std::memcpy(bytes + row * kWgmmaBytes + kChunk, shared + (second - kSharedBase), kChunk);
  }
  return true;
}

void gather_registers(const WgmmaProduct& product, std::byte* bytes) {
  for (uint32_t thread = 0; thread < kWgmmaThreads; ++thread) {
    for (uint32_t i = 0; i < 4; ++i) {
      const auto place = meaning::wgmma_place_of_a(thread, i);
      std::memcpy(bytes + place.row * kWgmmaBytes + place.column, &product.a[thread][i], 4);
    }
  }
}

/// What every thread of the warpgroup knows when it issues the product: each warp reads its part.
Views known_to_all(const WgmmaProduct& product) {
  std::array<ClockPointer, 2> known = product.known.front();
  for (const auto& other : product.known) {
    for (uint32_t view = 0; view < 2; ++view) {
      known[view] = known_to_both(known[view], other[view]);
    }
  }
  Views views;
  views[kSeen].base = known[0];
  views[kPublishedShared].base = known[1];
  return views;
}

/// Room for the work, not on a fiber's stack.
struct Room {
  std::byte a[kWgmmaRows * kWgmmaBytes];
  std::byte b[meaning::kWgmmaMaxN * kWgmmaBytes];
  meaning::WgmmaTiles tiles;
};

void perform(Machine& m, Block& block, const Warpgroup& warpgroup, const WgmmaStep& step) {
  thread_local const auto room = std::make_unique<Room>();
  const WgmmaProduct& product = *step.product;
  const WgmmaOperands& o = step.operands;
  Thread& leader = *block.threads[warpgroup.index * kWgmmaThreads];
  const Views views = known_to_all(product);
  Accessor accessor = m.async_accessor(leader, AccessKind::read, leader.engines.wgmma,
                                       step.parameter, true, step.at);
  accessor.views = &views;
  if (o.a_in_registers) {
    gather_registers(product, room->a);
  } else if (!gather(m, block, meaning::decode_wgmma_descriptor(o.a_descriptor), kWgmmaRows,
                     accessor, room->a)) {
    return;
  }
  if (!gather(m, block, meaning::decode_wgmma_descriptor(o.b_descriptor), o.n, accessor, room->b)) {
    return;
  }
  const Format a = meaning::kWgmmaFormats[static_cast<std::size_t>(o.a_element)];
  const Format b = meaning::kWgmmaFormats[static_cast<std::size_t>(o.b_element)];
  meaning::WgmmaTiles& tiles = room->tiles;
  meaning::wgmma_decode_a(a, room->a, tiles);
  meaning::wgmma_decode_b(b, room->b, o.n, tiles);
  meaning::wgmma_multiply(o.n, meaning::wgmma_k(a), tiles);
  for (uint32_t thread = 0; thread < kWgmmaThreads; ++thread) {
    for (uint32_t i = 0; i < o.n / 2; ++i) {
      const auto place = meaning::wgmma_place_of_d(thread, i);
      float& d = product.d[thread][i];
      const double products = tiles.sums[place.column / 8][place.row][place.column % 8];
      d = meaning::wgmma_accumulate(o.accumulate ? d : 0.0f, products);
    }
  }
}

std::unique_ptr<WgmmaProduct> take_product(Warpgroup& warpgroup) {
  if (warpgroup.free_products.empty()) return std::make_unique<WgmmaProduct>();
  auto product = std::move(warpgroup.free_products.back());
  warpgroup.free_products.pop_back();
  return product;
}

/// Another thread has executed the step; the last one ends it.
void arrive(Machine& m, Warpgroup& warpgroup, WgmmaStep& step) {
  if (++step.arrived != kWgmmaThreads) return;
  // Threads execute steps in order, so that it is the first one that is left.
  WgmmaStep done = std::move(warpgroup.steps.front());
  warpgroup.steps.pop_front();
  ++warpgroup.ended;
  if (done.kind == Kind::commit) {
    warpgroup.completed_group = done.parameter;
    for (Thread* waiting : warpgroup.waiting) m.wake(*waiting);
    warpgroup.waiting.clear();
  } else if (done.kind == Kind::product) {
    perform(m, *m.self().block, warpgroup, done);
    done.product->known.clear();
    warpgroup.free_products.push_back(std::move(done.product));
  }
  m.progress();
}

// --- Registers ---

bool pending(const WgmmaThread& wgmma, const Registers& registers) {
  return registers.group > wgmma.waited_group;
}

Registers& registers_at(WgmmaThread& wgmma, const void* first) {
  for (Registers& registers : wgmma.registers) {
    if (registers.first == first) return registers;
  }
  Registers& added = wgmma.registers.emplace_back();
  added.first = first;
  return added;
}

/// Checks and notes that a product at `at` uses these registers; with n > 0 they are its D.
void use_registers(Machine& m, const void* first, uint32_t n, SourceLocation at) {
  WgmmaThread& wgmma = m.self().wgmma;
  Registers& registers = registers_at(wgmma, first);
  const std::string what = n != 0 ? "accumulator" : "A registers";
  if (!wgmma.has_fenced) {
    m.report(FindingKind::missing_wgmma_fence, {at},
             who(m, kName, at) + " is its first product: no wgmma_fence before it");
  } else if (registers.accessed) {
    m.report(FindingKind::missing_wgmma_fence, {at, registers.access},
             who(m, kName, at) + ": no wgmma_fence between the access to its " + what + " at " +
                 text_of(registers.access) + " and the product");
  } else if (registers.n != 0 && n != 0 && registers.n != n) {
    m.report(FindingKind::missing_wgmma_fence, {at, registers.product},
             who(m, kName, at) + ": no wgmma_fence between the product at " +
                 text_of(registers.product) + " with n = " + std::to_string(registers.n) +
                 " and this one with n = " + std::to_string(n) + " in the same accumulator");
  }
  registers.group = wgmma.open_group;
  registers.n = n;
  registers.product = at;
}

void report_pending(Machine& m, const Registers& registers, std::vector<SourceLocation> lines,
                    const std::string& what) {
  const WgmmaThread& wgmma = m.self().wgmma;
  m.report(
      FindingKind::pending_registers, std::move(lines),
      what + " registers of the " + kName + " at " + text_of(registers.product) + ", " +
          (registers.group == wgmma.open_group ? "which no wgmma_commit_group has put into a group"
                                               : "whose group no wgmma_wait_group has waited for"));
}

void check_descriptor(Machine& m, const char* operand, uint64_t bits, SourceLocation at) {
  const meaning::WgmmaOperand o = meaning::decode_wgmma_descriptor(bits);
  const auto invalid = [&](const std::string& why) {
    m.fail(FindingKind::invalid_operand, {at},
           who(m, kName, at) + ": the descriptor of " + operand + " " + why);
  };
  if (o.swizzle == TensorMapSwizzle::none) invalid("has no swizzle, which the emulator lacks");
  if (o.base_offset != 0) invalid("has a base offset: its rows are to begin at a multiple of 8");
  if (o.has_other_bits) invalid("has bits set that are to be 0");
  if (meaning::wgmma_start_aligned(o)) return;
  const uint32_t span = swizzle_span(o.swizzle);
  m.fail(FindingKind::misaligned, {at},
         who(m, kName, at) + ": " + operand + " starts at offset " +
             std::to_string(static_cast<int64_t>(o.start) - kSharedBase) +
             " of shared memory; with rows of " + std::to_string(span) + " bytes it is to start " +
             "at a multiple of 32 of a row, and the row at a multiple of " +
             std::to_string(8 * span));
}

void check_operands(Machine& m, const WgmmaOperands& o, SourceLocation at) {
  const Format a = meaning::kWgmmaFormats[static_cast<std::size_t>(o.a_element)];
  const Format b = meaning::kWgmmaFormats[static_cast<std::size_t>(o.b_element)];
  if (!meaning::wgmma_elements_meet(a, b)) {
    m.fail(FindingKind::invalid_operand, {at},
           who(m, kName, at) + ": there is no product of " + format_traits(a).name + " and " +
               format_traits(b).name);
  }
  if (!o.a_in_registers) check_descriptor(m, "A", o.a_descriptor, at);
  check_descriptor(m, "B", o.b_descriptor, at);
}

}  // namespace

void wgmma_fence() {
  Machine& m = machine();
  Warpgroup& warpgroup = warpgroup_of(m, "wgmma_fence", m.self().wgmma.at);
  arrive(m, warpgroup, take_step(m, warpgroup, {.kind = Kind::fence, .at = {}}));
  WgmmaThread& wgmma = m.self().wgmma;
  wgmma.has_fenced = true;
  std::erase_if(wgmma.registers, [&](const Registers& r) { return !pending(wgmma, r); });
  for (Registers& registers : wgmma.registers) {
    registers.accessed = false;
    registers.n = 0;
  }
}

void wgmma(int a_element, int b_element, int n, float* d, uint64_t a_descriptor,
           const uint32_t* a_registers, uint64_t b_descriptor, bool accumulate, SourceLocation at) {
  Machine& m = machine();
  m.require(Feature::wgmma, kName, at);
  m.maybe_preempt();
  Thread& thread = m.self();
  Warpgroup& warpgroup = warpgroup_of(m, kName, at);
  const bool in_registers = a_registers != nullptr;
  const WgmmaOperands operands = {a_element,    b_element,    static_cast<uint32_t>(n),
                                  in_registers, a_descriptor, b_descriptor,
                                  accumulate};
  thread.wgmma.at = at;
  WgmmaStep& step = take_step(m, warpgroup,
                              {.kind = Kind::product,
                               .parameter = thread.wgmma.open_group,
                               .at = at,
                               .operands = operands});
  if (step.product == nullptr) {
    check_operands(m, operands, at);
    step.product = take_product(warpgroup);
  }
  use_registers(m, d, operands.n, at);
  if (in_registers) use_registers(m, a_registers, 0, at);
  WgmmaProduct& product = *step.product;
  const uint32_t index = thread.index % kWgmmaThreads;
  product.d[index] = d;
  if (in_registers) std::copy_n(a_registers, 4, product.a[index].begin());
  const std::array<ClockPointer, 2> known = {thread.views[kSeen].base,
                                             thread.views[kPublishedShared].base};
  if (std::find(product.known.begin(), product.known.end(), known) == product.known.end()) {
    product.known.push_back(known);
  }
  arrive(m, warpgroup, step);
}

void wgmma_commit_group(SourceLocation at) {
  Machine& m = machine();
  m.require(Feature::wgmma, "wgmma_commit_group", at);
  WgmmaThread& wgmma = m.self().wgmma;
  Warpgroup& warpgroup = warpgroup_of(m, "wgmma_commit_group", at);
  wgmma.at = at;
  arrive(m, warpgroup,
         take_step(m, warpgroup, {.kind = Kind::commit, .parameter = wgmma.open_group, .at = at}));
  ++wgmma.open_group;
}

void wgmma_wait_group(int pending) {
  Machine& m = machine();
  Thread& thread = m.self();
  WgmmaThread& wgmma = thread.wgmma;
  Warpgroup& warpgroup = warpgroup_of(m, "wgmma_wait_group", wgmma.at);
  const uint32_t left = static_cast<uint32_t>(pending);
  arrive(m, warpgroup, take_step(m, warpgroup, {.kind = Kind::wait, .parameter = left, .at = {}}));
  const uint32_t committed = wgmma.open_group - 1;
  if (committed <= left || committed - left <= wgmma.waited_group) return;
  const uint32_t group = committed - left;
  while (warpgroup.completed_group < group) {
    warpgroup.waiting.push_back(&thread);
    Wait wait;
    wait.what = Wait::For::wgmma;
    wait.at = wgmma.at;
    wait.id = group;
    m.block(std::move(wait));
  }
  wgmma.waited_group = group;
  thread.views[kSeen].own[kWgmma] = group;
}

void wgmma_access_registers(const void* first, SourceLocation at) {
  Machine& m = machine();
  WgmmaThread& wgmma = m.self().wgmma;
  Registers& registers = registers_at(wgmma, first);
  if (pending(wgmma, registers)) {
    report_pending(m, registers, {at, registers.product},
                   "the access at " + text_of(at) + " by " + m.describe(m.self()) + " is to");
  }
  registers.accessed = true;
  registers.access = at;
}

void wgmma_release_registers(const void* first) {
  Machine& m = machine();
  const WgmmaThread& wgmma = m.self().wgmma;
  for (const Registers& registers : wgmma.registers) {
    if (registers.first != first || !pending(wgmma, registers)) continue;
    report_pending(m, registers, {registers.product},
                   "the wgmma_wait_group behind " + text_of(wgmma.at) + " by " +
                       m.describe(m.self()) + " names");
  }
}

void leave_warpgroup(Machine& m, Thread& thread) {
  const std::size_t index = thread.index / kWgmmaThreads;
  if (index >= thread.block->warpgroups.size()) return;
  Warpgroup& warpgroup = *thread.block->warpgroups[index];
  const WgmmaThread& wgmma = thread.wgmma;
  for (const Registers& registers : wgmma.registers) {
    if (!pending(wgmma, registers)) continue;
    m.report(FindingKind::outstanding_at_exit, {registers.product},
             m.describe(thread) + " exits, and has not waited for its " + kName + " at " +
                 text_of(registers.product) +
                 ": no wgmma_commit_group and wgmma_wait_group cover it");
  }
  if (warpgroup.exited == nullptr) warpgroup.exited = &thread;
  const uint64_t step = wgmma.steps - warpgroup.ended;
  if (step >= warpgroup.steps.size()) return;
  const WgmmaStep& missing = warpgroup.steps[step];
  std::vector<SourceLocation> lines;
  add_line(lines, missing, *missing.first);
  if (lines.empty()) return;  // the others' first product will say so
  m.report(FindingKind::divergent_collective, lines,
           m.describe(thread) + " exits without the " + step_text(missing) + " that " +
               m.describe(*missing.first) + " of the same warpgroup (" + warps_text(warpgroup) +
               ") executed: all 128 threads execute it");
  m.stop();
}

std::string group_text(const Warpgroup& warpgroup, uint32_t group) {
  uint32_t arrived = 0;
  for (const WgmmaStep& step : warpgroup.steps) {
    if (step.kind == Kind::commit && step.parameter == group) arrived = step.arrived;
  }
  return std::to_string(arrived) + " of the 128 threads of " + warps_text(warpgroup) +
         " have committed them";
}

void setmaxnreg(bool increase, uint32_t registers, SourceLocation at) {
  Machine& m = machine();
  const char* name = increase ? "setmaxnreg_inc" : "setmaxnreg_dec";
  meet_lanes(name, ~0u, registers, at);
  Warp& warp = *m.self().warp;
  if (warp.registers != 0 && warp.registers != registers &&
      increase != (registers > warp.registers)) {
    m.report(FindingKind::invalid_operand, {at},
             who(m, name, at) + " to " + std::to_string(registers) + " registers, of the " +
                 std::to_string(warp.registers) + " that the warp has");
  }
  warp.registers = registers;
  constexpr uint32_t kRegisters = 64 * 1024;  // of a multiprocessor
  uint32_t sum = 0;
  for (const auto& other : m.self().block->warps) sum += kWarpSize * other->registers;
  if (!increase || sum <= kRegisters) return;
  m.report(FindingKind::invalid_operand, {at},
           who(m, name, at) + ": the warps of the block that executed setmaxnreg have " +
               std::to_string(sum) + " registers, a multiprocessor " + std::to_string(kRegisters) +
               ": it waits for ever");
}

}  // namespace blockscale::emulator
