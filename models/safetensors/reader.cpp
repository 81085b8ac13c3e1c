#include <algorithm>
#include <utility>

#include "blockscale/files.h"
#include "blockscale/safetensors.h"
#include "models/safetensors/header.h"
#include "models/text.h"

namespace blockscale {

struct SafetensorsFile::State {
  MappedFile file;
  SafetensorsHeader header;

  /// Index of the tensor named `name`, or the number of tensors.
  std::size_t index_of(std::string_view name) const {
    const auto& by_name = header.by_name;
    const auto found = std::lower_bound(
        by_name.begin(), by_name.end(), name,
        [&](std::uint32_t i, std::string_view key) { return header.tensors[i].name < key; });
    const bool here = found != by_name.end() && header.tensors[*found].name == name;
    return here ? *found : header.tensors.size();
  }

  /// Offset of the data of a tensor of this file, given as itself or as a copy.
  std::uint64_t offset_of(const TensorInfo& tensor) const {
    const std::size_t index = index_of(tensor.name);
    if (index == header.tensors.size() || header.tensors[index].bytes != tensor.bytes) {
      throw Error(ErrorCode::invalid_argument, "tensor",
                  quote(tensor.name) + " of " + std::to_string(tensor.bytes) + " bytes is not in " +
                      file.path().string());
    }
    return header.offsets[index];
  }
};

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file = MappedFile::open(path);
  SafetensorsHeader header = parse_header(file.bytes(), path.string());
  SafetensorsFile result;
  result.state_ = std::make_shared<const State>(State{std::move(file), std::move(header)});
  return result;
}

const std::vector<TensorInfo>& SafetensorsFile::tensors() const {
  return state_->header.tensors;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const std::size_t index = state_->index_of(name);
  return index < state_->header.tensors.size() ? &state_->header.tensors[index] : nullptr;
}

std::span<const std::byte> SafetensorsFile::data(const TensorInfo& tensor) const {
  const std::uint64_t offset = state_->offset_of(tensor);
  state_->file.check_size();
  return state_->file.bytes().subspan(static_cast<std::size_t>(offset),
                                      static_cast<std::size_t>(tensor.bytes));
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}

const std::filesystem::path& SafetensorsFile::path() const {
  return state_->file.path();
}

std::uint64_t SafetensorsFile::file_bytes() const {
  return state_->file.bytes().size();
}

void SafetensorsFile::drop(const TensorInfo& tensor) const {
  state_->file.drop(state_->offset_of(tensor), tensor.bytes);
}

}  // namespace blockscale
