// The quantizers' kernels: one function for each entry of kQuantizeKernels.
//
// They move bytes: an H200 copies at 4.3 TB/s (read + written) with about 60 KB in flight on each
// of its 132 SMs, and then has 17 instructions for an element that is read as 16 bits and written
// as 4. So threads load all of a tile before they use any of it, in 16-byte vectors; blocks of one
// row live in neighbouring lanes; codes are found in packed arithmetic where it is exact
// (device/encode/codes.cuh). plain.cuh is the file to read first; docs/performance.md has what was
// measured.
#pragma once

#include "device/kernel.h"
#include "ops/quantize/kernels/amax.cuh"
#include "ops/quantize/kernels/blocks.cuh"
#include "ops/quantize/kernels/blocks_2d.cuh"
#include "ops/quantize/kernels/rows.cuh"

namespace blockscale {

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_kernel(const QuantizeParams& params) {
  static_assert(kConfig.block % kConfig.chunk == 0 || kConfig.chunk % kConfig.block == 0,
                "a block is made of whole chunks, or a chunk of whole blocks");
  if constexpr (holds_rows(kConfig)) {
    quantizer::quantize_rows<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::blocks_2d) {
    quantizer::quantize_blocks_2d<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::amax) {
    quantizer::find_amax<kConfig>(params);
  } else if constexpr (kConfig.kernel == QuantizeKernel::finalize) {
    quantizer::wait_for_turn(params);
    quantizer::finalize_amax<kConfig>(params);
  } else {
    quantizer::quantize_blocks<kConfig>(params);
  }
}

}  // namespace blockscale
