// What core/ needs from the compiler: fixed-width integers, the host/device qualifier, bit casts.
//
// core/ compiles as host C++20, with nvcc and with NVRTC. NVRTC has no C++ standard library, so
// nothing in core/ includes a standard header except through this file.
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

#if defined(__CUDACC__)
#define BLOCKSCALE_HD __host__ __device__
#else
#define BLOCKSCALE_HD
#endif

// A constant table that may be indexed with a run-time value: code for the device has its own copy.
#if defined(__CUDA_ARCH__)
#define BLOCKSCALE_TABLE static __device__ constexpr
#else
#define BLOCKSCALE_TABLE inline constexpr
#endif

namespace blockscale {

/// The bits of `value` as a `To`; both have the same size.
template <class To, class From>
BLOCKSCALE_HD constexpr To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

namespace detail {
template <int kBits>
struct Unsigned;
template <>
struct Unsigned<8> {
  using Type = uint8_t;
};
template <>
struct Unsigned<16> {
  using Type = uint16_t;
};
template <>
struct Unsigned<32> {
  using Type = uint32_t;
};
template <>
struct Unsigned<64> {
  using Type = uint64_t;
};
}  // namespace detail

/// The unsigned integer of so many bits.
template <int kBits>
using UnsignedOf = typename detail::Unsigned<kBits>::Type;

/// ceil(numerator / denominator) for numerator >= 0 and denominator > 0; never overflows.
BLOCKSCALE_HD constexpr int64_t ceil_div(int64_t numerator, int64_t denominator) {
  return numerator / denominator + (numerator % denominator != 0 ? 1 : 0);
}

}  // namespace blockscale
