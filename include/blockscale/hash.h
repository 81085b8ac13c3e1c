// What contents are recognised by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace blockscale {

/// The lower half of XXH3-128: tells damaged bytes from those that were recorded. No defence
/// against someone who alters both.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);
inline std::uint64_t hash_bytes(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text)));
}

}  // namespace blockscale
