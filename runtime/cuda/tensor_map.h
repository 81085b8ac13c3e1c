// Tensor maps, made by the driver once for each distinct operand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>

#include "core/tensor_map.h"

namespace blockscale::runtime {

/// Asks the driver. Throws invalid_argument naming the field of `description` that breaks a rule of
/// core/tensor_map.h or of TMA, or device.
TensorMap encode_tensor_map(const TensorMapDescription& description);

/// Keeps the maps that were used last. A map is a function of its description alone, so an entry
/// never goes stale.
class TensorMapCache {
 public:
  static constexpr std::size_t kDefaultCapacity = 4096;  // about 1.5 MB

  explicit TensorMapCache(std::size_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  /// The process's one.
  static TensorMapCache& instance();

  /// Thread-safe. Throws as encode_tensor_map does.
  TensorMap get(const TensorMapDescription& description);

  std::size_t size() const;
  /// How often `get` had to ask the driver.
  std::uint64_t encoded() const;

 private:
  struct Entry {
    TensorMapDescription description;
    TensorMap map;
  };
  struct HashDescription {
    std::size_t operator()(const TensorMapDescription& description) const;
  };
  using Entries = std::list<Entry>;  // last used first

  std::size_t capacity_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<TensorMapDescription, Entries::iterator, HashDescription> by_description_;
  std::uint64_t encoded_ = 0;
};

}  // namespace blockscale::runtime
