#include "models/convert/files/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "blockscale/hash.h"
#include "blockscale/parallel.h"
#include "models/json_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kResult = "result";
constexpr const char* kReplaced = "replaced";  // on file systems that cannot exchange two names
constexpr std::int64_t kHashChunk = std::int64_t{1} << 20;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

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

/// Of a regular file that is open.
std::uint64_t hash_open_file(int descriptor, const fs::path& path, std::int64_t size, int threads) {
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>((size + kHashChunk - 1) / kHashChunk));
  parallel_for(size, kHashChunk, threads, [&](std::int64_t begin, std::int64_t end) {
    std::string buffer(static_cast<std::size_t>(end - begin), 0);
    read_at(path, descriptor, begin, buffer);
    hashes[static_cast<std::size_t>(begin / kHashChunk)] = hash_bytes(std::string_view(buffer));
  });
  hashes.push_back(static_cast<std::uint64_t>(size));
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

/// Opens a name for reading; a link is not followed, a FIFO not waited for.
int open_entry(const Folder& folder, const std::string& name) {
  return ::openat(folder.descriptor(), name.c_str(),
                  O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/// A name in a folder.
struct Place {
  const Folder& folder;
  const std::string& name;
};

int rename_at(const Place& from, const Place& to, unsigned flags) {
  const int result = ::renameat2(from.folder.descriptor(), from.name.c_str(),
                                 to.folder.descriptor(), to.name.c_str(), flags);
  return result == 0 ? 0 : errno;
}

/// rename, failing with EEXIST if `to` exists.
int rename_new(const Place& from, const Place& to) {
  const int failed = rename_at(from, to, RENAME_NOREPLACE);
  if (failed != EINVAL && failed != ENOSYS) return failed;
  // A file system without RENAME_NOREPLACE.
  return to.folder.status(to.name) ? EEXIST : rename_at(from, to, 0);
}

/// Puts `from` in the place of `to`; what was there ends up at `from`, at `spare` or is gone.
int rename_over(const Place& from, const Place& to, const Place& spare) {
  int failed = rename_at(from, to, RENAME_EXCHANGE);
  if (failed == ENOENT) return rename_new(from, to);
  if (failed != EINVAL && failed != ENOSYS) return failed;
  // A file system without RENAME_EXCHANGE: files are still replaced at once, folders in two steps.
  if (rename_at(from, to, 0) == 0) return 0;
  if (failed = rename_at(to, spare, 0); failed != 0) return failed;
  if (failed = rename_at(from, to, 0); failed != 0) (void)rename_at(spare, to, 0);
  return failed;
}

/// What tells a file or folder from any other while it exists, whatever its name; null if there is
/// none.
nlohmann::json inode_of(const std::optional<struct stat>& status) {
  if (!status) return nullptr;
  return {{"device", status->st_dev}, {"inode", status->st_ino}};
}

/// Removes whatever `name` is, with all that is below; nothing of another file system.
void remove_tree(const Folder& folder, const std::string& name, dev_t device) {
  const auto status = folder.status(name);
  if (!status) return;
  if (!S_ISDIR(status->st_mode)) return folder.remove_file(name);
  const Folder opened = folder.open_folder(name);
  if (opened.status().st_dev != device) throw_io(opened.path(), "remove a mounted folder", EBUSY);
  for (const std::string& entry : opened.names()) remove_tree(opened, entry, device);
  folder.remove_folder(name);
}

bool is_manifest(const nlohmann::json& json) {
  const auto is = [&](const char* key, nlohmann::json::value_t type) {
    return json.contains(key) && json[key].type() == type;
  };
  using Type = nlohmann::json::value_t;
  const auto is_text = [](const nlohmann::json& name) { return name.is_string(); };
  if (!is("identity", Type::object) || !is("shards", Type::object) || !is("files", Type::array)) {
    return false;
  }
  const nlohmann::json& files = json["files"];
  if (!std::all_of(files.begin(), files.end(), is_text)) return false;
  if (!json.contains("publishing")) return true;
  const nlohmann::json& publishing = json["publishing"];
  return publishing.contains("published") && publishing.contains("replaced");
}

fs::path parent_of(const fs::path& destination) {
  return destination.has_parent_path() ? destination.parent_path() : ".";
}

}  // namespace

std::uint64_t hash_file(const fs::path& path, int threads) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) throw_io(path, "read", errno);
  return hash_open_file(file.get(), path, status.st_size, threads);
}

fs::path staging_folder(const fs::path& destination) {
  return parent_of(destination) / ("." + destination.filename().string() + ".blockscale-partial");
}

Staging::Staging(const fs::path& destination, bool is_file, nlohmann::json identity,
                 std::set<std::string> files, bool resume, int threads)
    : destination_(destination),
      name_(destination.filename().string()),
      is_file_(is_file),
      threads_(threads),
      parent_(Folder::open(parent_of(destination))),
      folder_name_(staging_folder(destination).filename().string()),
      created_(parent_.make_folder(folder_name_, 0700)),
      folder_(enter()),
      result_(folder_),  // until there is one
      files_(std::move(files)),
      claimed_(files_),
      manifest_({{"identity", std::move(identity)},
                 {"files", files_},
                 {"shards", nlohmann::json::object()}}) {
  try {
    load(resume);
  } catch (...) {
    if (created_) discard();
    throw;
  }
}

