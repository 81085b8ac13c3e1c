// A file that appears under its name whole or not at all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace blockscale {

/// Writes to a temporary file in the folder of `path` and renames it in `publish`. Destroyed
/// unpublished, it removes the temporary file; killed, it leaves one that
/// `remove_stale_temporaries` recognises: the owner holds a lock on it (flock) while it lives.
class AtomicFile {
 public:
  /// Reserves `bytes` on the disk, so that a full disk shows before the work is done. Throws
  /// not_found (no such folder), io (permission, space, limits), invalid_argument (`path` names a
  /// folder).
  AtomicFile(std::filesystem::path path, std::uint64_t bytes);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Thread-safe for ranges that do not overlap.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// fsync, rename over `path`, fsync of the folder. Once.
  void publish();

  const std::filesystem::path& path() const { return path_; }

 private:
  void create();
  void reserve(std::uint64_t bytes);
  void start_writeback(std::uint64_t written);

  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // empty once published
  int descriptor_ = -1;
  std::atomic<std::uint64_t> written_ = 0;
};

/// Whether `filename` (no folder) is a name that AtomicFile gives to temporary files.
bool is_temporary_name(std::string_view filename);

/// Removes temporary files in `folder` whose writer is dead. Returns how many.
int remove_stale_temporaries(const std::filesystem::path& folder);

}  // namespace blockscale
