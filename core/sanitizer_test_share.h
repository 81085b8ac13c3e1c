// What tests try less of under AddressSanitizer, which takes ten times as long: the same tests run
// without it, and there try all.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define BLOCKSCALE_IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKSCALE_IS_SANITIZED 1
#endif
#endif
#ifndef BLOCKSCALE_IS_SANITIZED
#define BLOCKSCALE_IS_SANITIZED 0
#endif

namespace blockscale::test {

inline constexpr bool kIsSanitized = BLOCKSCALE_IS_SANITIZED == 1;

/// How many of so many cases of the same kind are tried here: all, or a tenth.
constexpr std::int64_t cases_of(std::int64_t count) {
  return kIsSanitized ? (count + 9) / 10 : count;
}

}  // namespace blockscale::test
