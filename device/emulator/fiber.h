// Fibers: one for each emulated thread, all run by one thread of the operating system.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace blockscale::emulator {

/// Thrown by Fiber::suspend in a fiber that is being cancelled; kernels let it pass.
struct Cancelled {};

/// A function with a stack of its own, that runs until it suspends itself or returns.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  /// A fiber that has begun must have finished.
  ~Fiber();

  void start(std::function<void()> function);
  /// Runs until the next suspend or the end. Not from within a fiber.
  void resume();
  /// From within this fiber: back to who resumed it.
  void suspend();
  /// Makes suspend throw Cancelled, and runs to the end. The function must let it pass.
  void cancel();
  bool finished() const { return finished_; }

 private:
  void enter();

  boost::context::fiber self_;       // valid while suspended
  boost::context::fiber scheduler_;  // valid while running
  std::function<void()> function_;
  std::byte* stack_ = nullptr;
  bool finished_ = true;
  bool cancelled_ = false;
  // What AddressSanitizer keeps of a stack that is left.
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

}  // namespace blockscale::emulator
