// A line of a tile, one of its rows or of its columns, in kernels that quantise both: how its
// largest magnitude is found, and what its elements are divided by.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/integer.h"
#include "device/ptx/packed.h"
#include "ops/quantize/kernel_sm90_chunk.cuh"
#include "ops/quantize/kernel_sm90_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_codes.cuh"
#include "ops/quantize/kernel_sm90_gelu_maximum.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// The number of the lowest bit that is set; one is.
BLOCKSCALE_DEVICE uint32_t lowest_bit(uint32_t bits) {
  return (bit_cast<uint32_t>(static_cast<float>(bits & (0u - bits))) >> 23) - 127;
}

/// Maxima of lines of elements of kFormat: of a chunk's words each.
template <Format kFormat, int kCount, class MaximumType>
struct LineMaxima {
  using Maximum = MaximumType;
  using Values = Chunk<kFormat, kCount>;
  static constexpr uint32_t kWords = Values::kWords;
  static constexpr bool kPacked = kFormat != Format::f32;
};

/// Those of what a thread holds: of x itself, where GELU's largest magnitude follows from it.
template <QuantizeConfig kConfig, bool kLikely>
struct MaximaOfHeld {
  using Type =
      LineMaxima<kValueFormat<kConfig>, kConfig.chunk, Largest<kValueFormat<kConfig>, false>>;
};
template <QuantizeConfig kConfig>
struct MaximaOfHeld<kConfig, true> {
  using Type = LineMaxima<kConfig.input, kConfig.chunk, LargestX<kConfig.input>>;
};

/// What elements of a line are divided by, as a thread finds it and shares it in two numbers, and
/// four codes of its elements: value_of(0) to value_of(3).
///
/// Each code is right unless `difference` is not 0 in its byte, which only LikelyDivider makes so.
struct SureDivider {
  ShortQuotient quotient;

  BLOCKSCALE_DEVICE SureDivider(const BlockScale& scale, uint32_t /*amax*/)
      : quotient(scale.factor) {}
  BLOCKSCALE_DEVICE SureDivider(float first, float second) : quotient(first, second) {}
  BLOCKSCALE_DEVICE float first() const { return quotient.high; }
  BLOCKSCALE_DEVICE float second() const { return quotient.low; }
  BLOCKSCALE_DEVICE static bool is_exceptional(const BlockScale& scale) {
    return scale.exceptional || ShortQuotient::is_exceptional(scale.factor);
  }

  template <class ValueOf>
  BLOCKSCALE_DEVICE uint32_t codes(const ValueOf& value_of, uint32_t& difference) const {
    difference = 0;
    return fp8_bytes<Format::e4m3>([&](int i) { return quotient(value_of(i)); }, 0);
  }
};

/// Of approximate values of GELU: products with two bounds of 1 / s.
struct LikelyDivider {
  float low;
  float high;

  BLOCKSCALE_DEVICE LikelyDivider(const BlockScale& scale, uint32_t amax) {
    const Bounds bounds = factor_bounds<Format::e4m3, ScaleRule::fp8>(scale, amax);
    low = bounds.low;
    high = bounds.high;
  }
  BLOCKSCALE_DEVICE LikelyDivider(float first, float second) : low(first), high(second) {}
  BLOCKSCALE_DEVICE float first() const { return low; }
  BLOCKSCALE_DEVICE float second() const { return high; }
  BLOCKSCALE_DEVICE static bool is_exceptional(const BlockScale& scale) {
    return scale.exceptional;
  }

  template <class ValueOf>
  BLOCKSCALE_DEVICE uint32_t codes(const ValueOf& value_of, uint32_t& difference) const {
    const auto codes_by = [&](float factor) {
      return fp8_bytes<Format::e4m3>([&](int i) { return ptx::mul_rn(value_of(i), factor); }, 0);
    };
    const uint32_t codes = codes_by(low);
    difference = codes ^ codes_by(high);
    return codes;
  }
};

template <bool kLikely>
struct LineDivider {
  using Type = SureDivider;
};
template <>
struct LineDivider<true> {
  using Type = LikelyDivider;
};

}  // namespace blockscale::quantize_sm90
