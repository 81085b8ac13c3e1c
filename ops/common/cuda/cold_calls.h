// Calls that are timed as they find caches cold: on as many copies of their memory as caches do not
// hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "ops/common/overlap.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/measure.h"

namespace blockscale::cuda {

/// A call's arguments, with memory that was copied from the host to the current device.
template <class Arguments>
class DeviceArguments {
 public:
  /// `host` is validated; `for_each_memory` is that of the operation's call_memory.h.
  template <class ForEachMemory>
  DeviceArguments(const Arguments& host, const ForEachMemory& for_each_memory) : x_(host) {
    for_each_memory(x_, [&](auto, auto access, auto*& pointer, const auto& lines) {
      if (pointer == nullptr) return;
      void* const from = const_cast<void*>(static_cast<const void*>(pointer));
      if (access == decltype(access)::writes) results_.emplace_back(buffers_.size(), from);
      runtime::DeviceBuffer& buffer =
          buffers_.emplace_back(static_cast<std::size_t>(extent_of(lines())));
      buffer.copy_from_host(from, buffer.bytes());
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(buffer.data());
    });
  }

  const Arguments& arguments() const { return x_; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const runtime::DeviceBuffer& buffer : buffers_) sum += buffer.bytes();
    return sum;
  }
  /// Other bytes in the memory that `argument`, one of arguments()', points to.
  void write(const void* argument, const void* bytes, std::size_t count) {
    for (runtime::DeviceBuffer& buffer : buffers_) {
      if (buffer.data() == argument) buffer.copy_from_host(bytes, count);
    }
  }
  /// The results' memory is again what the host's is.
  void reset_results() {
    for (const auto& [buffer, host] : results_) {
      buffers_[buffer].copy_from_host(host, buffers_[buffer].bytes());
    }
  }
  /// Copies what the call left back to where it came from.
  void copy_results() const {
    for (const auto& [buffer, host] : results_) {
      buffers_[buffer].copy_to_host(host, buffers_[buffer].bytes());
    }
  }

 private:
  Arguments x_;
  std::vector<runtime::DeviceBuffer> buffers_;
  std::vector<std::pair<std::size_t, void*>> results_;  // a buffer, and the host's memory
};

/// As many copies of a call's arguments as find caches cold, and what times it.
template <class Arguments>
class ColdCalls {
 public:
  /// As of DeviceArguments; calls have a workspace of so many bytes, and are timed `repeats` times.
  template <class ForEachMemory>
  ColdCalls(const Arguments& host, const ForEachMemory& for_each_memory,
            std::int64_t workspace_bytes, int repeats)
      : workspace_bytes_(workspace_bytes),
        workspace_(static_cast<std::size_t>(std::max<std::int64_t>(workspace_bytes, 1))),
        repeats_(repeats) {
    constexpr std::size_t kMostParts = 64;
    parts_.emplace_back(host, for_each_memory);
    const auto cold = static_cast<std::size_t>(3 * current_device().l2_bytes);
    const std::size_t one = std::max<std::size_t>(1, parts_.front().bytes());
    const std::size_t count = std::clamp<std::size_t>(cold / one + 1, 1, kMostParts);
    while (parts_.size() < count) parts_.emplace_back(host, for_each_memory);
  }

  /// Medians, in turns, of what each of `launches` does with arguments and an execution.
  using Launch = std::function<void(const Arguments&, const Execution&)>;
  std::vector<double> seconds(const std::vector<Launch>& launches) const {
    std::vector<runtime::TimedWork> works;
    for (const Launch& launch : launches) {
      // Loads its kernel: no graph may.
      launch(parts_.front().arguments(), execution(stream_.handle()));
      works.push_back({[this, &launch](void* stream, int i) {
                         launch(parts_[static_cast<std::size_t>(i)].arguments(), execution(stream));
                       },
                       static_cast<int>(parts_.size())});
    }
    const std::vector<double> result = runtime::median_seconds(stream_, works, repeats_);
    stream_.wait();
    return result;
  }
  void copy_results() const { parts_.front().copy_results(); }

 private:
  /// All calls share a workspace: they follow one another.
  Execution execution(void* stream) const { return {stream, workspace_.data(), workspace_bytes_}; }

  std::int64_t workspace_bytes_;
  runtime::DeviceBuffer workspace_;
  int repeats_;
  std::vector<DeviceArguments<Arguments>> parts_;
  runtime::DeviceStream stream_;
};

}  // namespace blockscale::cuda
