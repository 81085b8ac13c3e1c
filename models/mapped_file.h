// A whole file, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "models/mapping_faults.h"

namespace blockscale {

/// The mapping reflects the file: bytes that another process overwrites in place change under the
/// reader, and a page beyond the end of a file that shrank raises SIGBUS. `check_size` finds the
/// second case before the pages are touched; call it before handing bytes out. A file that shrinks
/// later still raises SIGBUS: see `exit_on_truncated_mapping`.
class MappedFile {
 public:
  /// Throws not_found or io; only regular files are accepted (a FIFO would block, a device lies
  /// about its size).
  static MappedFile open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  /// Throws io if the file is shorter now than when it was mapped.
  void check_size() const;
  /// Gives the resident pages of [offset, offset + bytes) back, neighbours' halves included; they
  /// are read again when touched.
  void drop(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  MappedFile() = default;
  void close() noexcept;

  std::filesystem::path path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  WatchedMapping watched_;
};

}  // namespace blockscale
