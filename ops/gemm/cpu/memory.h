// Where a CPU product has its memory from: the caller's workspace, or the heap.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

#include "core/config.h"

namespace blockscale::gemm_detail {

inline constexpr std::int64_t kMemoryAlignment = 64;

struct FreeArray {
  bool owns = true;
  template <class T>
  void operator()(T* data) const {
    if (owns) hwy::FreeAlignedBytes(data, nullptr, nullptr);
  }
};
template <class T>
using Array = std::unique_ptr<T[], FreeArray>;

/// An uninitialised, aligned array of the heap.
template <class T>
Array<T> allocate(std::int64_t count) {
  auto result = hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<std::int64_t>(1, count)));
  if (result == nullptr) throw std::bad_alloc();
  return Array<T>(result.release());
}

/// Uninitialised, aligned arrays: of the heap, one after the other of a workspace, or, where that
/// is null, counted only.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::uint8_t* workspace) : is_heap_(false), next_(workspace) {}

  template <class T>
  Array<T> take(std::int64_t count) {
    if (is_heap_) return allocate<T>(count);
    const std::int64_t size = count * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t bytes = ceil_div(size, kMemoryAlignment) * kMemoryAlignment;
    taken_ += bytes;
    if (next_ == nullptr) return Array<T>(nullptr, {false});
    T* const data = reinterpret_cast<T*>(next_);
    next_ += bytes;
    return Array<T>(data, {false});
  }
  std::int64_t taken() const { return taken_; }  // bytes of a workspace

 private:
  bool is_heap_ = true;
  std::uint8_t* next_ = nullptr;
  std::int64_t taken_ = 0;
};

/// `count` bytes of the calling thread, aligned and uninitialised, until its next call. They are
/// kept from task to task: what the kernel asks to map them anew takes as long as a small task.
inline std::uint8_t* thread_scratch(std::int64_t count) {
  thread_local Array<std::uint8_t> scratch;
  thread_local std::int64_t size = 0;
  if (size < count) {
    scratch = allocate<std::uint8_t>(count);
    size = count;
  }
  return scratch.get();
}

/// Slots of a workspace, each used by one task at a time.
class Slots {
 public:
  using Flag = std::atomic<bool>;

  Slots() = default;
  Slots(std::uint8_t* workspace, std::int64_t count, std::int64_t bytes)
      : flags_(reinterpret_cast<Flag*>(workspace)),
        data_(workspace + flag_bytes(count)),
        count_(count),
        bytes_(bytes) {
    for (std::int64_t i = 0; i < count; ++i) new (flags_ + i) Flag(false);
  }
  static std::int64_t bytes_of(std::int64_t count, std::int64_t bytes) {
    return flag_bytes(count) + count * bytes;
  }
  bool is_empty() const { return count_ == 0; }

  /// A slot, for the life of this. There are as many as threads, so one is free, or soon is.
  class Use {
   public:
    explicit Use(const Slots& slots) {
      for (std::int64_t i = 0;; i = i + 1 < slots.count_ ? i + 1 : 0) {
        flag_ = slots.flags_ + i;
        data_ = slots.data_ + i * slots.bytes_;
        if (!flag_->exchange(true, std::memory_order_acquire)) return;
        if (i + 1 == slots.count_) std::this_thread::yield();
      }
    }
    ~Use() { flag_->store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    std::uint8_t* data() const { return data_; }

   private:
    Flag* flag_ = nullptr;
    std::uint8_t* data_ = nullptr;
  };

 private:
  static std::int64_t flag_bytes(std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(Flag));
    return ceil_div(bytes, kMemoryAlignment) * kMemoryAlignment;
  }

  Flag* flags_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace blockscale::gemm_detail
