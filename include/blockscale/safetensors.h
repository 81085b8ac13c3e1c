// safetensors files and sharded folders: a reader over mmap that trusts nothing, and a writer that
// streams and publishes atomically. Knows no quantization.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockscale/error.h"

namespace blockscale {

class Folder;

/// Element types of safetensors 0.7, named as in the file.
enum class DType : std::uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};
std::string_view dtype_name(DType dtype);
int dtype_bits(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
/// Bytes of a tensor. Throws invalid_argument (argument "shape") for a negative dimension, more
/// than 2^63 - 1 bits, or 4- and 6-bit elements that do not fill whole bytes.
std::uint64_t tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

/// One tensor of a file: shape counts elements (F4 and F6 too), bytes are those of `data`. Names
/// are UTF-8 without control characters, at most 1024 bytes; shapes have at most 64 dimensions.
struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
};

/// A read-only safetensors file, mapped. Views stay valid as long as a copy of the object lives.
/// The file must not be truncated meanwhile: `data` throws io if it was, and a later truncation
/// raises SIGBUS in whoever reads the data (see `exit_on_truncated_mapping`).
class SafetensorsFile {
 public:
  /// Throws not_found, io (also if it is no regular file), or corrupt_file naming the file, the
  /// tensor and the rule it breaks: header length, JSON depth and size, duplicate names, unknown
  /// dtype, shape overflow, offsets out of range, overlapping or with holes, bytes that do not
  /// match dtype and shape. Every rule is in docs/checkpoints.md.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const;  // in file order (by offset)
  const TensorInfo* find(std::string_view name) const;
  /// The bytes of a tensor of this file (or of a copy of its TensorInfo); may be misaligned for its
  /// dtype. Throws io if the file shrank since it was opened.
  std::span<const std::byte> data(const TensorInfo& tensor) const;
  const std::map<std::string, std::string>& metadata() const;
  const std::filesystem::path& path() const;
  std::uint64_t file_bytes() const;
  /// Tells the kernel that these pages are not needed any more (keeps resident memory low).
  void drop(const TensorInfo& tensor) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A checkpoint's tensors: one file, or a folder with *.safetensors.index.json and its shards, or a
/// folder with safetensors files and no index.
class TensorStore {
 public:
  /// Of a folder without an index: model.safetensors, else diffusion_pytorch_model.safetensors,
  /// else a complete numbered set, else the only file (docs/checkpoints.md). Throws not_found,
  /// naming what such a set lacks, and invalid_argument where nothing says which files are meant.
  /// Also refuses an index that names shards that are missing or outside the folder, tensors that
  /// are not in their shard, and names that appear twice. A folder with several indices is refused:
  /// give the path of one of them instead. A shard or index may be a link only within its folder,
  /// or into the blobs of a Hugging Face cache. Such a cache's models--ORG--NAME stands for the
  /// snapshot that refs/main names, or the only one.
  static TensorStore open(const std::filesystem::path& file_or_folder);

  struct Entry {
    TensorInfo info;
    std::size_t file = 0;  // index into files()
  };
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::map<std::string, Entry, std::less<>>& tensors() const { return tensors_; }
  const Entry* find(std::string_view name) const;
  std::span<const std::byte> data(const Entry& entry) const;
  /// The folder that holds config.json and friends: the folder itself, or the file's.
  const std::filesystem::path& folder() const { return folder_; }
  bool is_folder() const { return is_folder_; }
  /// The index that was read; empty if there is none.
  const std::filesystem::path& index() const { return index_; }

 private:
  friend TensorStore header_store(const std::vector<TensorInfo>& tensors,
                                  const std::filesystem::path& index);  // of models/
  void add_file(SafetensorsFile file);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
  std::filesystem::path folder_;
  std::filesystem::path index_;
  bool is_folder_ = false;
};

/// Streams one safetensors file: the header is written first (all sizes are known), then tensor
/// data in any order and in pieces, by any thread. The file appears under its name only in
/// `publish()` (temporary name in the same folder, fsync, rename, fsync of the folder); a writer
/// that is destroyed unpublished removes its temporary file.
class SafetensorsWriter {
 public:
  /// Tensors are laid out in the given order without gaps, the first 8-byte aligned. `bytes` may be
  /// 0: dtype and shape decide. The space is reserved here. Throws invalid_argument (also if
  /// `path` is there and no regular file), not_found (no such folder), io (space, permission).
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// A file `name` in an open folder (blockscale/files.h).
  SafetensorsWriter(const Folder& folder, const std::string& name, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata, mode_t mode = 0666);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Writes `bytes` at `offset` of the tensor's data, each byte once. Thread-safe. Throws io, or
  /// invalid_argument for bytes outside the tensor or written before.
  void write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Throws invalid_argument if some byte was not written, io. Replaces a file of that name.
  void publish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace blockscale
