#include "models/other_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "blockscale/files.h"
#include "models/index_file.h"
#include "models/staging.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

namespace fs = std::filesystem;

/// The same weights in other frameworks' files: they would contradict the converted ones.
bool holds_weights(const std::string& name) {
  constexpr std::array<std::string_view, 6> kFiles = {
      "pytorch_model.bin", "pytorch_model.bin.index.json",
      "tf_model.h5",       "flax_model.msgpack",
      "model.ckpt.index",  "rust_model.ot"};
  return std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end() ||
         (name.starts_with("pytorch_model-") && name.ends_with(".bin"));
}

bool is_ours(const std::string& name) {
  return is_temporary_name(name) ||
         (name.starts_with('.') && name.ends_with(".blockscale-partial"));
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const auto [rest, unused] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return rest == folder.end();
}

void check_link(const fs::path& link, const fs::path& home) {
  std::error_code error;
  const fs::path target = fs::canonical(link, error);
  if (error) throw_io(link, "follow the link", error.value());
  const fs::path snapshots = home.parent_path();
  const bool in_cache = snapshots.filename() == "snapshots" &&
                        target.parent_path() == snapshots.parent_path() / "blobs";
  if (!is_within(target, home) && !in_cache) {
    throw Error(ErrorCode::corrupt_file, link.string(),
                "is a link that leaves its folder, to " + quote(target.string()));
  }
}

void flush(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_io(path, "flush", errno);
  const int failed = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (failed != 0) throw_io(path, "flush", failed);
}

void copy_flushed(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) throw_io(from, "copy to " + to.string(), error.value());
  fs::permissions(to, fs::perms::owner_write, fs::perm_options::add, error);
  flush(to);
}

void copy_folder(const fs::path& from, const fs::path& to, const fs::path& home,
                 const std::set<std::string>& skipped) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (skipped.contains(name) || is_ours(name) || name == ".git" || name == ".cache") continue;
    if (entry.is_symlink()) {
      check_link(entry.path(), home);
      if (entry.is_directory()) continue;  // it lies in the folder, so it is copied as itself
    }
    if (entry.is_directory()) {
      copy_folder(entry.path(), to / name, home, {});
    } else if (entry.is_regular_file()) {
      copy_flushed(entry.path(), to / name);
    }
  }
  sync_folder(to);
}

}  // namespace

void copy_other_files(const TensorStore& source, const std::set<std::string>& written,
                      const fs::path& destination) {
  std::set<std::string> skipped = written;
  for (const SafetensorsFile& file : source.files()) {
    skipped.insert(file.path().filename().string());
  }
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(source.folder())) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(kIndexSuffix) || holds_weights(name)) skipped.insert(name);
    }
    copy_folder(source.folder(), destination, fs::canonical(source.folder()), skipped);
  } catch (const fs::filesystem_error& error) {
    throw_io(error.path1(), "copy", error.code().value());
  }
}

}  // namespace blockscale::models
