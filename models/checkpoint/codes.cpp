#include "models/checkpoint/codes.h"

#include <cmath>
#include <limits>

#include "blockscale/tensor.h"

namespace blockscale::models {
namespace {

using Values = std::array<float, 256>;

Values values_of(Format format) {
  Values values{};
  for (std::size_t code = 0; code < values.size(); ++code) {
    values[code] = decode(format, static_cast<std::uint32_t>(code));
  }
  return values;
}

/// No infinities, no -0, whose code is the one NaN; the bias is one more than OCP's.
Values fnuz_values(int mantissa_bits) {
  const int bias = 1 << (6 - mantissa_bits);
  Values values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code & 0x7F) >> mantissa_bits;
    const auto fraction =
        static_cast<float>(std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits));
    const float magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                          : std::ldexp(1.0f + fraction, exponent - bias);
    values[static_cast<std::size_t>(code)] = code >= 0x80 ? -magnitude : magnitude;
  }
  values[0x80] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

}  // namespace

bool is_narrow_float(DType dtype) {
  return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2 || dtype == DType::F8_E4M3FNUZ ||
         dtype == DType::F8_E5M2FNUZ;
}

const Values& narrow_values(DType dtype) {
  static const Values e4m3 = values_of(Format::e4m3);
  static const Values e5m2 = values_of(Format::e5m2);
  static const Values e4m3_fnuz = fnuz_values(3);
  static const Values e5m2_fnuz = fnuz_values(2);
  switch (dtype) {
    case DType::F8_E5M2: return e5m2;
    case DType::F8_E4M3FNUZ: return e4m3_fnuz;
    case DType::F8_E5M2FNUZ: return e5m2_fnuz;
    default: return e4m3;
  }
}

void swap_nibbles(std::span<const std::byte> bytes, std::byte* out) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned>(bytes[i]);
    out[i] = static_cast<std::byte>((byte >> 4 | byte << 4) & 0xFF);
  }
}

}  // namespace blockscale::models
