// What happens when a mapped file shrinks while its pages are being read.
#pragma once

#include <cstddef>
#include <string>

namespace blockscale {

/// Keeps a mapping known to the handler of `exit_on_truncated_mapping` while it lives. Beyond the
/// number of mappings that the handler knows (4096), it does nothing.
class WatchedMapping {
 public:
  WatchedMapping() = default;
  WatchedMapping(const std::byte* data, std::size_t size, const std::string& path);
  WatchedMapping(WatchedMapping&& other) noexcept;
  WatchedMapping& operator=(WatchedMapping&& other) noexcept;
  ~WatchedMapping();

 private:
  void release() noexcept;

  int slot_ = -1;
};

}  // namespace blockscale
