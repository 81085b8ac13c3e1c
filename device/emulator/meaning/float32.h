// What f32 instructions compute: pure functions, no emulator state.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/config.h"

namespace blockscale::emulator::meaning {

inline constexpr uint32_t kF32Nan = 0x7FFFFFFFu;  // the NaN that f32 arithmetic produces

inline float canonical(float x) {
  return x == x ? x : bit_cast<float>(kF32Nan);
}

inline float fma(float a, float b, float c) {
  return canonical(std::fma(a, b, c));
}
inline float add(float a, float b) {
  return canonical(a + b);
}
inline float sub(float a, float b) {
  return canonical(a - b);
}
inline float mul(float a, float b) {
  return canonical(a * b);
}
inline float div(float a, float b) {
  return canonical(a / b);
}
inline float rcp(float a) {
  return canonical(1.0f / a);
}
/// Subnormals become zeros of their sign.
inline float flush(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  return (bits & 0x7F800000u) == 0 ? bit_cast<float>(bits & 0x80000000u) : x;
}
inline float rcp_ftz(float a) {
  return flush(rcp(flush(a)));
}
inline float ex2_ftz(float a) {
  return flush(canonical(static_cast<float>(std::exp2(static_cast<double>(flush(a))))));
}
inline float sqrt(float a) {
  return canonical(std::sqrt(a));
}
inline float abs(float a) {
  return bit_cast<float>(bit_cast<uint32_t>(a) & 0x7FFFFFFFu);
}
inline float neg(float a) {
  return bit_cast<float>(bit_cast<uint32_t>(a) ^ 0x80000000u);
}

inline float max(float a, float b) {
  if (a != a || b != b) return canonical(a != a ? b : a);
  if (a == b) return std::signbit(a) ? b : a;  // +0 above -0
  return a > b ? a : b;
}
inline float min(float a, float b) {
  if (a != a || b != b) return canonical(a != a ? b : a);
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
inline float max_nan(float a, float b) {
  return a != a || b != b ? bit_cast<float>(kF32Nan) : max(a, b);
}
inline float min_nan(float a, float b) {
  return a != a || b != b ? bit_cast<float>(kF32Nan) : min(a, b);
}

}  // namespace blockscale::emulator::meaning
