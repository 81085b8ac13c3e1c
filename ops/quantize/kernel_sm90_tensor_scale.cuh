// The scale of a whole tensor: NVFP4's S and the one of fp8_tensor, as given, or made of the
// largest magnitudes that a `maximum` kernel has left.
#pragma once

#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_scale.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Largest of a word of each thread of the block, in the lanes of warp 0. All threads call it,
/// once: shared memory is its own.
BLOCKSCALE_DEVICE uint32_t block_maximum(uint32_t value) {
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

/// Leaves the largest magnitude (bits) of the block's threads as that of a part of what one scale
/// is for. All threads call it, once: shared memory is its own.
BLOCKSCALE_DEVICE void leave_maximum(const MaximaParams& maxima, uint32_t scale, uint32_t part,
                                     uint32_t of_thread) {
  const uint32_t amax = block_maximum(of_thread);
  uint32_t* const bits = maxima.bits + uint64_t{scale} * maxima.stride;
  const uint32_t thread = ptx::tid_x();
  if (thread == 0) ptx::st_global(bits + part, amax);
  // Those who read them read whole vectors.
  const uint32_t behind = maxima.count + thread;
  if (part == 0 && behind < (maxima.count + 3) / 4 * 4) ptx::st_global(bits + behind, 0u);
}

/// S for a largest magnitude (bits). Without the branches of a division where the quotient and its
/// remainder are normal numbers (cuda_math_emulated_test.cpp has every significand).
BLOCKSCALE_DEVICE float nvfp4_tensor_scale(uint32_t amax) {
  const float finite = finite_magnitude(amax);
  if (finite >= 0x1p-100f && finite <= 0x1p100f) {
    return Quotient{finite, device::reciprocal_of_normal(finite)}(kLargestNvfp4Product);
  }
  if (amax == 0) return 1.0f;
  return ptx::min(ptx::div_rn(kLargestNvfp4Product, finite), kLargestFinite);
}

/// The same tensor scale as a multiplier.
BLOCKSCALE_DEVICE float nvfp4_tensor_multiplier(uint32_t amax) {
  if (amax == 0) return 1.0f;
  const float scale = nvfp4_tensor_scale(amax);
  return scale == kLargestFinite ? ptx::rcp_rn(scale)
                                 : ptx::div_rn(finite_magnitude(amax), kLargestNvfp4Product);
}

/// The scale of a whole tensor for its largest magnitude (bits).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float tensor_scale_for(const QuantizeParams& p, uint32_t amax) {
  if constexpr (kConfig.rule == ScaleRule::nvfp4) {
    return nvfp4_tensor_scale(amax);
  } else {
    return fp8_scale<kConfig.element>(amax, p.amax_floor, p.fp8_scale);
  }
}

/// Stores it as the caller wants it, for the matrices that `matrix` stands for. One thread does.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_tensor_scale(const QuantizeParams& p, uint32_t matrix, uint32_t amax,
                                          float scale) {
  if (p.maxima.scales == nullptr) return;
  if (kConfig.rule == ScaleRule::nvfp4 && p.maxima.as_multiplier) {
    scale = nvfp4_tensor_multiplier(amax);
  }
  ptx::st_global(p.maxima.scales + matrix * p.maxima.scale_stride, scale);
}

/// A lane's part of kMaxima words, on their way.
template <uint32_t kMaxima>
class MaximaWords {
  using Words = device::Vector<uint32_t, 4>;
  static constexpr int32_t kStep = 4 * 32;

 public:
  /// `left` words are at `bits` and behind.
  BLOCKSCALE_DEVICE MaximaWords(const uint32_t* bits, int32_t left) {
    BLOCKSCALE_UNROLL
    for (int32_t i = 0; i < kLoads; ++i) {
      if (i * kStep < left) {
        words_[i] = ptx::ld_global(reinterpret_cast<const Words*>(bits + i * kStep));
      }
    }
  }

  BLOCKSCALE_DEVICE uint32_t largest(uint32_t largest = 0) const {
    BLOCKSCALE_UNROLL
    for (const Words& four : words_) {
      BLOCKSCALE_UNROLL
      for (const uint32_t word : four.at) largest = word > largest ? word : largest;
    }
    return largest;
  }