/// Opens and locks the folder, if it is ours.
Folder Staging::enter() {
  const fs::path path = parent_.path() / folder_name_;
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::already_exists, path.string(), reason);
  };
  const auto found = parent_.status(folder_name_);
  if (found && !S_ISDIR(found->st_mode)) {
    refuse(
        std::string("is ") + file_type_name(found->st_mode) +
        ", not the folder of an unfinished conversion; remove it, or choose another destination");
  }
  Folder folder = parent_.open_folder(folder_name_);
  const struct stat opened = folder.status();
  // Where the file system gives files other owners than their makers, what was just made is ours.
  if (!created_ && opened.st_uid != ::geteuid()) {
    refuse("belongs to user " + std::to_string(opened.st_uid) + ", not to " +
           std::to_string(::geteuid()) + "; remove it, or choose another destination");
  }
  owner_ = opened.st_uid;
  if (::flock(folder.descriptor(), LOCK_EX | LOCK_NB) != 0 ||
      inode_of(parent_.status(folder_name_)) != inode_of(opened)) {
    refuse("is in use: another process converts to the same destination");
  }
  return folder;
}

/// The manifest that an earlier run left, if there is one.
std::optional<nlohmann::json> Staging::read_manifest() const {
  const fs::path path = folder_.path() / kManifest;
  const Descriptor file(open_entry(folder_, kManifest));
  if (file.get() < 0 && errno == ENOENT) return std::nullopt;
  struct stat status = {};
  nlohmann::json found;
  if (file.get() >= 0 && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      status.st_uid == owner_) {
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    read_at(path, file.get(), 0, text);
    found = parse_json(text, path.string());
  }
  if (!is_manifest(found)) {
    throw Error(ErrorCode::corrupt_file, path.string(),
                "is no manifest of a conversion; remove its folder if nothing in it is needed");
  }
  return found;
}

void Staging::load(bool resume) {
  nlohmann::json fresh = manifest_;
  const std::optional<nlohmann::json> found = read_manifest();
  if (found) {
    manifest_ = *found;
    for (const auto& name : manifest_["files"]) claimed_.insert(name.get<std::string>());
  }
  check_ours("move it away, or choose another destination");
  if (found && resume) {
    check_identity(fresh["identity"]);
    // Not "nothing is staged": what was replaced takes the place of what is published.
    if (manifest_.contains("publishing") &&
        manifest_["publishing"]["published"] == inode_of(parent_.status(name_))) {
      was_published_ = true;
      return;
    }
    std::set<std::string> shards;
    for (const auto& [shard, state] : manifest_["shards"].items()) shards.insert(shard);
    remove_ours(shards);
    manifest_.erase("publishing");
  } else {
    discarded_ = found.has_value();
    remove_ours({});
    manifest_ = std::move(fresh);
  }
  manifest_["files"] = files_;
  claimed_ = files_;
  save();
  (void)folder_.make_folder(kResult);
  result_ = folder_.open_folder(kResult);
}

void Staging::check_identity(const nlohmann::json& wanted) const {
  const nlohmann::json& have = manifest_.at("identity");
  for (const auto& [key, value] : wanted.items()) {
    if (have.contains(key) && have[key] == value) continue;
    throw Error(ErrorCode::invalid_argument, "resume",
                "the unfinished conversion in " + folder_.path().string() + " differs in " + key +
                    "; run without resume to start anew");
  }
}

void Staging::save() const {
  write_file_atomically(folder_, kManifest, manifest_.dump(1) + "\n");
}

/// Whether this is what the conversion took the place of.
bool Staging::was_replaced(const std::optional<struct stat>& status) const {
  return status && manifest_.contains("publishing") &&
         manifest_["publishing"]["replaced"] == inode_of(status);
}

/// The first entry, by path within the folder, that no conversion made; empty if there is none.
std::string Staging::foreign_entry() const {
  for (const std::string& name : folder_.names()) {
    const auto status = folder_.status(name);
    if (!status) continue;
    const bool our_file = S_ISREG(status->st_mode) && status->st_uid == owner_ &&
                          (name == kManifest || is_temporary_name(name));
    const bool old_destination = (name == kResult || name == kReplaced) && was_replaced(status);
    if (our_file || old_destination) continue;
    const bool manifest = folder_.status(kManifest).has_value();
    if (!manifest || name != kResult || !S_ISDIR(status->st_mode)) return name;
    const std::string below = foreign_below(folder_.open_folder(name), "");
    if (!below.empty()) return name + "/" + below;
  }
  return "";
}

