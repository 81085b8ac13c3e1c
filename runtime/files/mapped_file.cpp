#include "blockscale/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "blockscale/error.h"

namespace blockscale {

MappedFile MappedFile::open(const std::filesystem::path& path) {
  MappedFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) throw_io(path, "open", errno);
  struct stat status;
  if (::fstat(file.descriptor_, &status) != 0) throw_io(path, "read the size of it", errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::io, path.string(), "not a regular file");
  file.size_ = static_cast<std::size_t>(status.st_size);
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, file.descriptor_, 0);
  if (data == MAP_FAILED) throw_io(path, "map", errno);
  file.data_ = static_cast<const std::byte*>(data);
  file.watched_ = WatchedMapping(file.data_, file.size_, path.string());
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    watched_ = std::move(other.watched_);
  }
  return *this;
}

MappedFile::~MappedFile() {
  close();
}

void MappedFile::close() noexcept {
  watched_ = WatchedMapping();
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
  data_ = nullptr;
  descriptor_ = -1;
}

void MappedFile::check_size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) throw_io(path_, "read the size of it", errno);
  if (static_cast<std::uint64_t>(status.st_size) < size_) {
    throw Error(ErrorCode::io, path_.string(),
                "the file shrank while in use, from " + std::to_string(size_) + " to " +
                    std::to_string(status.st_size) + " bytes");
  }
}

void MappedFile::drop(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0 || offset >= size_ || bytes > size_ - offset) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  // Advice: a failure costs memory only.
  (void)::madvise(const_cast<std::byte*>(data_) + begin, offset + bytes - begin, MADV_DONTNEED);
}

}  // namespace blockscale
