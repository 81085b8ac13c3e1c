// The scale of a whole tensor: NVFP4's S and the one of fp8_tensor, as given, or made of the
// partial amaxes that an `amax` kernel has left.
#pragma once

#include "device/encode/scale.cuh"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernels/tiles.cuh"

namespace blockscale::quantizer {

using encoding::Quotient;

/// Largest of a word of each thread of the CTA, in the lanes of warp 0. All threads call it,
/// once: shared memory is its own.
BLOCKSCALE_DEVICE uint32_t cta_amax(uint32_t value) {
  const ptx::SharedAddress words = device::shared_base();
  const uint32_t thread = ptx::tid_x();
  const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, value);
  if (thread % 32 == 0) ptx::st_shared(words + thread / 32 * 4, of_warp);
  ptx::barrier_sync_all();
  if (thread >= 32) return 0;
  const bool is_warps = thread < ptx::ntid_x() / 32;
  const uint32_t other = is_warps ? ptx::ld_shared<uint32_t>(words + thread * 4) : 0;
  return ptx::redux_sync_max(ptx::kFullMask, other);
}

/// Leaves the amax (bits) of the CTA's threads as that of a part of what one scale
/// is for. All threads call it, once: shared memory is its own.
BLOCKSCALE_DEVICE void store_partial_amax(const AmaxParams& amax, uint32_t scale, uint32_t part,
                                          uint32_t of_thread) {
  const uint32_t of_cta = cta_amax(of_thread);
  uint32_t* const bits = amax.bits + uint64_t{scale} * amax.stride;
  const uint32_t thread = ptx::tid_x();
  if (thread == 0) ptx::st_global(bits + part, of_cta);
  // Those who read them read whole vectors.
  const uint32_t behind = amax.count + thread;
  if (part == 0 && behind < (amax.count + 3) / 4 * 4) ptx::st_global(bits + behind, 0u);
}

/// The tiles of a CTA of an `amax` kernel: of those that a scale is for every amax.count-th from
/// `part` on.
struct TilesOfScale {
  uint32_t scale;  // its number: the matrix's, 0 where one scale is for all matrices
  uint32_t part;
  uint32_t tiles;  // that the scale is for
};

BLOCKSCALE_DEVICE TilesOfScale tiles_of_scale(const QuantizeParams& p) {
  const uint32_t scale = p.amax.parts.quotient(ptx::ctaid_x());
  const uint32_t part = ptx::ctaid_x() - scale * p.amax.count;
  return {scale, part, p.amax.stride == 0 ? p.grid.tiles : p.grid.per_matrix.divisor};
}

/// S for an amax (bits). Without the branches of a division where the quotient and its
/// remainder are normal numbers (math_emulated_test.cpp has every significand).
BLOCKSCALE_DEVICE float nvfp4_tensor_scale(uint32_t amax) {
  const float finite = encoding::finite_magnitude(amax);
  if (finite >= 0x1p-100f && finite <= 0x1p100f) {
    return Quotient{finite, device::reciprocal_of_normal(finite)}(kLargestNvfp4Product);
  }
  if (amax == 0) return 1.0f;
  return ptx::min(ptx::div_rn(kLargestNvfp4Product, finite), encoding::kLargestFinite);
}

/// The same tensor scale as a multiplier.
BLOCKSCALE_DEVICE float nvfp4_tensor_multiplier(uint32_t amax) {
  if (amax == 0) return 1.0f;
  const float scale = nvfp4_tensor_scale(amax);
  return scale == encoding::kLargestFinite
             ? ptx::rcp_rn(scale)
             : ptx::div_rn(encoding::finite_magnitude(amax), kLargestNvfp4Product);
}

/// The scale of a whole tensor for its amax (bits).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float tensor_scale_for(const QuantizeParams& p, uint32_t amax) {
  if constexpr (kConfig.rule == ScaleRule::nvfp4) {
    return nvfp4_tensor_scale(amax);
  } else {
    return encoding::fp8_scale<kConfig.element>(amax, p.scale_options);
  }
}

/// Stores it as the caller wants it, for the matrices that `matrix` stands for. One thread does.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_tensor_scale(const QuantizeParams& p, uint32_t matrix, uint32_t amax,
                                          float scale) {
  if (p.amax.scales == nullptr) return;
  if (kConfig.rule == ScaleRule::nvfp4 && p.amax.as_multiplier) {
    scale = nvfp4_tensor_multiplier(amax);
  }
  ptx::st_global(p.amax.scales + matrix * p.amax.scale_stride, scale);
}

/// The amax (bits) of the tensor that `matrix` belongs to, from those that an `amax` kernel has
/// left. All lanes of a warp call it, for the same matrix.
BLOCKSCALE_DEVICE uint32_t tensor_amax(const AmaxParams& amax, uint32_t matrix) {
  using Words = device::Vector<uint32_t, 4>;
  const uint32_t first = ptx::tid_x() % 32 * 4;
  const uint32_t* const bits = amax.bits + uint64_t{matrix} * amax.stride;
  Words words[kMostAmaxes / 128] = {};
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kMostAmaxes / 128; ++i) {
    const uint32_t at = i * 128 + first;
    if (at < amax.count) words[i] = ptx::ld_global(reinterpret_cast<const Words*>(bits + at));
  }
  uint32_t largest = 0;
  BLOCKSCALE_UNROLL
  for (const Words& four : words) {
    BLOCKSCALE_UNROLL
    for (const uint32_t word : four.at) largest = word > largest ? word : largest;
  }
  return ptx::redux_sync_max(ptx::kFullMask, largest);
}

/// QuantizeKernel::finalize: one warp for each scale, which is nvfp4's, or the amax
/// itself (Inf as the largest finite number).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void finalize_amax(const QuantizeParams& p) {
  static_assert(kConfig.threads == 32);
  const uint32_t matrix = ptx::ctaid_x();
  const uint32_t amax = tensor_amax(p.amax, matrix);
  if (ptx::tid_x() != 0) return;
  float result = encoding::finite_magnitude(amax);
  if constexpr (kConfig.rule == ScaleRule::nvfp4) result = nvfp4_tensor_scale(amax);
  store_tensor_scale<kConfig>(p, matrix, amax, result);
}

/// The tensor scale that elements around a place are quantized with; what it is made of has been
/// waited for. All lanes of a warp call it; whoever is at the first element of a tensor also stores
/// a scale that was computed.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float tensor_scale_at(const QuantizeParams& p, const ChunkPlace& place) {
  if (p.tensor_source == TensorScaleSource::amaxes) {
    const uint32_t amax = tensor_amax(p.amax, place.matrix);
    const float scale = tensor_scale_for<kConfig>(p, amax);
    if ((place.row | place.column) == 0 && (place.matrix == 0 || p.amax.stride != 0)) {
      store_tensor_scale<kConfig>(p, place.matrix, amax, scale);
    }
    return scale;
  }
  if (p.tensor_source == TensorScaleSource::none) return 1.0f;
  const float stored = ptx::ld_global(p.tensor_scale + place.matrix * p.tensor_scale_stride);
  if (p.tensor_source == TensorScaleSource::stored) return stored;
  return ptx::min(ptx::rcp_rn(stored), encoding::kLargestFinite);
}

}  // namespace blockscale::quantizer
