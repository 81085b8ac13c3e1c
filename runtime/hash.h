// XXH3-128: what names a kernel's sources and guards stored bytes against damage. Not a defence
// against someone who alters both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace blockscale::runtime {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
};

/// 32 hexadecimal digits.
std::string hexadecimal(const Hash128& hash);

Hash128 hash_bytes(std::span<const std::byte> bytes);

/// A hash over a sequence of texts and numbers; every text counts its length too, so that moving
/// bytes from one to the next changes the result.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  Hasher& add(std::string_view text);
  Hasher& add(std::uint64_t number);
  Hasher& add(const Hash128& hash) { return add(hash.high).add(hash.low); }
  Hash128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace blockscale::runtime
