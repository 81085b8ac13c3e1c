#include "device/emulator/fiber.h"

#include <sys/mman.h>

#include <boost/context/stack_context.hpp>
#include <new>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKSCALE_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define BLOCKSCALE_ASAN 1
#endif
#if defined(BLOCKSCALE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

// A fake stack for each fiber, for finding uses after return, would cost a megabyte and a mapping.
extern "C" const char* __asan_default_options() {
  return "detect_stack_use_after_return=0";
}
#endif

namespace blockscale::emulator {
namespace {

constexpr std::size_t kPage = 4096;
#if defined(BLOCKSCALE_ASAN)
constexpr std::size_t kStackBytes = 256 * 1024;  // its frames are several times as large
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

/// Stacks with a page below each that ends the program when it is touched. Kept for later launches
/// of this thread.
class StackPool {
 public:
  ~StackPool() {
    for (std::byte* stack : free_) munmap(stack - kPage, kStackBytes + kPage);
  }

  std::byte* take() {
    if (!free_.empty()) {
      std::byte* stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* memory = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (mprotect(memory, kPage, PROT_NONE) != 0) {
      munmap(memory, kStackBytes + kPage);
      throw std::bad_alloc();
    }
    return static_cast<std::byte*>(memory) + kPage;
  }

  void give_back(std::byte* stack) {
#if defined(BLOCKSCALE_ASAN)
    __asan_unpoison_memory_region(stack, kStackBytes);  // frames of the fiber that is gone
#endif
    free_.push_back(stack);
  }

 private:
  std::vector<std::byte*> free_;
};
thread_local StackPool stack_pool;

/// For boost::context: the stack is the Fiber's.
struct BorrowedStack {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) noexcept {}
};

void start_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] std::size_t bytes) {
#if defined(BLOCKSCALE_ASAN)
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#endif
}

void finish_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom,
                   [[maybe_unused]] std::size_t* bytes) {
#if defined(BLOCKSCALE_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
#endif
}

}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) stack_pool.give_back(stack_);
}

void Fiber::start(std::function<void()> function) {
  if (stack_ == nullptr) stack_ = stack_pool.take();
  function_ = std::move(function);
  finished_ = false;
  cancelled_ = false;
  fake_stack_ = nullptr;
  boost::context::stack_context context;
  context.size = kStackBytes;
  context.sp = stack_ + kStackBytes;
  self_ = boost::context::fiber(std::allocator_arg,
                                boost::context::preallocated(context.sp, context.size, context),
                                BorrowedStack{}, [this](boost::context::fiber&& scheduler) {
                                  scheduler_ = std::move(scheduler);
                                  enter();
                                  return std::move(scheduler_);
                                });
}

void Fiber::enter() {
  finish_switch(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
  if (!cancelled_) {
    try {
      function_();
    } catch (const Cancelled&) {
    }
  }
  finished_ = true;
  start_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  start_switch(&fake_stack, stack_, kStackBytes);
  self_ = std::move(self_).resume();
  finish_switch(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
  start_switch(&fake_stack_, scheduler_stack_, scheduler_stack_bytes_);
  scheduler_ = std::move(scheduler_).resume();
  finish_switch(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
  if (cancelled_) throw Cancelled{};
}

void Fiber::cancel() {
  cancelled_ = true;
  while (!finished_) resume();
}

}  // namespace blockscale::emulator
