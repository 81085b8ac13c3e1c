// The scale of a whole tensor: NVFP4's S and the one of fp8_tensor, as given, or as a `settle`
// kernel makes it from the largest magnitudes that a `maximum` kernel has left.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Largest of a word of each thread of the block. All threads call it; shared memory is its own.
template <int kThreads>
BLOCKSCALE_DEVICE uint32_t block_maximum(uint32_t value) {
  constexpr uint32_t kWarps = kThreads / 32;
  static_assert(4 * kWarps <= kQuantizeSharedBytes);
  const ptx::SharedAddress words = device::shared_base();
  const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, value);
  if (ptx::tid_x() % 32 == 0) ptx::st_shared(words + ptx::tid_x() / 32 * 4, of_warp);
  ptx::barrier_sync_all();
  uint32_t result = 0;
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kWarps; ++i) {
    const uint32_t other = ptx::ld_shared<uint32_t>(words + i * 4);
    result = other > result ? other : result;
  }
  return result;
}

/// S for a largest magnitude (bits).
BLOCKSCALE_DEVICE float nvfp4_tensor_scale(uint32_t amax) {
  if (amax == 0) return 1.0f;
  return ptx::min(ptx::div_rn(2688.0f, finite_magnitude(amax)), kLargestFinite);
}

/// The same tensor scale as a multiplier.
BLOCKSCALE_DEVICE float nvfp4_tensor_multiplier(uint32_t amax) {
  if (amax == 0) return 1.0f;
  const float scale = nvfp4_tensor_scale(amax);
  return scale == kLargestFinite ? ptx::rcp_rn(scale)
                                 : ptx::div_rn(finite_magnitude(amax), 2688.0f);
}

/// QuantizeKernel::settle: one thread block for each scale.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void settle_tensor_scale(const QuantizeParams& p) {
  const uint32_t index = ptx::ctaid_x();
  uint32_t largest = 0;
  for (uint32_t i = ptx::tid_x(); i < p.settled_maxima; i += kConfig.threads) {
    const uint32_t bits = ptx::ld_global(p.maxima + uint64_t{index} * p.maxima_count + i);
    largest = bits > largest ? bits : largest;
  }
  const uint32_t amax = block_maximum<kConfig.threads>(largest);
  if (ptx::tid_x() != 0) return;
  float scale;
  if constexpr (kConfig.rule == ScaleRule::nvfp4) {
    scale = nvfp4_tensor_scale(amax);
  } else {
    scale = p.settle_maximum ? finite_magnitude(amax)
                             : fp8_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  }
  ptx::st_global(p.settled + index * p.settled_stride, scale);
  if (p.settled_copy == nullptr) return;
  const float copy = p.copy_multiplier ? nvfp4_tensor_multiplier(amax) : scale;
  ptx::st_global(p.settled_copy + index * p.settled_copy_stride, copy);
}

/// The tensor scale that the elements of `matrix` are quantised with.
BLOCKSCALE_DEVICE float tensor_scale_of(const QuantizeParams& p, uint32_t matrix) {
  if (p.tensor_source == TensorScaleSource::none) return 1.0f;
  const float stored = ptx::ld_global(p.tensor_scale + matrix * p.tensor_scale_stride);
  if (p.tensor_source == TensorScaleSource::stored) return stored;
  return ptx::min(ptx::rcp_rn(stored), kLargestFinite);
}

/// The same for a kernel that may have begun before its predecessors ended, which nothing that it
/// has read so far depends on. After it their writes are seen, and may be written over.
BLOCKSCALE_DEVICE float await_tensor_scale(const QuantizeParams& p, uint32_t matrix) {
  ptx::griddepcontrol_wait();
  return tensor_scale_of(p, matrix);
}

/// The scale of a block of one row from the bits of its largest magnitude. kExact as in
/// nvfp4_scale.
template <QuantizeConfig kConfig, bool kExact>
BLOCKSCALE_DEVICE BlockScale block_scale(const QuantizeParams& p, float tensor_scale,
                                         uint32_t amax) {
  if constexpr (kConfig.rule == ScaleRule::nvfp4) {
    return nvfp4_scale<kExact>(amax, tensor_scale);
  } else if constexpr (kConfig.rule == ScaleRule::mx) {
    return mx_scale<kConfig.element>(amax, p.exponent_rounding);
  } else {
    return fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  }
}

}  // namespace blockscale::quantize_sm90
