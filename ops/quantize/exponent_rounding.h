// The modes of an MX block's exponent as one addition, shared by the CPU and CUDA.
#pragma once

#include "blockscale/quantize.h"
#include "core/format.h"

namespace blockscale::quantize_detail {

/// What is added to the bits of an amax before its exponent is taken (numerics.md, MX modes).
/// ceil: carries into the exponent iff the mantissa exceeds that of the element's largest value.
inline std::uint32_t exponent_rounding(Format element, MxScaleMode mode) {
  const FormatTraits t = format_traits(element);
  switch (mode) {
    case MxScaleMode::floor: return 0;
    case MxScaleMode::ceil: return 0x007FFFFFu - (bit_cast<std::uint32_t>(t.max) & 0x007FFFFFu);
    case MxScaleMode::even: return 1u << (22 - t.mantissa_bits);
    case MxScaleMode::even_e2m1: return 1u << (22 - format_traits(Format::e2m1).mantissa_bits);
  }
  return 0;
}

}  // namespace blockscale::quantize_detail
