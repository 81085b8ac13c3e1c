// Codes of e4m3 of which a k-block's sum by wgmma is furthest off, as far as is known.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/format.h"

namespace blockscale::test {

/// A row of A and one of B.
struct CodePair {
  std::vector<std::uint32_t> a, b;
};

/// `first`, then runs of {count, code}.
inline std::vector<std::uint32_t> codes_of(
    std::uint32_t first, const std::vector<std::pair<std::size_t, std::uint32_t>>& runs) {
  std::vector<std::uint32_t> codes = {first};
  for (const auto& [count, code] : runs) codes.insert(codes.end(), count, code);
  return codes;
}

/// 256 beside 127 products, each of which loses all but its highest bit: 65536 for 66496.4375.
inline CodePair worst_normal_codes() {
  const std::uint32_t large = encode<Format::e4m3>(256.0f), small = encode<Format::e4m3>(2.75f);
  const std::vector<std::uint32_t> codes = codes_of(large, {{127, small}});
  return {codes, codes};
}

/// 2^-9, which is aligned as if it were 2^-6: 0.5 for 0.5204.
inline CodePair worst_subnormal_codes() {
  const std::uint32_t large = encode<Format::e4m3>(256.0f);
  return {codes_of(1, {{31, 7}, {96, 1}}), codes_of(large, {{31, 17}, {96, 15}})};
}

}  // namespace blockscale::test