 private:
  static constexpr auto kLoads = static_cast<int32_t>(kMaxima) / kStep;
  Words words_[kLoads] = {};
};

/// The largest magnitude (bits) of the tensor that `matrix` belongs to, from those that a `maximum`
/// kernel has left. All lanes of a warp call it, for the same matrix.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE uint32_t tensor_maximum(const MaximaParams& maxima, uint32_t matrix) {
  constexpr bool kMany = most_maxima(kConfig) > kFewMaxima;
  const uint32_t first = ptx::tid_x() % 32 * 4;
  const auto left = static_cast<int32_t>(maxima.count - first);
  // One address for all loads; as an integer, since `bits` is null where nothing has a maximum.
  const uint64_t address = reinterpret_cast<uint64_t>(maxima.bits) +
                           (uint64_t{matrix} * maxima.stride + first) * sizeof(uint32_t);
  const uint32_t* const bits =
      ptx::in_register(reinterpret_cast<const uint32_t*>(address));  // NOLINT: not null, if read
  // Where factors of rows are loaded behind them, without a branch.
  constexpr bool kAtOnce = shared_operands(kConfig.transform) > 0;
  const MaximaWords<kMany && kAtOnce ? kMaxMaxima : kFewMaxima> words(bits, left);
  uint32_t largest = 0;
  if (kMany && !kAtOnce && maxima.count > kFewMaxima) {
    constexpr auto kFew = static_cast<int32_t>(kFewMaxima);
    largest = MaximaWords<kFewMaxima>(bits + kFew, left - kFew).largest();
  }
  return ptx::redux_sync_max(ptx::kFullMask, words.largest(largest));
}

/// QuantizeKernel::settle: one warp for each scale, which is nvfp4's, or the largest magnitude
/// itself (Inf as the largest finite number).
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void settle_tensor_scale(const QuantizeParams& p) {
  static_assert(kConfig.threads == 32);
  const uint32_t matrix = ptx::ctaid_x();
  const uint32_t amax = tensor_maximum<kConfig>(p.maxima, matrix);
  if (ptx::tid_x() != 0) return;
  float result = finite_magnitude(amax);
  if constexpr (kConfig.rule == ScaleRule::nvfp4) result = nvfp4_tensor_scale(amax);
  store_tensor_scale<kConfig>(p, matrix, amax, result);
}

/// The tensor scale that elements around a place are quantised with, for a kernel that may have
/// begun before its predecessors ended, which nothing that it has read so far depends on. After it
/// their writes are seen, and may be written over. All lanes of a warp call it; whoever is at the
/// first element of a tensor also stores a scale that was computed.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE float await_tensor_scale(const QuantizeParams& p, const ChunkPlace& place) {
  ptx::griddepcontrol_wait();
  if (p.tensor_source == TensorScaleSource::maxima) {
    const uint32_t amax = tensor_maximum<kConfig>(p.maxima, place.matrix);
    const float scale = tensor_scale_for<kConfig>(p, amax);
    if ((place.row | place.column) == 0 && (place.matrix == 0 || p.maxima.stride != 0)) {
      store_tensor_scale<kConfig>(p, place.matrix, amax, scale);
    }
    return scale;
  }
  if (p.tensor_source == TensorScaleSource::none) return 1.0f;
  const float stored = ptx::ld_global(p.tensor_scale + place.matrix * p.tensor_scale_stride);
  if (p.tensor_source == TensorScaleSource::stored) return stored;
  return ptx::min(ptx::rcp_rn(stored), kLargestFinite);
}

/// The same for a warp that goes through many tiles: it asks again where another matrix begins, or
/// where the scale is stored.
template <QuantizeConfig kConfig>
class KeptTensorScale {
 public:
  BLOCKSCALE_DEVICE float await(const QuantizeParams& p, const ChunkPlace& place) {
    const bool first = place.row == 0 && place.column == 0;
    if (ptx::vote_sync_any(ptx::kFullMask, first || place.matrix != matrix_)) {
      scale_ = await_tensor_scale<kConfig>(p, place);
      matrix_ = place.matrix;
    }
    return scale_;
  }

 private:
  uint32_t matrix_ = ~0u;
  float scale_ = 0;
};

}  // namespace blockscale::quantize_sm90
