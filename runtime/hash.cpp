#include "runtime/hash.h"

#define XXH_INLINE_ALL  // no library to link or to bundle
#include <xxhash.h>

#include <array>

#include "blockscale/hash.h"

namespace blockscale {

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return runtime::hash_bytes(bytes).low;
}

namespace runtime {

struct Hasher::State {
  XXH3_state_t xxh;
};

std::string hexadecimal(const Hash128& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {hash.high, hash.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[half >> shift & 15];
  }
  return text;
}

Hash128 hash_bytes(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

Hasher::~Hasher() = default;

Hasher& Hasher::add(std::string_view text) {
  add(std::uint64_t{text.size()});
  XXH3_128bits_update(&state_->xxh, text.data(), text.size());
  return *this;
}

Hasher& Hasher::add(std::uint64_t number) {
  std::array<unsigned char, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  }
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
  return *this;
}

Hash128 Hasher::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace runtime
}  // namespace blockscale
