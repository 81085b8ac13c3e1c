// The quantisers' kernels for sm_90a: one function for each entry of kQuantizeKernels.
//
// They move bytes: an H200 copies at 4.3 TB/s (read + written) with about 60 KB in flight on each
// of its 132 multiprocessors, and then has 17 instructions for an element that is read as 16 bits
// and written as 4. So threads load all of a tile before they use any of it, in 16-byte vectors;
// blocks of one row live in neighbouring lanes; codes are found in packed arithmetic where it is
// exact (kernel_sm90_codes.cuh); GELU of 16-bit elements is approximated as far as codes do not
// tell (kernel_sm90_gelu_codes.cuh), or like silu looked up (kernel_sm90_table.cuh).
// docs/performance.md has what was measured.
#pragma once

#include "device/kernel.h"
#include "ops/quantize/kernel_sm90_at_once.cuh"
#include "ops/quantize/kernel_sm90_block_rows.cuh"
#include "ops/quantize/kernel_sm90_blocks.cuh"
#include "ops/quantize/kernel_sm90_maximum.cuh"
#include "ops/quantize/kernel_sm90_row.cuh"
#include "ops/quantize/kernel_sm90_row_maximum.cuh"
#include "ops/quantize/kernel_sm90_stripe.cuh"
#include "ops/quantize/kernel_sm90_table_groups.cuh"
#include "ops/quantize/kernel_sm90_tall.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_kernel(const QuantizeParams& params) {
  static_assert(kConfig.block % kConfig.chunk == 0 || kConfig.chunk % kConfig.block == 0,
                "a block is made of whole chunks, or a chunk of whole blocks");
  constexpr bool kChunks =
      kConfig.kernel == QuantizeKernel::blocks || kConfig.kernel == QuantizeKernel::scaled;
  // Whoever wrote what this kernel reads has ended when `maximum` or `norm`, which has waited for
  // it, lets this one start: what is left to wait for are the maxima, and factors of rows, which
  // are read later.
  const bool waits_later =
      follows_norm(kConfig) || (kChunks && params.tensor_source == TensorScaleSource::maxima);
  // Some have something to do before they wait.
  constexpr bool kFindsMaxima =
      kConfig.kernel == QuantizeKernel::maximum && kConfig.transform != InputTransform::rms_norm;
  constexpr bool kStripes =
      kConfig.kernel == QuantizeKernel::stripe || kConfig.kernel == QuantizeKernel::clear;
  constexpr bool kWaitsItself =
      loads_at_once(kConfig) || kConfig.table || kFindsMaxima || streams_rows(kConfig) || kStripes;
  if constexpr (approximates_gelu(kConfig) || kConfig.kernel == QuantizeKernel::norm) {
    if (params.prefetches) {
      if constexpr (holds_rows(kConfig.kernel, kConfig.transform)) {
        quantize_sm90::prefetch_rows<kConfig>(params);
      } else {
        quantize_sm90::prefetch_tile_in_turn<kConfig>(params);
      }
    }
  }
  if constexpr (prefetches_tall(kConfig)) {
    if (params.prefetches) quantize_sm90::prefetch_tall_tile<kConfig>(params);
  }
  if constexpr (!kWaitsItself) quantize_sm90::await_turn(params, waits_later);
  if constexpr (loads_at_once(kConfig)) {
    quantize_sm90::quantize_at_once<kConfig>(params);
  } else if constexpr (kChunks && kConfig.chunks > 1) {
    quantize_sm90::quantize_blocks_of_rows<kConfig>(params);
  } else if constexpr (kChunks) {
    quantize_sm90::quantize_chunks<kConfig>(params);
  } else if constexpr (streams_rows(kConfig)) {
    quantize_sm90::find_maxima_of_normalized_rows<kConfig>(params);
  } else if constexpr (kFindsMaxima && tile_rows_of_thread(kConfig) > 1) {
    quantize_sm90::find_maxima_of_modulated_rows<kConfig>(params);
  } else if constexpr (kFindsMaxima) {
    quantize_sm90::find_maxima<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::settle) {
    quantize_sm90::settle_tensor_scale<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::stripe) {
    quantize_sm90::quantize_stripes<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::clear) {
    quantize_sm90::clear_stripes(params);
  } else if constexpr (kConfig.table) {
    quantize_sm90::quantize_groups<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::tall) {
    quantize_sm90::quantize_tall_blocks<kConfig>(params);
  } else {
    quantize_sm90::quantize_rows<kConfig>(params);
  }
}

}  // namespace blockscale
