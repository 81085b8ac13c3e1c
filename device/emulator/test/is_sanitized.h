// Whether tests run under AddressSanitizer, which takes several times as long.
#pragma once

namespace blockscale::emulator {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKSCALE_ASAN
#endif
#endif
#if defined(BLOCKSCALE_ASAN) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace blockscale::emulator
