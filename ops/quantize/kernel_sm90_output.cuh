// Storing codes and scales.
#pragma once

#include "core/scale_layout.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/vector.h"
#include "ops/quantize/kernel_sm90_codes.cuh"
#include "ops/quantize/kernel_sm90_input.cuh"
#include "ops/quantize/kernels_sm90.h"

namespace blockscale::quantize_sm90 {

/// Stores all codes of a chunk, at a multiple of code_store_bytes.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void store_codes(const Codes<kElement, kCount>& codes, uint8_t* to) {
  constexpr int kBytes = Codes<kElement, kCount>::kBytes;
  constexpr int kUnit = code_store_bytes(kElement, kCount);
  if constexpr (kUnit >= 4) {
    using Unit = device::Vector<uint32_t, kUnit / 4>;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kBytes / kUnit; ++i) {
      Unit unit;
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kUnit / 4; ++j) unit.at[j] = codes.word[i * (kUnit / 4) + j];
      ptx::st_global(reinterpret_cast<Unit*>(to) + i, unit);
    }
  } else {
    static_assert(kUnit == 2);
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kBytes / 2; ++i) {
      ptx::st_global(reinterpret_cast<uint16_t*>(to) + i,
                     static_cast<uint16_t>(codes.word[i / 2] >> (i % 2 * 16)));
    }
  }
}

/// Stores the bytes of the first `count` codes, at any address.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void store_code_bytes(const Codes<kElement, kCount>& codes, int32_t count,
                                        uint8_t* to) {
  constexpr int kBits = format_traits(kElement).bits;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Codes<kElement, kCount>::kBytes; ++i) {
    if (i * 8 >= count * kBits) continue;
    ptx::st_global(to + i, static_cast<uint8_t>(codes.word[i / 4] >> (i % 4 * 8)));
  }
}

template <Format kElement>
BLOCKSCALE_DEVICE uint8_t* codes_at(const QuantizeParams& p, const ChunkPlace& place) {
  return p.values + place.matrix * p.value_batch_stride + place.row * p.value_row_stride +
         int64_t{place.column} * format_traits(kElement).bits / 8;
}

/// Encodes and stores a chunk the exact way, as far as it exists.
template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE void store_exactly(const QuantizeParams& p, const ChunkPlace& place,
                                     const ValueChunk<kConfig>& chunk, const BlockScale& scale) {
  const int32_t left = static_cast<int32_t>(p.k - place.column);
  if (place.row >= p.rows || left <= 0) return;
  const auto codes = encode_chunk<kConfig.element, kConfig.rule, true>(chunk, scale);
  uint8_t* const to = codes_at<kConfig.element>(p, place);
  if (p.value_vectors && left >= kConfig.chunk) {
    store_codes(codes, to);
  } else {
    store_code_bytes(codes, left, to);
  }
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool has_byte_scales(const QuantizeParams& p) {
  return kConfig.rule != ScaleRule::fp8 || p.fp8_scale == Fp8Scale::ue8m0;
}

/// Stores kCount scales, `step` scales apart, or side by side in one store.
template <class Scale, int kCount>
BLOCKSCALE_DEVICE void store_scales(uint8_t* scales, int64_t offset, int64_t step, bool vector,
                                    const uint32_t (&stored)[kCount]) {
  Scale* const to = reinterpret_cast<Scale*>(scales) + offset;
  if constexpr (kCount == 2 || kCount == 4) {
    if (vector) {
      using Scales = device::Vector<Scale, kCount>;
      Scales all;
      BLOCKSCALE_UNROLL
      for (int u = 0; u < kCount; ++u) all.at[u] = static_cast<Scale>(stored[u]);
      ptx::st_global(reinterpret_cast<Scales*>(to), all);
      return;
    }
  }
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kCount; ++u) ptx::st_global(to + u * step, static_cast<Scale>(stored[u]));
}

/// Stores the scales of kCount consecutive rows of the grid, the first a multiple of kCount. All of
/// them exist as far as the layout is concerned.
template <QuantizeConfig kConfig, int kCount>
BLOCKSCALE_DEVICE void store_scales_at(const QuantizeParams& p, uint32_t matrix, uint32_t grid_row,
                                       uint32_t grid_column, const uint32_t (&stored)[kCount]) {
  const int64_t offset = matrix * p.scale_batch_stride +
                         scale_offset(p.layout, grid_row, grid_column, p.scale_leading_stride);
  if (has_byte_scales<kConfig>(p)) {
    store_scales<uint8_t>(p.scales, offset, p.scale_row_step, p.scale_vectors, stored);
  } else {
    store_scales<uint32_t>(p.scales, offset, p.scale_row_step, p.scale_vectors, stored);
  }
}

/// Stores the scales of blocks of single rows, for kCount chunks below each other that are first in
/// their blocks: either all of their rows exist, or none. Padding of the layout becomes 0.
template <QuantizeConfig kConfig, int kCount>
BLOCKSCALE_DEVICE void store_row_scales(const QuantizeParams& p, const ChunkPlace& first,
                                        const BlockScale (&scales)[kCount]) {
  const uint32_t column = first.column / kConfig.block;
  if (column >= p.scale_columns || first.row >= p.scale_rows) return;
  const bool exists = first.column < p.k && first.row < p.rows;
  uint32_t stored[kCount];
  BLOCKSCALE_UNROLL
  for (int u = 0; u < kCount; ++u) stored[u] = exists ? scales[u].stored : 0u;
  store_scales_at<kConfig>(p, first.matrix, first.row, column, stored);
}

}  // namespace blockscale::quantize_sm90
