#include "runtime/kernels/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <tuple>

#include "blockscale/error.h"
#include "runtime/files/file_lock.h"
#include "runtime/log.h"

namespace blockscale::runtime {
namespace {

constexpr std::string_view kSuffix = ".kernel";
constexpr int kLocks = 64;  // lock files; a lock guards all keys that it is chosen for

std::filesystem::path user_folder() {
  if (const std::string named = environment("BLOCKSCALE_CACHE"); !named.empty()) return named;
  if (const std::string base = environment("XDG_CACHE_HOME"); !base.empty()) {
    return std::filesystem::path(base) / "blockscale";
  }
  if (const std::string home = environment("HOME"); !home.empty()) {
    return std::filesystem::path(home) / ".cache/blockscale";
  }
  return {};
}

std::uint64_t limit_of_user() {
  const std::string text = environment("BLOCKSCALE_CACHE_LIMIT");
  if (text.empty()) return KernelCache::kDefaultLimit;
  std::uint64_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::invalid_argument, "BLOCKSCALE_CACHE_LIMIT",
                "is '" + text + "'; a number of bytes is allowed");
  }
  return limit;
}

/// Makes the folder for the user alone, whatever the umask; those above it as usual.
void make_folder(const std::filesystem::path& folder) {
  std::error_code ignored;  // what was not made cannot be written, and that is said later
  std::filesystem::create_directories(folder.parent_path(), ignored);
  (void)::mkdir(folder.c_str(), 0700);
}

struct FileState {
  std::filesystem::path path;
  std::filesystem::file_time_type used;
  std::uint64_t bytes = 0;
};

/// Says whose a folder or a file is, if it is neither ours nor root's: code from it cannot be
/// trusted. Empty if there is none.
std::string foreign_owner(const std::filesystem::path& path) {
  struct stat state{};
  if (::stat(path.c_str(), &state) != 0) return {};
  if (state.st_uid == ::geteuid() || state.st_uid == 0) return {};
  return path.string() + " belongs to user " + std::to_string(state.st_uid) +
         ", who could put any code there; it must be yours or root's";
}

/// The files of entries. What vanishes meanwhile, or is no file, is left out.
std::vector<FileState> entry_files(const std::filesystem::path& folder) {
  std::vector<FileState> files;
  std::error_code error;
  for (std::filesystem::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    if (item->path().extension() != kSuffix) continue;
    std::error_code gone;
    FileState file{item->path(), item->last_write_time(gone), 0};
    file.bytes = gone ? 0 : item->file_size(gone);
    if (!gone) files.push_back(std::move(file));
  }
  return files;
}

/// The one kernel of an entry's file. Throws Error: not_found, io or corrupt_file.
PackedKernel read_entry(const std::filesystem::path& path) {
  if (std::string owner = foreign_owner(path); !owner.empty()) {
    throw Error(ErrorCode::io, path.string(), "is not trusted: " + owner);
  }
  const KernelPack pack = KernelPack::open(path);
  if (pack.kernels().size() != 1) {
    throw Error(ErrorCode::corrupt_file, path.string(),
                "an entry has one kernel; this one has " + std::to_string(pack.kernels().size()));
  }
  (void)pack.cubin(pack.kernels().front());  // is whole
  return pack.kernels().front();
}

}  // namespace

KernelCache::KernelCache(std::filesystem::path folder, std::uint64_t limit_bytes,
                         std::chrono::milliseconds longest_wait)
    : folder_(folder.has_filename() ? std::move(folder) : folder.parent_path()),
      limit_(limit_bytes),
      longest_wait_(longest_wait) {}

KernelCache KernelCache::of_user() {
  return KernelCache(user_folder(), limit_of_user());
}

std::filesystem::path KernelCache::entry_path(const Hash128& source,
                                              const std::string& compiler) const {
  const Hash128 key = Hasher().add(source).add(compiler).finish();
  return folder_ / (hexadecimal(key) + std::string(kSuffix));
}

