// Where a conversion builds its result: a folder `.NAME.blockscale-partial` beside the destination,
// with a manifest of the finished shards. Nothing appears at the destination before `publish`, and
// a process that is killed at any moment leaves either a folder that `resume` continues from, or a
// complete destination.
//
//   .NAME.blockscale-partial/manifest.json   identity (options and source), finished shards
//   .NAME.blockscale-partial/result/         becomes the destination, or holds it (one file)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "blockscale/error.h"

namespace blockscale::models {

class Staging {
 public:
  /// Takes the folder over, creating it if need be. A folder left by another run is continued with
  /// `resume`, else emptied. Throws invalid_argument (argument "resume") if it was left with
  /// another identity, already_exists if another process is at work in it, not_found, io.
  Staging(const std::filesystem::path& destination, bool is_file, nlohmann::json identity,
          bool resume, int threads);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  const std::filesystem::path& result() const { return result_; }
  /// Whether an unfinished run was found and thrown away.
  bool discarded() const { return discarded_; }
  /// Whether the run that is resumed had already published the destination.
  bool was_published() const { return was_published_; }

  /// Whether this shard is recorded, and its size and contents are those recorded.
  bool is_finished(const std::string& shard) const;
  /// Records a shard that lies published in `result()`.
  void record(const std::string& shard);
  /// Moves the result to the destination in one step and removes the folder. With `overwrite`, what
  /// is there is exchanged for it, else already_exists is thrown if something appeared.
  void publish(bool overwrite);
  /// Removes the folder and everything in it.
  void discard() noexcept;

 private:
  void lock();
  void load(bool resume);
  void save();
  std::filesystem::path staged() const;

  std::filesystem::path destination_;
  bool is_file_;
  int threads_;
  std::filesystem::path folder_;
  std::filesystem::path result_;
  nlohmann::json manifest_;
  int descriptor_ = -1;  // of the folder, locked
  bool discarded_ = false;
  bool was_published_ = false;
};

/// Where a destination is built.
std::filesystem::path staging_folder(const std::filesystem::path& destination);

/// Hash of a file's contents, for recognising damage; not cryptographic. Same for any `threads`.
std::uint64_t hash_file(const std::filesystem::path& path, int threads);
/// Hash of bytes in memory, of the same kind.
std::uint64_t hash_bytes(std::string_view bytes);

/// Flushes a folder's entries, so that a rename within it survives a power failure.
void sync_folder(const std::filesystem::path& folder);

}  // namespace blockscale::models
