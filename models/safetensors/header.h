// The header of a safetensors file: 8 bytes of length (little-endian), JSON, then the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "blockscale/safetensors.h"

namespace blockscale {

/// Limits that no real file comes near; the first is the reference implementation's.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 64;
constexpr std::size_t kMaxNameBytes = 1024;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;     // by offset, empty ones first, then by name
  std::vector<std::uint64_t> offsets;  // of each tensor's data, from the start of the file
  std::vector<std::uint32_t> by_name;  // indices into `tensors`, sorted by name
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of `file`, the bytes of the whole file, named `name` in errors.
/// Throws corrupt_file if any rule is broken; afterwards the tensors tile the data exactly.
SafetensorsHeader parse_header(std::span<const std::byte> file, const std::string& name);

/// The bytes of a file before its data, of a multiple of 8 (spaces pad the JSON). `bytes` of each
/// tensor must be right. Throws invalid_argument for names that are no text or appear twice, and
/// for a header beyond the limits above.
std::string make_header(std::span<const TensorInfo> tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace blockscale
