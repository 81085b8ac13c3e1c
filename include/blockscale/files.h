// Files as this library reads and writes them: mapped, and published whole or not at all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace blockscale {

/// Throws not_found for ENOENT and ENOTDIR, else io: "PATH: cannot ACTION: reason".
[[noreturn]] void throw_io(const std::filesystem::path& path, std::string_view action,
                           int error_number);

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

/// Writes a small file whole or not at all (temporary name, fsync, rename, fsync of the folder).
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

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

/// For programs, not libraries: if a mapped file is truncated by someone else while its data are
/// being read, print one line that names it and exit with `status`, instead of dying of SIGBUS
/// without a word. Other causes of SIGBUS go to the handler that was installed before.
void exit_on_truncated_mapping(int status);

}  // namespace blockscale