CompiledKernel KernelCache::get(const Hash128& source, const std::string& compiler,
                                const std::function<CompiledKernel()>& compile) const {
  if (folder_.empty()) return compile();
  if (const std::string reason = problem(); !reason.empty()) {
    log()->debug("the kernel cache is not used: {}", reason);
    return compile();
  }
  const std::filesystem::path path = entry_path(source, compiler);
  if (auto kernel = read(path, source, compiler)) return std::move(*kernel);
  make_folder(folder_);
  if (!problem().empty()) return compile();  // somebody else has made it meanwhile
  const std::filesystem::path lock_path = folder_ / ("lock-" + std::to_string(source.low % kLocks));
  const FileLock lock(lock_path, longest_wait_);
  if (!lock.is_held()) {
    log()->debug("a kernel may be compiled twice: {} cannot be locked", lock_path.string());
  }
  if (auto kernel = read(path, source, compiler)) return std::move(*kernel);
  CompiledKernel kernel = compile();
  try {
    store(path, kernel);
  } catch (const std::exception& error) {
    log()->debug("kernel {} was compiled and cannot be cached: {}", kernel.name, error.what());
  }
  return kernel;
}

std::string KernelCache::problem() const {
  struct stat state{};
  if (folder_.empty() || ::stat(folder_.c_str(), &state) != 0) return {};
  if (std::string owner = foreign_owner(folder_); !owner.empty()) return owner;
  if ((state.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return folder_.string() + " can be written by others, who could put any code there; " +
           "`chmod go-w` makes it usable";
  }
  return {};
}

std::optional<CompiledKernel> KernelCache::read(const std::filesystem::path& path,
                                                const Hash128& source,
                                                const std::string& compiler) const {
  try {
    if (!foreign_owner(path).empty()) return std::nullopt;  // left from when others could write
    const KernelPack pack = KernelPack::open(path);
    if (pack.kernels().size() != 1) return std::nullopt;
    const PackedKernel& entry = pack.kernels().front();
    const auto code = pack.cubin(entry);
    if (entry.source != source || entry.compiler != compiler) return std::nullopt;
    // The time of last use decides what is evicted; a folder that is read-only keeps its times.
    (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
    return CompiledKernel{
        entry.name,      entry.architecture,        entry.compiler, entry.flags, entry.source,
        entry.resources, {code.begin(), code.end()}};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) {
      log()->debug("an entry of the kernel cache is made anew: {}", error.what());
    }
    return std::nullopt;
  }
}

void KernelCache::store(const std::filesystem::path& path, const CompiledKernel& kernel) const {
  (void)remove_stale_temporaries(folder_);
  write_pack(path, {&kernel, 1});
  evict(path);
}

/// Removes the entries that were not used for longest until the rest is within the limit. `kept`,
/// the newest, stays whatever its size.
void KernelCache::evict(const std::filesystem::path& kept) const {
  std::vector<FileState> files = entry_files(folder_);
  std::uint64_t total = 0;
  for (const FileState& file : files) total += file.bytes;
  std::sort(files.begin(), files.end(),
            [](const FileState& a, const FileState& b) { return a.used < b.used; });
  for (const FileState& file : files) {
    if (total <= limit_) return;
    if (file.path == kept) continue;
    std::error_code ignored;  // another process may have removed it
    std::filesystem::remove(file.path, ignored);
    total -= file.bytes;
  }
}

std::vector<KernelCache::Entry> KernelCache::entries() const {
  std::vector<Entry> entries;
  if (!problem().empty()) return entries;
  for (const FileState& file : entry_files(folder_)) {
    Entry entry{file.path, {}, file.bytes, {}};
    try {
      PackedKernel kernel = read_entry(file.path);
      if (file.path != entry_path(kernel.source, kernel.compiler)) {
        throw Error(ErrorCode::corrupt_file, file.path.string(),
                    "is not called as an entry of kernel " + kernel.name + " is");
      }
      entry.kernel = std::move(kernel);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;  // evicted meanwhile
      entry.problem = error.what();
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(!a.problem.empty(), a.kernel.name, a.path) <
           std::tuple(!b.problem.empty(), b.kernel.name, b.path);
  });
  return entries;
}

}  // namespace blockscale::runtime
