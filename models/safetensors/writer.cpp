#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "blockscale/files.h"
#include "blockscale/safetensors.h"
#include "models/safetensors/header.h"
#include "models/text.h"

namespace blockscale {
namespace {

/// The written part of one tensor, as disjoint ranges that do not touch.
class Coverage {
 public:
  /// False if some byte of [begin, end) is covered already.
  bool add(std::uint64_t begin, std::uint64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.end() && next->first < end) return false;
    if (next != ranges_.begin()) {
      const auto previous = std::prev(next);
      if (previous->second > begin) return false;
      if (previous->second == begin) {
        begin = previous->first;
        ranges_.erase(previous);
      }
    }
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      ranges_.erase(next);
    }
    ranges_.emplace(begin, end);
    return true;
  }

  /// First byte of [0, bytes) that is not covered, or `bytes`.
  std::uint64_t first_missing(std::uint64_t bytes) const {
    if (bytes == 0 || ranges_.empty() || ranges_.begin()->first != 0) return 0;
    return ranges_.begin()->second;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
};

/// `tensors` with `bytes` filled in.
std::vector<TensorInfo> sized(std::vector<TensorInfo> tensors) {
  for (TensorInfo& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (tensor.bytes != 0 && tensor.bytes != bytes) {
      throw Error(ErrorCode::invalid_argument, "tensors.bytes",
                  quote(tensor.name) + " states " + std::to_string(tensor.bytes) +
                      " bytes, dtype and shape need " + std::to_string(bytes));
    }
    tensor.bytes = bytes;
  }
  return tensors;
}

/// Offsets of the tensors in a file whose data starts at `position`, then the size of the file.
std::vector<std::uint64_t> layout(std::span<const TensorInfo> tensors, std::uint64_t position) {
  std::vector<std::uint64_t> offsets;
  offsets.reserve(tensors.size() + 1);
  for (const TensorInfo& tensor : tensors) {
    offsets.push_back(position);
    if (__builtin_add_overflow(position, tensor.bytes, &position)) {
      throw Error(ErrorCode::invalid_argument, "tensors", "their bytes exceed 2^64 - 1");
    }
  }
  offsets.push_back(position);
  return offsets;
}

}  // namespace

struct SafetensorsWriter::State {
  /// `make_file(bytes)` gives the AtomicFile.
  template <class MakeFile>
  State(std::vector<TensorInfo> infos, const std::string& header, MakeFile make_file)
      : tensors(std::move(infos)),
        offsets(layout(tensors, header.size())),
        coverage(tensors.size()),
        file(make_file(offsets.back())) {
    file.write(0, std::as_bytes(std::span(header)));
  }

  std::vector<TensorInfo> tensors;
  std::vector<std::uint64_t> offsets;  // of each tensor's data in the file, then the file's size
  std::mutex mutex;                    // guards `coverage`
  std::vector<Coverage> coverage;
  std::atomic<bool> failed = false;  // a write threw: what it covered may not be there
  AtomicFile file;
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  tensors = sized(std::move(tensors));
  const std::string header = make_header(tensors, metadata);
  state_ = std::make_unique<State>(std::move(tensors), header, [&](std::uint64_t bytes) {
    return AtomicFile(std::move(path), bytes);
  });
}

SafetensorsWriter::SafetensorsWriter(const Folder& folder, const std::string& name,
                                     std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     mode_t mode) {
  tensors = sized(std::move(tensors));
  const std::string header = make_header(tensors, metadata);
  state_ = std::make_unique<State>(std::move(tensors), header, [&](std::uint64_t bytes) {
    return AtomicFile(folder, name, bytes, mode);
  });
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  State& state = *state_;
  if (tensor >= state.tensors.size()) {
    throw Error(ErrorCode::invalid_argument, "tensor",
                "index " + std::to_string(tensor) + " is not below the number of tensors, " +
                    std::to_string(state.tensors.size()));
  }
  const TensorInfo& info = state.tensors[tensor];
  if (offset > info.bytes || bytes.size() > info.bytes - offset) {
    throw Error(ErrorCode::invalid_argument, "offset",
                std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) +
                    " leave tensor " + quote(info.name) + " of " + std::to_string(info.bytes) +
                    " bytes");
  }
  if (bytes.empty()) return;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.coverage[tensor].add(offset, offset + bytes.size())) {
      throw Error(ErrorCode::invalid_argument, "offset",
                  std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) +
                      " of tensor " + quote(info.name) + " were written already in part");
    }
  }
  try {
    state.file.write(state.offsets[tensor] + offset, bytes);
  } catch (...) {
    state.failed = true;
    throw;
  }
}

void SafetensorsWriter::publish() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.failed) {
    throw Error(ErrorCode::invalid_argument, state.file.path().string(),
                "cannot be published: an earlier write failed");
  }
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const TensorInfo& info = state.tensors[i];
    const std::uint64_t missing = state.coverage[i].first_missing(info.bytes);
    if (missing != info.bytes) {
      throw Error(ErrorCode::invalid_argument, state.file.path().string(),
                  "cannot be published: byte " + std::to_string(missing) + " of tensor " +
                      quote(info.name) + " was not written");
    }
  }
  state.file.publish();
}

}  // namespace blockscale
