#include "models/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "blockscale/files.h"
#include "blockscale/parallel.h"
#include "blockscale/safetensors.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr std::int64_t kHashChunk = std::int64_t{1} << 20;

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const char* action)
      : value_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (value_ < 0) throw_io(path, action, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(hash ^ word) * 0x9E3779B97F4A7C15u;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void read_at(const fs::path& path, int descriptor, std::int64_t offset, std::span<char> buffer) {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got = ::pread(descriptor, buffer.data() + done, buffer.size() - done,
                                offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io(path, "read", errno);
    if (got == 0) throw_io(path, "read", EIO);  // it shrank meanwhile
    done += static_cast<std::size_t>(got);
  }
}

/// rename, failing with EEXIST if `to` exists.
int rename_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // A file system without RENAME_NOREPLACE.
  if (fs::exists(fs::symlink_status(to))) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

/// Puts `from` in the place of `to`; what was there ends up at `from` or is gone.
int rename_over(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return 0;
  if (errno == ENOENT) return rename_new(from, to);
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // A file system without RENAME_EXCHANGE: files are still replaced at once, folders in two steps.
  if (::rename(from.c_str(), to.c_str()) == 0) return 0;
  const fs::path old = from.parent_path() / "replaced";
  if (::rename(to.c_str(), old.c_str()) != 0) return errno;
  if (::rename(from.c_str(), to.c_str()) == 0) return 0;
  const int failed = errno;
  (void)::rename(old.c_str(), to.c_str());
  return failed;
}

/// What tells a file or folder from any other while it exists, whatever its name; null if there is
/// none.
nlohmann::json inode_of(const fs::path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return nullptr;
  return {{"device", status.st_dev}, {"inode", status.st_ino}};
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  // Four independent lanes keep the multiplier busy.
  std::uint64_t lanes[4] = {bytes.size(), 1, 2, 3};
  std::size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    std::uint64_t words[4];
    std::memcpy(words, bytes.data() + i, sizeof words);
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
  }
  for (; i < bytes.size(); ++i) {
    lanes[i % 4] = mixed(lanes[i % 4], static_cast<unsigned char>(bytes[i]));
  }
  return mixed(mixed(lanes[0], lanes[1]), mixed(lanes[2], lanes[3]));
}

std::uint64_t hash_file(const fs::path& path, int threads) {
  const Descriptor file(path, O_RDONLY, "read");
  struct stat status;
  if (::fstat(file.get(), &status) != 0) throw_io(path, "read", errno);
  const std::int64_t size = status.st_size;
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>((size + kHashChunk - 1) / kHashChunk));
  parallel_for(size, kHashChunk, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<char> buffer(static_cast<std::size_t>(end - begin));
    read_at(path, file.get(), begin, buffer);
    hashes[static_cast<std::size_t>(begin / kHashChunk)] =
        hash_bytes({buffer.data(), buffer.size()});
  });
  std::uint64_t hash = static_cast<std::uint64_t>(size);
  for (const std::uint64_t chunk : hashes) hash = mixed(hash, chunk);
  return hash;
}

void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY, "flush");
  if (::fsync(descriptor.get()) != 0) throw_io(folder, "flush", errno);
}

fs::path staging_folder(const fs::path& destination) {
  const fs::path parent = destination.has_parent_path() ? destination.parent_path() : ".";
  return parent / ("." + destination.filename().string() + ".blockscale-partial");
}

Staging::Staging(const fs::path& destination, bool is_file, nlohmann::json identity, bool resume,
                 int threads)
    : destination_(destination),
      is_file_(is_file),
      threads_(threads),
      folder_(staging_folder(destination)),
      result_(folder_ / "result"),
      manifest_({{"identity", std::move(identity)}, {"shards", nlohmann::json::object()}}) {
  if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) throw_io(folder_, "create", errno);
  lock();
  try {
    load(resume);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

Staging::~Staging() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Staging::lock() {
  Descriptor descriptor(folder_, O_RDONLY | O_DIRECTORY, "open");
  struct stat opened;
  struct stat named;
  const bool locked = ::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0;
  const bool same = locked && ::fstat(descriptor.get(), &opened) == 0 &&
                    ::stat(folder_.c_str(), &named) == 0 && opened.st_ino == named.st_ino;
  if (!same) {
    throw Error(ErrorCode::already_exists, folder_.string(),
                "is in use: another process converts to the same destination");
  }
  descriptor_ = descriptor.release();
}

void Staging::load(bool resume) {
  const fs::path path = folder_ / kManifest;
  std::error_code ignored;
  if (resume && fs::exists(path, ignored)) {
    nlohmann::json found = read_json_file(path);
    if (!found.is_object() || !found.contains("identity") || !found["identity"].is_object() ||
        !found.contains("shards") || !found["shards"].is_object()) {
      throw Error(ErrorCode::corrupt_file, path.string(), "is no manifest of a conversion");
    }
    for (const auto& [key, value] : manifest_["identity"].items()) {
      if (found["identity"].contains(key) && found["identity"][key] == value) continue;
      throw Error(ErrorCode::invalid_argument, "resume",
                  "the unfinished conversion in " + folder_.string() + " differs in " + key +
                      "; run without resume to start anew");
    }
    manifest_ = std::move(found);
    // Not "nothing is staged": what was replaced takes the place of what is published.
    if (manifest_.contains("publishing") && manifest_["publishing"] == inode_of(destination_)) {
      was_published_ = true;
      return;
    }
    manifest_.erase("publishing");
    fs::create_directories(result_);
    remove_stale_temporaries(folder_);
    remove_stale_temporaries(result_);
    return;
  }
  for (const auto& entry : fs::directory_iterator(folder_)) {
    fs::remove_all(entry.path());
    discarded_ = true;
  }
  fs::create_directories(result_);
  save();
}

void Staging::save() {
  write_file_atomically(folder_ / kManifest, manifest_.dump(1) + "\n");
}

fs::path Staging::staged() const {
  return is_file_ ? result_ / destination_.filename() : result_;
}

bool Staging::is_finished(const std::string& shard) const {
  const nlohmann::json& shards = manifest_.at("shards");
  const auto found = shards.find(shard);
  std::error_code error;
  const std::uintmax_t size = fs::file_size(result_ / shard, error);
  if (error || found == shards.end() || !found->is_object()) return false;
  const auto recorded = [&](const char* key) {
    const auto value = found->find(key);
    return value == found->end() ? nlohmann::json() : *value;
  };
  return recorded("bytes") == size && recorded("hash") == hex(hash_file(result_ / shard, threads_));
}

void Staging::record(const std::string& shard) {
  manifest_["shards"][shard] = {{"bytes", fs::file_size(result_ / shard)},
                                {"hash", hex(hash_file(result_ / shard, threads_))}};
  save();
}

void Staging::publish(bool overwrite) {
  sync_folder(result_);
  manifest_["publishing"] = inode_of(staged());
  save();
  const int failed =
      overwrite ? rename_over(staged(), destination_) : rename_new(staged(), destination_);
  if (failed == EEXIST) {
    throw Error(ErrorCode::already_exists, destination_.string(),
                "exists; it appeared during the conversion");
  }
  if (failed != 0) throw_io(destination_, "publish", failed);
  sync_folder(folder_.parent_path());
  discard();
}

void Staging::discard() noexcept {
  std::error_code ignored;
  // The manifest goes last: whoever resumes after a kill in between learns from it what was done.
  for (fs::directory_iterator entry(folder_, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (entry->path().filename() != kManifest) fs::remove_all(entry->path(), ignored);
  }
  fs::remove_all(folder_, ignored);
}

}  // namespace blockscale::models
