// Streams that are held back, and memory that is looked at meanwhile: whoever works in another
// stream than it was told is seen.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/measure.h"

namespace blockscale::test {

/// Calls a function of the driver that only these tests need.
template <class... Arguments>
void call_driver(const char* name, Arguments... arguments) {
  namespace cu = runtime::cu;
  cu::Result (*function)(Arguments...) = nullptr;
  const bool found = runtime::driver().library().load(name, function);
  const cu::Result result = found ? function(arguments...) : cu::kInvalidValue;
  if (result != cu::kSuccess) runtime::driver().raise(name, result);
}

/// Holds back what a stream is given from now on until it is opened, or for 5 seconds: nothing may
/// be allocated, freed or waited for meanwhile that waits for that stream.
class StreamGate {
 public:
  explicit StreamGate(void* stream) {
    // The host function's own, since it may run after this gate is gone.
    auto shared = std::make_unique<std::shared_ptr<State>>(state_);
    call_driver<runtime::cu::Stream, void (*)(void*), void*>(
        "cuLaunchHostFunc", static_cast<runtime::cu::Stream>(stream), &hold, shared.get());
    (void)shared.release();
  }
  ~StreamGate() { open(); }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }
  /// Whether nothing can have passed that was to wait for `open`.
  bool has_held() const {
    const std::lock_guard lock(state_->mutex);
    return !state_->gave_up;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, gave_up = false;
  };

  static void hold(void* data) {
    const std::unique_ptr<std::shared_ptr<State>> shared(
        static_cast<std::shared_ptr<State>*>(data));
    State& state = **shared;
    std::unique_lock lock(state.mutex);
    const auto is_open = [&] { return state.open; };
    state.gave_up = !state.changed.wait_for(lock, std::chrono::seconds(5), is_open);
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// A stream for which the legacy default stream waits, and which waits for it.
class BlockingStream {
 public:
  BlockingStream() { call_driver<runtime::cu::Stream*, unsigned>("cuStreamCreate", &stream_, 0u); }
  ~BlockingStream() {
    try {
      call_driver<runtime::cu::Stream>("cuStreamDestroy_v2", stream_);
    } catch (...) {  // the test has failed before
    }
  }
  BlockingStream(const BlockingStream&) = delete;
  BlockingStream& operator=(const BlockingStream&) = delete;

  void* handle() const { return stream_; }

 private:
  runtime::cu::Stream stream_ = nullptr;
};

/// Copies from the device in a stream of its own, which no other one holds up.
class Peephole {
 public:
  std::vector<std::uint8_t> read(const std::byte* device, std::size_t bytes) const {
    std::vector<std::uint8_t> copy(bytes);
    if (bytes == 0) return copy;
    call_driver<void*, runtime::cu::DevicePointer, std::size_t, runtime::cu::Stream>(
        "cuMemcpyDtoHAsync_v2", copy.data(), reinterpret_cast<runtime::cu::DevicePointer>(device),
        bytes, static_cast<runtime::cu::Stream>(stream_.handle()));
    stream_.wait();
    return copy;
  }

 private:
  runtime::DeviceStream stream_;
};

}  // namespace blockscale::test
