#include "blockscale/files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "blockscale/error.h"

namespace blockscale {
namespace {

/// Read by the signal handler, so of fixed size and never freed. `size` is 0 while unused; it is
/// written last and cleared first.
struct Slot {
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> size = 0;
  char path[256] = {};
};

constexpr int kSlots = 4096;
Slot slots[kSlots];
std::mutex slots_mutex;  // of writers

std::atomic<int> exit_status = 1;
struct sigaction previous_action;

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nobody is left to tell
}

const Slot* find_slot(std::uintptr_t address) {
  for (const Slot& slot : slots) {
    const std::size_t size = slot.size.load(std::memory_order_acquire);
    if (size != 0 && address - slot.begin.load(std::memory_order_relaxed) < size) return &slot;
  }
  return nullptr;
}

/// Only async-signal-safe calls.
void on_bus_error(int, siginfo_t* info, void*) {
  const Slot* slot = find_slot(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (info->si_code == BUS_ADRERR && slot != nullptr) {
    write_text("blockscale: ");
    write_text(slot->path);
    write_text(": the file shrank while it was read\n");
    ::_exit(exit_status.load());
  }
  // Not ours: the fault happens again under the handler that was there before.
  ::sigaction(SIGBUS, &previous_action, nullptr);
  if (info->si_code <= 0) ::raise(SIGBUS);  // sent by a process: it would not happen again
}

}  // namespace

WatchedMapping::WatchedMapping(const std::byte* data, std::size_t size, const std::string& path) {
  if (size == 0) return;
  const std::lock_guard lock(slots_mutex);
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    if (slot.size.load(std::memory_order_relaxed) != 0) continue;
    const std::size_t cut = path.size() < sizeof slot.path ? 0 : path.size() - sizeof slot.path + 1;
    std::memcpy(slot.path, path.c_str() + cut, path.size() - cut + 1);
    slot.begin.store(reinterpret_cast<std::uintptr_t>(data), std::memory_order_relaxed);
    slot.size.store(size, std::memory_order_release);
    slot_ = i;
    return;
  }
}

WatchedMapping::WatchedMapping(WatchedMapping&& other) noexcept
    : slot_(std::exchange(other.slot_, -1)) {}

WatchedMapping& WatchedMapping::operator=(WatchedMapping&& other) noexcept {
  if (this != &other) {
    release();
    slot_ = std::exchange(other.slot_, -1);
  }
  return *this;
}

WatchedMapping::~WatchedMapping() {
  release();
}

void WatchedMapping::release() noexcept {
  if (slot_ >= 0) slots[slot_].size.store(0, std::memory_order_release);
  slot_ = -1;
}

void exit_on_truncated_mapping(int status) {
  exit_status = status;
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    if (::sigaction(SIGBUS, &action, &previous_action) != 0) {
      throw Error(ErrorCode::io, "SIGBUS", "cannot set its handler");
    }
  });
}

}  // namespace blockscale
