#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "blockscale/files.h"
#include "blockscale/safetensors.h"
#include "models/safetensors/file_set.h"
#include "models/safetensors/header_store.h"
#include "models/safetensors/index_file.h"
#include "models/safetensors/source_path.h"
#include "models/text.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;

/// Regular names (none that start with a dot) in `folder` that end with `suffix`, sorted.
std::vector<fs::path> list(const fs::path& folder, std::string_view suffix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(suffix) && !name.starts_with('.')) found.push_back(entry->path());
  }
  if (error) throw_io(folder, "list", error.value());
  std::sort(found.begin(), found.end());
  return found;
}

/// The one index of a folder, if it has any; of several that are equal that of diffusers, if it is
/// among them.
std::optional<fs::path> find_index(const fs::path& folder) {
  const std::vector<fs::path> found = list(folder, kIndexSuffix);
  const bool equal = std::all_of(found.begin(), found.end(), [&](const fs::path& index) {
    return index == found.front() || are_equal_indices(index, found.front());
  });
  if (!equal) {
    std::string names;
    for (const fs::path& index : found) {
      names += (names.empty() ? "" : ", ") + quote(index.filename().string());
    }
    throw Error(ErrorCode::invalid_argument, folder.string(),
                "holds " + std::to_string(found.size()) +
                    " checkpoints; name one of their index files: " + names);
  }
  const auto diffusers = std::find(found.begin(), found.end(), folder / kDiffusersIndex);
  if (diffusers != found.end()) return *diffusers;
  return found.empty() ? std::nullopt : std::optional(found.front());
}

std::vector<fs::path> shards_of(const TensorIndex& index) {
  std::set<std::string> names;
  for (const auto& [tensor, shard] : index) names.insert(shard);
  return {names.begin(), names.end()};
}

/// Refuses tensors that are not in the shard which the index names.
void check_index(const TensorIndex& index, const TensorStore& store, const fs::path& path) {
  for (const auto& [name, shard] : index) {
    const TensorStore::Entry* entry = store.find(name);
    const std::string expected = "tensor " + quote(name) + " is not in " + quote(shard);
    if (entry == nullptr) {
      throw Error(ErrorCode::corrupt_file, path.string(), expected + ", as the index says");
    }
    const std::string actual = store.files()[entry->file].path().filename().string();
    if (actual != shard) {
      throw Error(ErrorCode::corrupt_file, path.string(),
                  expected + ", as the index says, but in " + quote(actual));
    }
  }
}

}  // namespace

TensorStore TensorStore::open(const fs::path& named) {
  const fs::path file_or_folder = resolve_source(named);
  std::error_code error;
  const fs::file_status status = fs::status(file_or_folder, error);
  if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none) {
    throw_io(file_or_folder, "open", error ? error.value() : ENOENT);
  }
  TensorStore store;
  const bool given_index = file_or_folder.string().ends_with(kIndexSuffix);
  store.is_folder_ = fs::is_directory(status) || given_index;
  store.folder_ = fs::is_directory(status)           ? file_or_folder
                  : file_or_folder.has_parent_path() ? file_or_folder.parent_path()
                                                     : fs::path(".");
  std::optional<fs::path> index_path;
  std::vector<fs::path> shards;
  TensorIndex index;
  if (!store.is_folder_) {
    shards = {file_or_folder};
  } else {
    index_path = given_index ? std::optional(file_or_folder) : find_index(store.folder_);
    if (index_path) {
      if (!given_index) check_contained(*index_path, store.folder_);
      index = read_index(*index_path);
      for (const fs::path& name : shards_of(index)) shards.push_back(store.folder_ / name);
    } else {
      std::vector<std::string> names;
      for (const fs::path& file : list(store.folder_, ".safetensors")) {
        names.push_back(file.filename().string());
      }
      for (const std::string& name : choose_files(names, file_or_folder.string())) {
        shards.push_back(store.folder_ / name);
      }
    }
    for (const fs::path& shard : shards) check_contained(shard, store.folder_);
  }
  for (const fs::path& shard : shards) store.add_file(SafetensorsFile::open(shard));
  if (index_path) {
    check_index(index, store, *index_path);
    store.index_ = *index_path;
  }
  return store;
}

void TensorStore::add_file(SafetensorsFile file) {
  for (const TensorInfo& info : file.tensors()) {
    const auto [entry, added] = tensors_.emplace(info.name, Entry{info, files_.size()});
    if (!added) {
      throw Error(ErrorCode::corrupt_file, file.path().string(),
                  "tensor " + quote(info.name) + " is in " +
                      quote(files_[entry->second.file].path().filename().string()) + " too");
    }
  }
  files_.push_back(std::move(file));
}

TensorStore header_store(const std::vector<TensorInfo>& tensors, const fs::path& index) {
  TensorStore store;
  store.index_ = index;
  for (const TensorInfo& info : tensors)
    store.tensors_.emplace(info.name, TensorStore::Entry{info});
  return store;
}

const TensorStore::Entry* TensorStore::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::span<const std::byte> TensorStore::data(const Entry& entry) const {
  if (entry.file >= files_.size()) {
    throw Error(ErrorCode::invalid_argument, "entry.file",
                std::to_string(entry.file) + " is not below the number of files, " +
                    std::to_string(files_.size()));
  }
  return files_[entry.file].data(entry.info);
}

}  // namespace blockscale
