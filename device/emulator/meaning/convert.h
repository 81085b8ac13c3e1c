// What the forms of cvt compute: pure functions, no emulator state. core/format.h has the
// roundings; here is what the instruction makes of NaNs, and how results are packed.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/format.h"
#include "device/emulator/meaning/float32.h"
#include "device/emulator/meaning/packed.h"

namespace blockscale::emulator::meaning {

/// cvt.rn.{f16,bf16}.f32.
template <Format F>
uint16_t to_16(float x) {
  if (x != x) return static_cast<uint16_t>(kNan16);
  return static_cast<uint16_t>(encode<F>(x, Overflow::propagate));
}

template <Format F>
uint32_t pack_16(float hi, float lo) {
  return uint32_t{to_16<F>(hi)} << 16 | to_16<F>(lo);
}

/// One code of at most 8 bits in each byte.
template <Format F>
uint16_t pack_8(float hi, float lo) {
  return static_cast<uint16_t>(encode<F>(hi) << 8 | encode<F>(lo));
}

/// One code of 4 bits in each nibble.
template <Format F>
uint8_t pack_4(float hi, float lo) {
  return static_cast<uint8_t>(encode<F>(hi) << 4 | encode<F>(lo));
}

inline uint16_t pack_ue8m0(float hi, float lo, ScaleRounding rounding) {
  return static_cast<uint16_t>(encode_ue8m0(hi, rounding) << 8 | encode_ue8m0(lo, rounding));
}

inline float f32_of_f16(uint16_t code) {
  return canonical(decode<Format::f16>(code));
}
inline float f32_of_bf16(uint16_t code) {
  return bit_cast<float>(uint32_t{code} << 16);
}

template <Format F>
uint16_t narrow_f16x2(uint32_t a) {
  return pack_8<F>(decode<Format::f16>(a >> 16), decode<Format::f16>(a & 0xFFFFu));
}

/// One code in each byte of `a`, to f16.
template <Format F>
uint32_t widen_f16x2(uint16_t a) {
  return pack_16<Format::f16>(decode<F>(uint32_t{a} >> 8), decode<F>(a & 0xFFu));
}

inline uint32_t bf16x2_of_ue8m0x2(uint16_t a) {
  return pack_16<Format::bf16>(decode<Format::ue8m0>(uint32_t{a} >> 8),
                               decode<Format::ue8m0>(a & 0xFFu));
}

/// To nearest even whatever the host's rounding mode is: it is never changed.
inline float nearest_integral(float x) {
  return canonical(std::nearbyint(x));
}

inline int32_t nearest_s32(float x) {
  if (x != x) return 0;
  const float rounded = std::nearbyint(x);
  if (rounded >= 0x1p31f) return std::numeric_limits<int32_t>::max();
  if (rounded < -0x1p31f) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(rounded);
}

inline uint32_t truncate_u32(float x) {
  if (!(x > 0)) return 0;
  return x >= 0x1p32f ? std::numeric_limits<uint32_t>::max() : static_cast<uint32_t>(x);
}

}  // namespace blockscale::emulator::meaning
