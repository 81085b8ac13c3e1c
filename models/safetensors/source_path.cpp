#include "models/safetensors/source_path.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "models/text.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRevisionBytes = 255;

fs::path without_links(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  if (error) throw_io(path, "open", error.value());
  return target;
}

/// What refs/main names; empty if there is no such file.
std::string main_revision(const fs::path& model) {
  const fs::path path = model / "refs" / "main";
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return "";
  check_contained(path, model);
  const MappedFile file = MappedFile::open(path);
  std::string name(reinterpret_cast<const char*>(file.bytes().data()),
                   std::min(file.bytes().size(), kMaxRevisionBytes + 1));
  while (name.ends_with('\n')) name.pop_back();
  if (name.empty() || name.size() > kMaxRevisionBytes || name.starts_with('.') ||
      name.find('/') != std::string::npos || has_control_character(name)) {
    throw Error(ErrorCode::corrupt_file, path.string(), "does not name a revision");
  }
  return name;
}

}  // namespace

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

void check_contained(const fs::path& file, const fs::path& folder) {
  const fs::path target = without_links(file);
  const fs::path home = without_links(folder);
  const fs::path snapshots = home.parent_path();
  const bool in_cache = snapshots.filename() == "snapshots" &&
                        target.parent_path() == snapshots.parent_path() / "blobs";
  if (is_within(target, home) || in_cache) return;
  throw Error(ErrorCode::corrupt_file, file.string(),
              "is a link that leaves its folder, to " + quote(target.string()));
}

fs::path resolve_source(const fs::path& named) {
  std::error_code ignored;
  const fs::path model = named.has_filename() ? named : named.parent_path();
  const fs::path snapshots = model / "snapshots";
  if (!model.filename().string().starts_with("models--") || !fs::is_directory(snapshots, ignored)) {
    return named;
  }
  if (const std::string revision = main_revision(model); !revision.empty()) {
    if (fs::is_directory(snapshots / revision, ignored)) return snapshots / revision;
    throw Error(ErrorCode::not_found, (snapshots / revision).string(),
                "is not there, but refs/main of the Hugging Face cache names it");
  }
  std::vector<std::string> found;
  for (const std::string& name : Folder::open(snapshots).names()) {
    if (fs::is_directory(snapshots / name, ignored)) found.push_back(name);
  }
  if (found.size() == 1) return snapshots / found.front();
  if (found.empty()) {
    throw Error(ErrorCode::not_found, named.string(),
                "is a Hugging Face cache without any snapshot of the model");
  }
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : ", ") + quote(name);
  throw Error(ErrorCode::invalid_argument, named.string(),
              "holds " + std::to_string(found.size()) +
                  " snapshots and no refs/main; name one of the folders in " + snapshots.string() +
                  ": " + names);
}

}  // namespace blockscale
