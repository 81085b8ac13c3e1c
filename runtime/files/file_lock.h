// A lock that processes hold on a file, one at a time.
#pragma once

#include <chrono>
#include <filesystem>

namespace blockscale::runtime {

/// Holds an exclusive lock on a file (flock) while it lives, and no longer than its process does.
class FileLock {
 public:
  /// Makes the file if there is none. Another's lock is waited for, but no longer than this: it may
  /// be that of a process that hangs, or of the child of one that was killed. Throws nothing.
  FileLock(const std::filesystem::path& path, std::chrono::milliseconds longest_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Neither is so where the file cannot be opened, or cannot be locked at all.
  bool is_held() const { return is_held_; }
  bool is_of_another() const { return is_of_another_; }

  /// The open file, to read and to write; -1 if there is none.
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  bool is_held_ = false, is_of_another_ = false;
};

}  // namespace blockscale::runtime
