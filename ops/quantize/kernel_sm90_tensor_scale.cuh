// The scale of a whole tensor: NVFP4's S and the one of fp8_tensor, as given or from the largest
// magnitudes that a `maximum` kernel has left.
//
// Functions here are collective: all threads of a block call them together.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

// Shared memory: one word for each warp of a reduction, then the table of NVFP4's factors.
inline constexpr uint32_t kReductionOffset = 0;
inline constexpr uint32_t kFactorTableOffset = 256;
inline constexpr uint32_t kFactorTableEntries = 128;
static_assert(kFactorTableOffset + 4 * kFactorTableEntries <= kQuantizeSharedBytes);

/// Largest of a word of each thread of the block.
template <int kThreads>
BLOCKSCALE_DEVICE uint32_t block_maximum(uint32_t value) {
  constexpr int kWarps = kThreads / 32;
  const ptx::SharedAddress partial = device::shared_base() + kReductionOffset;
  const uint32_t of_warp = ptx::redux_sync_max(ptx::kFullMask, value);
  ptx::barrier_sync_all();  // who still reads the words of the reduction before
  if (ptx::tid_x() % 32 == 0) ptx::st_shared(partial + ptx::tid_x() / 32 * 4, of_warp);
  ptx::barrier_sync_all();
  uint32_t result = 0;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kWarps; ++i) {
    const uint32_t other = ptx::ld_shared<uint32_t>(partial + static_cast<uint32_t>(i) * 4);
    result = other > result ? other : result;
  }
  return result;
}

/// Bits of the largest magnitude of a matrix, or of all of them; Inf stays Inf.
template <int kThreads>
BLOCKSCALE_DEVICE uint32_t tensor_amax(const QuantizeParams& p, uint32_t matrix) {
  const int64_t first = p.maxima_of_all ? 0 : int64_t{matrix} * p.maxima_count;
  const int64_t count = int64_t{p.maxima_count} * (p.maxima_of_all ? p.batch : 1);
  uint32_t largest = 0;
  for (int64_t i = ptx::tid_x(); i < count; i += kThreads) {
    const uint32_t bits = ptx::ld_global(p.maxima + first + i);
    largest = bits > largest ? bits : largest;
  }
  return block_maximum<kThreads>(largest);
}

/// S for a largest magnitude (bits).
BLOCKSCALE_DEVICE float nvfp4_tensor_scale(uint32_t amax) {
  const float finite = finite_magnitude(amax);
  return amax == 0 ? 1.0f : ptx::min(ptx::div_rn(2688.0f, finite), kLargestFinite);
}

/// The same tensor scale as a multiplier.
BLOCKSCALE_DEVICE float nvfp4_tensor_multiplier(uint32_t amax) {
  const float finite = finite_magnitude(amax);
  const float scale = nvfp4_tensor_scale(amax);
  if (amax == 0) return 1.0f;
  return scale == kLargestFinite ? ptx::rcp_rn(scale) : ptx::div_rn(finite, 2688.0f);
}

/// The tensor scale that the elements of `matrix` are quantised with.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float tensor_scale_of(const QuantizeParams& p, uint32_t matrix) {
  if (p.tensor_source == TensorScaleSource::none) return 1.0f;
  if (p.tensor_source == TensorScaleSource::maxima) {
    const uint32_t amax = tensor_amax<kConfig.threads>(p, matrix);
    if constexpr (kConfig.rule == ScaleRule::nvfp4) return nvfp4_tensor_scale(amax);
    return fp8_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  }
  const float stored = ptx::ld_global(p.tensor_scale + matrix * p.tensor_scale_stride);
  if (p.tensor_source == TensorScaleSource::stored) return stored;
  return ptx::min(ptx::rcp_rn(stored), kLargestFinite);
}

/// Stores the tensor scales that come from maxima: each thread block some of them.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_tensor_scales(const QuantizeParams& p) {
  if (p.tensor_source != TensorScaleSource::maxima) return;
  const uint32_t count = p.maxima_of_all ? 1u : p.batch;
  for (uint32_t matrix = ptx::ctaid_x(); matrix < count; matrix += ptx::nctaid_x()) {
    const uint32_t amax = tensor_amax<kConfig.threads>(p, matrix);
    if (ptx::tid_x() != 0) continue;
    float stored;
    if constexpr (kConfig.rule == ScaleRule::nvfp4) {
      stored = p.store_multiplier ? nvfp4_tensor_multiplier(amax) : nvfp4_tensor_scale(amax);
    } else {
      stored = fp8_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
    }
    ptx::st_global(p.tensor_scale + matrix * p.tensor_scale_stride, stored);
  }
}

/// What blocks of rows of a matrix need to know of its tensor: nothing but for NVFP4, where it is S
/// and, in shared memory, S / f32(s) for each code s of a block's scale.
template <QuantizeConfig kConfig>
class TensorContext {
 public:
  /// Before the first tile of each matrix.
  BLOCKSCALE_DEVICE void enter(const QuantizeParams& p, uint32_t matrix) {
    if constexpr (kConfig.rule == ScaleRule::nvfp4) {
      if (matrix == matrix_) return;
      matrix_ = matrix;
      scale_ = tensor_scale_of<kConfig>(p, matrix);
      ptx::barrier_sync_all();  // who still reads the table before
      const uint32_t code = ptx::tid_x();
      if (code < kFactorTableEntries) {
        const float factor = ptx::div_rn(scale_, decode<Format::ue4m3>(code));
        ptx::st_shared(table() + 4 * code, code == 0 ? 0.0f : ptx::min(factor, kLargestFinite));
      }
      ptx::barrier_sync_all();
    }
  }

  /// The scale of a block of one row from the bits of its largest magnitude.
  BLOCKSCALE_DEVICE BlockScale block_scale(const QuantizeParams& p, uint32_t amax) const {
    if constexpr (kConfig.rule == ScaleRule::nvfp4) {
      return nvfp4_scale(amax, scale_, table());
    } else if constexpr (kConfig.rule == ScaleRule::mx) {
      return mx_scale<kConfig.element>(amax, p.exponent_rounding);
    } else {
      return fp8_block_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
    }
  }

 private:
  BLOCKSCALE_DEVICE static ptx::SharedAddress table() {
    return device::shared_base() + kFactorTableOffset;
  }

  uint32_t matrix_ = ~0u;
  float scale_ = 1.0f;
};

}  // namespace blockscale::quantize_sm90
