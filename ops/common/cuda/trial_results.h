// What a trial compares: results of a call's arguments, which lie on the host, by two plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "blockscale/error.h"
#include "ops/common/overlap.h"
#include "runtime/cuda/measure.h"

namespace blockscale::cuda {

/// All memory of a call's arguments, one piece behind the other at multiples of 256 bytes.
template <class Arguments>
class TrialMemory {
 public:
  /// `host` is validated; `for_each_memory` is that of the operation's call_memory.h. Of what the
  /// call writes there is one piece, which is poison.
  template <class ForEachMemory>
  TrialMemory(const Arguments& host, const ForEachMemory& for_each_memory) : x_(host) {
    for_each_memory(x_, [&](auto, auto access, const auto* pointer, const auto& lines) {
      if (pointer == nullptr) return;
      const std::size_t at = bytes_.size();
      const auto count = static_cast<std::size_t>(extent_of(lines()));
      bytes_.resize((at + count + 255) / 256 * 256);
      if (access == decltype(access)::writes) {
        result_ = {at, count};
        std::memset(bytes_.data() + at, 0xFF, count);
      } else {
        std::memcpy(bytes_.data() + at, pointer, count);
      }
    });
    memory_ = runtime::DeviceBuffer(bytes_.size());
    std::byte* next = memory_.data();
    for_each_memory(x_, [&](auto, auto, auto*& pointer, const auto& lines) {
      if (pointer == nullptr) return;
      const auto count = static_cast<std::size_t>(extent_of(lines()));
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
      next += (count + 255) / 256 * 256;
    });
  }

  /// What launch(arguments on the device, execution) writes.
  template <class Launch>
  std::vector<std::byte> result_of(const Launch& launch) {
    std::vector<std::byte> bytes(bytes_.size());
    memory_.copy_from_host(stream_, bytes_.data(), bytes_.size());
    launch(x_, Execution{.stream = stream_.handle()});
    memory_.copy_to_host(stream_, bytes.data(), bytes.size());
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(result_.first);
    return {begin, begin + static_cast<std::ptrdiff_t>(result_.bytes)};
  }

 private:
  Arguments x_;
  std::vector<std::byte> bytes_;
  struct {
    std::size_t first = 0, bytes = 0;
  } result_;
  runtime::DeviceStream stream_;
  runtime::DeviceBuffer memory_;
};

}  // namespace blockscale::cuda
