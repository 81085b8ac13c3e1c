// QuantizeKernel::blocks and ::scaled whose threads hold one chunk, in many small thread blocks:
// scales for blocks of one row, or codes with scales that are known.
#pragma once

#include "device/kernel.h"
#include "ops/quantize/kernel_sm90_gelu_chunk.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernel_sm90_queue.cuh"
#include "ops/quantize/kernel_sm90_table.cuh"
#include "ops/quantize/kernel_sm90_tensor_scale.cuh"
#include "ops/quantize/kernel_sm90_units.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// A warp's chunks, which nobody has loaded, the way that they allow.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_row_block(const QuantizeParams& p, const ChunkPlace& place) {
  const ChunkState state = chunk_state<kConfig>(p, place);
  HeldChunk<kConfig> held[1];
  if (state.whole) load_chunk<kConfig>(held[0], p, place, state);
  if constexpr (!approximates_gelu(kConfig)) {
    const float tensor_scale = await_tensor_scale<kConfig>(p, place);
    if (state.whole) {
      const auto maxima = unit_maxima<kConfig, false>(held[0]);
      if (quantize_chunk<kConfig>(p, tensor_scale, place, state, held[0], maxima)) return;
    }
    quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
  } else if constexpr (!follows_maximum(kConfig)) {
    if (state.whole && quantize_gelu_chunk<kConfig>(p, place, state, held)) return;
    quantize_chunk_exactly<kConfig>(p, 1.0f, place);
  } else {
    ApproximateChunk<kConfig> chunk;
    if (state.whole) approximate_chunk(chunk, held[0]);
    const float tensor_scale = await_tensor_scale<kConfig>(p, place);
    if (state.whole && quantize_approximate_chunk<kConfig>(p, tensor_scale, place, state, chunk)) {
      return;
    }
    quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
  }
}

/// The same for chunks of x that a kernel with a table has.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_raw_chunk(const QuantizeParams& p, float tensor_scale,
                                          const ChunkPlace& place, const RawChunk<kConfig>& raw) {
  const ChunkState state = chunk_state<kConfig>(p, place);
  if (state.whole) {
    const ValueChunk<kConfig> chunk = look_up<kConfig>(raw, p.transform);
    const auto maxima = unit_maxima<kConfig, false>(chunk);
    if (quantize_chunk<kConfig>(p, tensor_scale, place, state, chunk, maxima)) return;
  }
  quantize_chunk_exactly<kConfig>(p, tensor_scale, place);
}

/// QuantizeKernel::blocks and QuantizeKernel::scaled.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void quantize_chunks(const QuantizeParams& p) {
  if constexpr (kConfig.table) {
    KeptTensorScale<kConfig> tensor_scale;
    each_queued_tile<kConfig>(p, [&](const ChunkPlace& place, const RawChunk<kConfig>& raw) {
      quantize_raw_chunk<kConfig>(p, tensor_scale.await(p, place), place, raw);
    });
  } else {
    each_tile<kConfig>(p, [&](uint32_t tile) {
      quantize_row_block<kConfig>(p, chunk_place<kConfig>(p.grid, tile_place(p.grid, tile)));
    });
  }
}

}  // namespace blockscale::quantize_sm90
