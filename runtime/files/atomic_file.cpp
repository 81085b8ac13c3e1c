#include "blockscale/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "blockscale/error.h"

namespace blockscale {
namespace {

constexpr std::string_view kTemporarySuffix = ".blockscale-tmp";
constexpr std::uint64_t kWritebackBytes = std::uint64_t{32} << 20;
constexpr std::size_t kMaxNameBytes = 160;  // of the final name within the temporary one

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void throw_write(const std::filesystem::path& path, const std::string& action,
                              int error_number) {
  struct statvfs status;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::string detail = action;
  if ((error_number == ENOSPC || error_number == EDQUOT) &&
      ::statvfs(folder.c_str(), &status) == 0) {
    detail += " (" + std::to_string(std::uint64_t{status.f_bavail} * status.f_frsize) +
              " bytes are free)";
  }
  throw_io(path, detail, error_number);
}

Folder open_parent(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_io(path, "create a file in " + folder.string(), errno);
  return {descriptor, folder};
}

/// Only regular files are replaced.
void check_replaceable(const Folder& folder, const std::string& name) {
  struct stat status;
  if (::fstatat(folder.descriptor(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISREG(status.st_mode)) return;
  throw Error(
      ErrorCode::invalid_argument, (folder.path() / name).string(),
      std::string("is ") + file_type_name(status.st_mode) + ", only a regular file is replaced");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::uint64_t bytes)
    : folder_(open_parent(path = output_file(path))),
      name_(path.filename().string()),
      path_(std::move(path)) {
  create(0666);
  reserve(bytes);
}

AtomicFile::AtomicFile(const Folder& folder, const std::string& name, std::uint64_t bytes,
                       mode_t mode)
    : folder_(folder), name_(name), path_(folder.path() / name) {
  check_replaceable(folder_, name_);
  create(mode);
  reserve(bytes);
}

void AtomicFile::create(mode_t mode) {
  const std::string stem =
      "." + name_.substr(0, kMaxNameBytes) + "." + std::to_string(::getpid()) + "-";
  for (unsigned attempt = 0;; ++attempt) {
    temporary_ = stem + std::to_string(attempt) + std::string(kTemporarySuffix);
    descriptor_ = retry([&] {
      return ::openat(folder_.descriptor(), temporary_.c_str(),
                      O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    });
    if (descriptor_ < 0) {
      if (errno == EEXIST) continue;
      throw_write(path_, "create a file in " + folder_.path().string(), errno);
    }
    // Where the file system has no locks, stale files are left to the user.
    (void)retry([&] { return ::flock(descriptor_, LOCK_EX); });
    // A cleaner may have taken the file for stale before it was locked.
    struct stat status;
    if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return;
    ::close(descriptor_);
  }
}

/// Throws from a constructor, whose destructor then does not run.
void AtomicFile::reserve(std::uint64_t bytes) try {
  if (bytes == 0) return;
  const std::string action = "reserve " + std::to_string(bytes) + " bytes";
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    throw_write(path_, action, EFBIG);
  }
  // Beyond this limit the kernel would also send SIGXFSZ, which kills by default.
  rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    throw_write(path_, action, EFBIG);
  }
  const auto length = static_cast<off_t>(bytes);
  if (retry([&] { return ::fallocate(descriptor_, 0, 0, length); }) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw_write(path_, action, errno);
  if (retry([&] { return ::ftruncate(descriptor_, length); }) != 0) {
    throw_write(path_, action, errno);
  }
} catch (...) {
  remove_temporary();
  throw;
}

void AtomicFile::remove_temporary() noexcept {
  if (!temporary_.empty()) ::unlinkat(folder_.descriptor(), temporary_.c_str(), 0);
  if (descriptor_ >= 0) ::close(descriptor_);
}

AtomicFile::~AtomicFile() {
  remove_temporary();
}

void AtomicFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] {
      return ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (written <= 0) {
      throw_write(path_,
                  "write " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset),
                  written < 0 ? errno : ENOSPC);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
    start_writeback(static_cast<std::uint64_t>(written));
  }
}

/// Has the kernel write dirty pages while the producer is still at work, so that little is left
/// for fsync. A hint, so failures do not matter.
void AtomicFile::start_writeback(std::uint64_t written) {
  const std::uint64_t before = written_.fetch_add(written, std::memory_order_relaxed);
  if (before / kWritebackBytes == (before + written) / kWritebackBytes) return;
  ::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);
}

void AtomicFile::publish() {
  if (temporary_.empty()) {
    throw Error(ErrorCode::invalid_argument, path_.string(), "was published already");
  }
  if (retry([&] { return ::fsync(descriptor_); }) != 0) {
    throw_write(path_, "flush to the disk", errno);
  }
  check_replaceable(folder_, name_);  // again: work may have taken hours
  if (::renameat(folder_.descriptor(), temporary_.c_str(), folder_.descriptor(), name_.c_str()) !=
      0) {
    throw_write(path_, "rename the finished file to it", errno);
  }
  temporary_.clear();
  folder_.sync();
}

bool is_temporary_name(std::string_view filename) {
  return filename.starts_with('.') && filename.ends_with(kTemporarySuffix);
}

int remove_stale_temporaries(const std::filesystem::path& folder) {
  int removed = 0;
  const Folder opened = Folder::open(folder, "list");
  for (const std::string& name : opened.names()) {
    if (!is_temporary_name(name)) continue;
    const int descriptor =
        ::openat(opened.descriptor(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    struct stat status;
    if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
        ::unlinkat(opened.descriptor(), name.c_str(), 0) == 0) {
      ++removed;
    }
    ::close(descriptor);
  }
  return removed;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  AtomicFile file(path, contents.size());
  file.write(0, std::as_bytes(std::span(contents)));
  file.publish();
}

void write_file_atomically(const Folder& folder, const std::string& name, std::string_view contents,
                           mode_t mode) {
  AtomicFile file(folder, name, contents.size(), mode);
  file.write(0, std::as_bytes(std::span(contents)));
  file.publish();
}

}  // namespace blockscale
