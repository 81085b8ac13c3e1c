// libFuzzer: the header of a safetensors file, whatever its bytes.
#include <cstring>
#include <string>

#include "models/fuzzing.h"
#include "models/safetensors/header.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace blockscale {
namespace {

constexpr std::size_t kLengthBytes = 8;

using fuzz::require;

/// What parse_header promises of a header that it accepts.
void check_accepted(const SafetensorsHeader& header, std::span<const std::byte> file) {
  require(header.offsets.size() == header.tensors.size(), "an offset for each tensor");
  require(header.by_name.size() == header.tensors.size(), "a name for each tensor");
  std::uint64_t position = header.offsets.empty() ? file.size() : header.offsets.front();
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo& tensor = header.tensors[i];
    require(header.offsets[i] == position, "tensors follow each other");
    require(tensor.bytes == tensor_bytes(tensor.dtype, tensor.shape), "bytes of dtype and shape");
    position += tensor.bytes;
  }
  require(position == file.size(), "tensors end with the file");
  for (std::size_t i = 1; i < header.by_name.size(); ++i) {
    require(header.tensors[header.by_name[i - 1]].name < header.tensors[header.by_name[i]].name,
            "names sorted and different");
  }
}

/// A header that was accepted can be written, and reads back the same.
void check_round_trip(const SafetensorsHeader& header, std::span<const std::byte> file) {
  std::string bytes = make_header(header.tensors, header.metadata);
  require(bytes.size() % 8 == 0, "data 8-byte aligned");
  if (!header.offsets.empty()) {
    const auto data = file.subspan(static_cast<std::size_t>(header.offsets.front()));
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  const SafetensorsHeader again = parse_header(std::as_bytes(std::span(bytes)), "again");
  require(again.metadata == header.metadata, "metadata reads back");
  require(again.by_name == header.by_name, "names read back");
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo &a = header.tensors[i], &b = again.tensors[i];
    require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes,
            "tensors read back");
  }
}

}  // namespace
}  // namespace blockscale

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const blockscale::SafetensorsHeader header =
        blockscale::parse_header(file, blockscale::fuzz::kFile);
    blockscale::check_accepted(header, file);
    blockscale::check_round_trip(header, file);
  } catch (const blockscale::Error& error) {
    blockscale::fuzz::check_refused(error);
  }
  return 0;
}

/// Mostly mutates the JSON and keeps the length before it right, so that inputs get past it.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using blockscale::kLengthBytes;
  std::uint64_t length = 0;
  if (size >= kLengthBytes) std::memcpy(&length, data, kLengthBytes);
  const bool whole = size >= kLengthBytes && length <= size - kLengthBytes;
  if (!whole || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string tail(reinterpret_cast<const char*>(data) + kLengthBytes + length,
                   size - kLengthBytes - static_cast<std::size_t>(length));
  if (seed % 8 == 1) tail.resize(tail.size() + seed / 8 % 9);
  if (max_size < kLengthBytes + tail.size() + 1) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t json = LLVMFuzzerMutate(data + kLengthBytes, static_cast<std::size_t>(length),
                                            max_size - kLengthBytes - tail.size());
  length = json;
  std::memcpy(data, &length, kLengthBytes);
  std::memcpy(data + kLengthBytes + json, tail.data(), tail.size());
  return kLengthBytes + json + tail.size();
}
