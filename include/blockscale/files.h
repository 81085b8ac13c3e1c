// Files as this library reads and writes them: mapped, and published whole or not at all.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockscale/error.h"

namespace blockscale {

/// What `throw_io` throws for a full disk or quota (ENOSPC, EDQUOT); its code is io.
class NoSpaceError : public Error {
 public:
  using Error::Error;
};

/// Throws not_found for ENOENT and ENOTDIR, else io: "PATH: cannot ACTION: reason".
[[noreturn]] void throw_io(const std::filesystem::path& path, std::string_view action,
                           int error_number);

/// An open folder. Names are looked up in it whatever becomes of its path, and are never followed
/// if they are links. Copies share it. Every function throws not_found or io, unless it says else.
class Folder {
 public:
  /// Links in `path` are followed. `action` is for the message: "cannot ACTION".
  static Folder open(const std::filesystem::path& path, std::string_view action = "open");
  /// Takes an open descriptor over; `path` is for messages.
  Folder(int descriptor, std::filesystem::path path);

  /// The folder `name` in this one; io if it is anything else, a link for example.
  Folder open_folder(const std::string& name) const;
  /// False if there is something of that name. The umask is obeyed.
  bool make_folder(const std::string& name, mode_t mode = 0777) const;
  /// Of what `name` itself is; nothing if there is none.
  std::optional<struct stat> status(const std::string& name) const;
  /// Of this folder.
  struct stat status() const;
  /// Sorted, without "." and "..".
  std::vector<std::string> names() const;
  void remove_file(const std::string& name) const;
  void remove_folder(const std::string& name) const;  // an empty one
  /// Flushes the entries, so that a rename in the folder survives a power failure.
  void sync() const;

  int descriptor() const { return state_->descriptor; }
  const std::filesystem::path& path() const { return state_->path; }

 private:
  struct State {
    int descriptor;
    std::filesystem::path path;
    ~State();
  };
  std::shared_ptr<const State> state_;
};

/// The file that writing to `path` makes or replaces: `path`, or where a link there leads. Only
/// regular files are replaced: throws invalid_argument if there is a folder, a device, a FIFO, a
/// socket or a link that leads nowhere; io.
std::filesystem::path output_file(const std::filesystem::path& path);

/// "a regular file", "a folder", "a link", "a device", "a FIFO" or "a socket".
const char* file_type_name(mode_t mode);

/// Writes to a temporary file in the folder of `path` and renames it in `publish`. Destroyed
/// unpublished, it removes the temporary file; killed, it leaves one that
/// `remove_stale_temporaries` recognises: the owner holds a lock on it (flock) while it lives.
class AtomicFile {
 public:
  /// Reserves `bytes` on the disk, so that a full disk shows before the work is done. Throws
  /// not_found (no such folder), io (permission, space, limits), and as `output_file`.
  AtomicFile(std::filesystem::path path, std::uint64_t bytes);
  /// A file `name` in `folder`, where a link is not followed but refused. The umask is obeyed.
  AtomicFile(const Folder& folder, const std::string& name, std::uint64_t bytes,
             mode_t mode = 0666);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Thread-safe for ranges that do not overlap.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// fsync, rename over `path`, fsync of the folder. Once.
  void publish();

  const std::filesystem::path& path() const { return path_; }

 private:
  void create(mode_t mode);
  void reserve(std::uint64_t bytes);
  void start_writeback(std::uint64_t written);
  void remove_temporary() noexcept;

  Folder folder_;
  std::string name_;
  std::filesystem::path path_;
  std::string temporary_;  // a name in folder_; empty once published
  int descriptor_ = -1;
  std::atomic<std::uint64_t> written_ = 0;
};

/// Whether `filename` (no folder) is a name that AtomicFile gives to temporary files.
bool is_temporary_name(std::string_view filename);

/// Removes temporary files in `folder` whose writer is dead. Returns how many.
int remove_stale_temporaries(const std::filesystem::path& folder);

/// Writes a small file whole or not at all (temporary name, fsync, rename, fsync of the folder).
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);
void write_file_atomically(const Folder& folder, const std::string& name, std::string_view contents,
                           mode_t mode = 0666);

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
