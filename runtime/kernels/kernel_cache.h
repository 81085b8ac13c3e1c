// The on-disk cache of kernels that the pack lacks: one file each, for every process of the user.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernels/kernel_pack.h"

namespace blockscale::runtime {

/// Files are kernel packs of one kernel, named after a hash of compiler, flags, architecture and
/// every source, and published by rename: a reader sees a whole entry or none. The folder is made,
/// for the user alone, when the first entry is stored. One that others could put code into is not
/// used (`problem`).
class KernelCache {
 public:
  struct Entry {
    std::filesystem::path path;
    PackedKernel kernel;  // of no name where there is a problem
    std::uint64_t file_bytes = 0;
    std::string problem;  // why `get` would not take it: damaged, or another user's
  };

  /// The bytes that all entries may have together.
  static constexpr std::uint64_t kDefaultLimit = std::uint64_t{512} << 20;

  /// How long one process waits for another that compiles a kernel; most take some seconds.
  static constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(2);

  /// Without a folder (an empty path) nothing is stored.
  explicit KernelCache(std::filesystem::path folder, std::uint64_t limit_bytes = kDefaultLimit,
                       std::chrono::milliseconds longest_wait = kLongestWait);

  /// In BLOCKSCALE_CACHE, else blockscale/ in XDG_CACHE_HOME, else ~/.cache/blockscale, else
  /// nowhere; at most BLOCKSCALE_CACHE_LIMIT bytes (a decimal number). Throws invalid_argument
  /// naming that variable if it is no number.
  static KernelCache of_user();

  /// The kernel with this source hash and compiler: found here, or made by `compile` and stored.
  /// Processes that want the same kernel at once wait for the first of them, but no longer than
  /// `longest_wait`: then they compile it too. A damaged entry is made anew. A folder that cannot
  /// be read, locked or written, or a full disk, costs the storing only (the log tells, at level
  /// debug). Throws what `compile` throws.
  CompiledKernel get(const Hash128& source, const std::string& compiler,
                     const std::function<CompiledKernel()>& compile) const;

  /// By name of their kernel, then those with a problem. Throws for nothing that files hold: they
  /// are not trusted.
  std::vector<Entry> entries() const;

  /// Why the folder is not used although it is there: it belongs neither to this user nor to root,
  /// or others may write into it. Empty if there is nothing to say.
  std::string problem() const;

  const std::filesystem::path& folder() const { return folder_; }
  std::uint64_t limit_bytes() const { return limit_; }
  std::filesystem::path entry_path(const Hash128& source, const std::string& compiler) const;

 private:
  std::optional<CompiledKernel> read(const std::filesystem::path& path, const Hash128& source,
                                     const std::string& compiler) const;
  void store(const std::filesystem::path& path, const CompiledKernel& kernel) const;
  void evict(const std::filesystem::path& kept) const;

  std::filesystem::path folder_;
  std::uint64_t limit_;
  std::chrono::milliseconds longest_wait_;
};

}  // namespace blockscale::runtime
