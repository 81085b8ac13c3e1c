// Where a conversion builds its result: a folder `.NAME.blockscale-partial` beside the destination,
// with a manifest of what it makes. Nothing appears at the destination before `publish`, and a
// process that is killed at any moment leaves either a folder that `resume` continues from, or a
// complete destination.
//
//   .NAME.blockscale-partial/manifest.json   identity (options and source), files, finished shards
//   .NAME.blockscale-partial/result/         becomes the destination, or holds it (one file)
//
// The folder is its user's alone (mode 0700) and is worked in through descriptors, never through
// its path: a link or another folder put in its place is not entered. What the manifest does not
// name is not ours, and is neither published nor removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "blockscale/files.h"

namespace blockscale::models {

class Staging {
 public:
  /// Takes the folder over, creating it if need be. `files` are the paths within the result that
  /// will be made. A folder left by another run is continued with `resume`, else emptied. Throws
  /// invalid_argument (argument "resume") if it was left with another identity; already_exists if
  /// another process is at work in it, or if it is not ours: a link, another user's, without a
  /// manifest, or with files that the manifest does not name; not_found, io.
  Staging(const std::filesystem::path& destination, bool is_file, nlohmann::json identity,
          std::set<std::string> files, bool resume, int threads);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Where the files are to be made.
  const Folder& result() const { return result_; }
  /// Whether an unfinished run was found and thrown away.
  bool discarded() const { return discarded_; }
  /// Whether the run that is resumed had already published the destination.
  bool was_published() const { return was_published_; }

  /// Whether this shard is recorded, and its size and contents are those recorded.
  bool is_finished(const std::string& shard) const;
  /// How many shards are recorded.
  std::size_t finished_shards() const { return manifest_.at("shards").size(); }
  /// Records a shard that lies published in `result()`.
  void record(const std::string& shard);
  /// Moves the result to the destination in one step and removes the folder. With `overwrite`, what
  /// is there is exchanged for it, and hands its permissions down; else already_exists is thrown if
  /// something appeared. Also throws it if the result holds what this conversion did not make.
  void publish(bool overwrite);
  /// Removes the folder and everything in it, unless something in it is not ours.
  void discard() noexcept;

 private:
  Folder enter();
  void load(bool resume);
  std::optional<nlohmann::json> read_manifest() const;
  void check_identity(const nlohmann::json& wanted) const;
  void save() const;
  void check_ours(const std::string& advice) const;
  std::string foreign_entry() const;
  std::string foreign_below(const Folder& folder, const std::string& prefix) const;
  void remove_ours(const std::set<std::string>& kept) const;
  void remove_below(const Folder& folder, const std::string& prefix,
                    const std::set<std::string>& kept) const;
  bool was_replaced(const std::optional<struct stat>& status) const;
  Folder staged_in() const;

  std::filesystem::path destination_;
  std::string name_;  // of the destination in parent_
  bool is_file_;
  int threads_;
  Folder parent_;
  std::string folder_name_;
  bool created_ = false;
  uid_t owner_ = 0;                // of the folder, and so of all that we made in it
  Folder folder_;                  // locked
  Folder result_;                  // within it
  std::set<std::string> files_;    // that this run makes
  std::set<std::string> claimed_;  // and those that the run before made
  nlohmann::json manifest_;
  bool discarded_ = false;
  bool was_published_ = false;
};

/// Where a destination is built.
std::filesystem::path staging_folder(const std::filesystem::path& destination);

/// Hash of a file's contents, for recognising damage; not cryptographic. Same for any `threads`.
std::uint64_t hash_file(const std::filesystem::path& path, int threads);

}  // namespace blockscale::models
