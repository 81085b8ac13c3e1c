// Memory, streams and times of a CUDA device, for tests, benchmarks and trials of kernels: the
// library's calls else neither allocate nor wait.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace blockscale::runtime {

class DeviceStream;

/// Memory of the current device, freed with the object.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : address_(std::exchange(other.address_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// 256-byte aligned; null if it has no bytes.
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t bytes() const { return bytes_; }

  /// These have finished when they return, also for streams that do not wait for the legacy one
  /// (the driver's own calls may only have begun).
  void fill(unsigned char value);
  void copy_from_host(const void* from, std::size_t bytes, std::size_t offset = 0);
  void copy_to_host(void* to, std::size_t bytes, std::size_t offset = 0) const;
  /// The same in a stream, and no other is waited for.
  void copy_from_host(const DeviceStream& stream, const void* from, std::size_t bytes);
  void copy_to_host(const DeviceStream& stream, void* to, std::size_t bytes) const;

 private:
  unsigned long long address_ = 0;
  std::size_t bytes_ = 0;
};

/// Waits for all work of the current context, on every stream.
void wait_for_device();

/// A stream of the current device, apart from the legacy default stream.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  void* handle() const { return stream_; }
  void wait() const;

 private:
  void* stream_ = nullptr;
};

/// What a stream was given while it was captured, ready to be launched again and again.
class DeviceGraph {
 public:
  DeviceGraph(const DeviceStream& stream, const std::function<void(void* stream)>& work);
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  DeviceGraph& operator=(DeviceGraph&&) = delete;

  void launch(const DeviceStream& stream) const;

 private:
  void* graph_ = nullptr;
};

/// One of several things that are timed in turns.
struct TimedWork {
  /// Launches part `i` of the work; parts use memory of their own, so that caches are cold.
  std::function<void(void* stream, int i)> launch;
  int parts = 1;
};

/// Median seconds of one part of each work: all parts in one graph, graphs in turns in `stream`,
/// `repeats` times after two that are not counted.
std::vector<double> median_seconds(const DeviceStream& stream, const std::vector<TimedWork>& works,
                                   int repeats);

}  // namespace blockscale::runtime