std::string Staging::foreign_below(const Folder& folder, const std::string& prefix) const {
  for (const std::string& name : folder.names()) {
    const std::string path = prefix + name;
    const auto status = folder.status(name);
    if (!status || (path == name_ && is_file_ && was_replaced(status))) continue;
    if (status->st_uid != owner_) return path;
    if (S_ISREG(status->st_mode)) {
      if (!claimed_.contains(path) && !is_temporary_name(name)) return path;
      continue;
    }
    const auto first = claimed_.lower_bound(path + "/");
    if (!S_ISDIR(status->st_mode) || first == claimed_.end() || !first->starts_with(path + "/")) {
      return path;
    }
    const std::string below = foreign_below(folder.open_folder(name), path + "/");
    if (!below.empty()) return below;
  }
  return "";
}

void Staging::check_ours(const std::string& advice) const {
  const std::string foreign = foreign_entry();
  if (foreign.empty()) return;
  throw Error(
      ErrorCode::already_exists, folder_.path().string(),
      "holds " + quote(foreign) + ", which no conversion to this destination made; " + advice);
}

/// Removes everything but the manifest and the files of the result in `kept`, after `check_ours`.
void Staging::remove_ours(const std::set<std::string>& kept) const {
  const dev_t device = folder_.status().st_dev;
  for (const std::string& name : folder_.names()) {
    if (name == kManifest) continue;
    const auto status = folder_.status(name);
    if (name != kResult || was_replaced(status)) {
      remove_tree(folder_, name, device);
      continue;
    }
    remove_below(folder_.open_folder(name), "", kept);
    if (kept.empty()) folder_.remove_folder(name);
  }
}

void Staging::remove_below(const Folder& folder, const std::string& prefix,
                           const std::set<std::string>& kept) const {
  for (const std::string& name : folder.names()) {
    const std::string path = prefix + name;
    if (kept.contains(path)) continue;
    const auto status = folder.status(name);
    if (status && S_ISDIR(status->st_mode)) {
      remove_below(folder.open_folder(name), path + "/", {});
      folder.remove_folder(name);
    } else {
      folder.remove_file(name);
    }
  }
}

bool Staging::is_finished(const std::string& shard) const {
  const nlohmann::json& shards = manifest_.at("shards");
  const auto found = shards.find(shard);
  const Descriptor file(open_entry(result_, shard));
  struct stat status;
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      found == shards.end() || !found->is_object()) {
    return false;
  }
  const auto recorded = [&](const char* key) {
    const auto value = found->find(key);
    return value == found->end() ? nlohmann::json() : *value;
  };
  return recorded("bytes") == status.st_size &&
         recorded("hash") ==
             hex(hash_open_file(file.get(), result_.path() / shard, status.st_size, threads_));
}

void Staging::record(const std::string& shard) {
  const Descriptor file(open_entry(result_, shard));
  struct stat status;
  const fs::path path = result_.path() / shard;
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) throw_io(path, "read", errno);
  manifest_["shards"][shard] = {
      {"bytes", status.st_size},
      {"hash", hex(hash_open_file(file.get(), path, status.st_size, threads_))}};
  save();
}

/// The folder in which the result lies under the name that it, or a file, is staged by.
Folder Staging::staged_in() const {
  return is_file_ ? result_ : folder_;
}

void Staging::publish(bool overwrite) {
  result_.sync();
  check_ours("move it away, and resume");
  const Folder from = staged_in();
  const std::string staged_name = is_file_ ? name_ : kResult;
  const std::string spare_name = kReplaced;
  const Place staged{from, staged_name};
  const Place target{parent_, name_};
  const auto replaced = overwrite ? parent_.status(name_) : std::nullopt;
  if (replaced) {
    const mode_t mode = (replaced->st_mode & 0777) | (is_file_ ? 0600 : 0700);
    if (::fchmodat(from.descriptor(), staged_name.c_str(), mode, 0) != 0) {
      throw_io(destination_, "set the permissions of", errno);
    }
  }
  manifest_["publishing"] = {{"published", inode_of(from.status(staged_name))},
                             {"replaced", inode_of(replaced)}};
  save();
  const int failed =
      replaced ? rename_over(staged, target, {folder_, spare_name}) : rename_new(staged, target);
  const auto appeared = [&] {
    throw Error(ErrorCode::already_exists, destination_.string(),
                "exists; it appeared during the conversion");
  };
  if (failed == EEXIST) appeared();
  if (failed != 0) throw_io(destination_, "publish", failed);
  if (const auto found = from.status(staged_name); found && !was_replaced(found)) {
    // Not what was looked at: back with it.
    (void)rename_at(staged, target, RENAME_EXCHANGE);
    appeared();
  }
  parent_.sync();
  discard();
}

void Staging::discard() noexcept {
  try {
    if (!foreign_entry().empty()) return;
    // The manifest goes last: whoever resumes after a kill in between learns from it what was done.
    remove_ours({});
    if (folder_.status(kManifest)) folder_.remove_file(kManifest);
    parent_.remove_folder(folder_name_);
  } catch (const std::exception&) {
    // What cannot be removed stays.
    return;
  }
}

}  // namespace blockscale::models
