// Open folders, and what may be replaced in one.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "blockscale/error.h"
#include "blockscale/files.h"

namespace blockscale {

Folder::State::~State() {
  ::close(descriptor);
}

Folder::Folder(int descriptor, std::filesystem::path path)
    : state_(std::make_shared<const State>(descriptor, std::move(path))) {}

Folder Folder::open(const std::filesystem::path& path, std::string_view action) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_io(path, action, errno);
  return {descriptor, path};
}

Folder Folder::open_folder(const std::string& name) const {
  const int found = ::openat(descriptor(), name.c_str(),
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (found >= 0) return {found, path() / name};
  const int error_number = errno;
  const auto there = error_number == ENOTDIR || error_number == ELOOP ? status(name) : std::nullopt;
  if (!there) throw_io(path() / name, "open", error_number);
  throw Error(ErrorCode::io, (path() / name).string(),
              std::string("is ") + file_type_name(there->st_mode) + ", not a folder");
}

bool Folder::make_folder(const std::string& name, mode_t mode) const {
  if (::mkdirat(descriptor(), name.c_str(), mode) == 0) return true;
  if (errno != EEXIST) throw_io(path() / name, "create", errno);
  return false;
}

std::optional<struct stat> Folder::status(const std::string& name) const {
  struct stat status;
  if (::fstatat(descriptor(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  if (errno != ENOENT) throw_io(path() / name, "find", errno);
  return std::nullopt;
}

struct stat Folder::status() const {
  struct stat status;
  if (::fstat(descriptor(), &status) != 0) throw_io(path(), "find", errno);
  return status;
}

std::vector<std::string> Folder::names() const {
  // A descriptor of its own: the position in a folder belongs to the open file.
  const int list = ::openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = list < 0 ? nullptr : ::fdopendir(list);
  if (stream == nullptr) {
    const int error_number = errno;
    if (list >= 0) ::close(list);
    throw_io(path(), "list", error_number);
  }
  std::vector<std::string> found;
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") found.push_back(name);
    errno = 0;
  }
  const int error_number = errno;
  ::closedir(stream);
  if (error_number != 0) throw_io(path(), "list", error_number);
  std::sort(found.begin(), found.end());
  return found;
}

void Folder::remove_file(const std::string& name) const {
  if (::unlinkat(descriptor(), name.c_str(), 0) != 0) throw_io(path() / name, "remove", errno);
}

void Folder::remove_folder(const std::string& name) const {
  if (::unlinkat(descriptor(), name.c_str(), AT_REMOVEDIR) != 0) {
    throw_io(path() / name, "remove", errno);
  }
}

void Folder::sync() const {
  int result = ::fsync(descriptor());
  while (result != 0 && errno == EINTR) result = ::fsync(descriptor());
  // EINVAL: a file system that does not sync folders.
  if (result != 0 && errno != EINVAL) throw_io(path(), "flush to the disk", errno);
}

const char* file_type_name(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a folder";
    case S_IFLNK: return "a link";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

std::filesystem::path output_file(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::invalid_argument, path.string(), reason);
  };
  if (!path.has_filename()) refuse("names a folder, not a file");
  struct stat named;
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) return path;
    throw_io(path, "find", errno);
  }
  const bool link = S_ISLNK(named.st_mode);
  // By the kernel, which does not follow a stranger's link in a folder such as /tmp.
  if (link && ::stat(path.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) throw_io(path, "follow the link", errno);
    refuse("is a link that leads nowhere; remove it, or name another file");
  }
  if (S_ISDIR(named.st_mode)) refuse("names a folder, not a file");
  if (!S_ISREG(named.st_mode)) {
    refuse(std::string(link ? "leads to " : "is ") + file_type_name(named.st_mode) +
           ", only a regular file is replaced");
  }
  if (!link) return path;
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) throw_io(path, "follow the link", error.value());
  return target;
}

}  // namespace blockscale
