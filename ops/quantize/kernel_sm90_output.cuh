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

/// Stores the bytes of the first `count` codes, which may be more than there are, at any address.
template <Format kElement, int kCount>
BLOCKSCALE_DEVICE void store_code_bytes(const Codes<kElement, kCount>& codes, int32_t count,
                                        uint8_t* to) {
  constexpr int kBits = format_traits(kElement).bits;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < Codes<kElement, kCount>::kBytes; ++i) {
    if (8 * i / kBits >= count) continue;
    ptx::st_global(to + i, static_cast<uint8_t>(codes.word[i / 4] >> (i % 4 * 8)));
  }
}

template <Format kElement>
BLOCKSCALE_DEVICE uint8_t* codes_at(const QuantizeParams& p, const ChunkPlace& place) {
  return p.values + place.matrix * p.value_batch_stride + place.row * p.value_row_stride +
         int64_t{place.column} * format_traits(kElement).bits / 8;
}

template <QuantizeConfig kConfig>
BLOCKSCALE_DEVICE bool has_byte_scales(const QuantizeParams& p) {
  return kConfig.rule != ScaleRule::fp8 || p.fp8_scale == Fp8Scale::ue8m0;
}

/// Whether a thread block stores whole sectors of scales, or parts of sectors that others fill at
/// about the same time: L2 lets go of these last, when they are full (without that rows and columns
/// are 6 % slower with scales of row_major, and 1 % with those of mn_major: docs/performance.md).
enum class ScaleSectors : uint8_t { whole, shared };

/// Stores kCount scales of a row of the grid, the first at an offset.
template <class Scale, ScaleSectors kSectors, int kCount>
BLOCKSCALE_DEVICE void store_scales(const QuantizeParams& p, int64_t offset,
                                    const uint32_t (&stored)[kCount]) {
  Scale* const to = reinterpret_cast<Scale*>(p.scales) + offset;
  if constexpr (kCount == 2 && sizeof(Scale) == 1) {
    if (p.scale_pairs) {
      ptx::st_global(reinterpret_cast<uint16_t*>(to),
                     static_cast<uint16_t>(stored[0] | stored[1] << 8));
      return;
    }
  }
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    Scale* const at = to + i * p.scale_column_step;
    const auto scale = static_cast<Scale>(stored[i]);
    if constexpr (kSectors == ScaleSectors::shared) {
      ptx::st_global(at, scale, ptx::createpolicy_evict_last());
    } else {
      ptx::st_global(at, scale);
    }
  }
}

/// The same in the type that they have.
template <QuantizeConfig kConfig, ScaleSectors kSectors = ScaleSectors::whole, int kCount>
BLOCKSCALE_DEVICE void store_scales_from(const QuantizeParams& p, int64_t offset,
                                         const uint32_t (&stored)[kCount]) {
  if (has_byte_scales<kConfig>(p)) {
    store_scales<uint8_t, kSectors>(p, offset, stored);
  } else {
    store_scales<uint32_t, kSectors>(p, offset, stored);
  }
}

/// Offset of a scale of a matrix.
BLOCKSCALE_DEVICE int64_t scale_offset_of(const QuantizeParams& p, uint32_t matrix,
                                          uint32_t grid_row, uint32_t grid_column) {
  return matrix * p.scale_batch_stride +
         scale_offset(p.layout, grid_row, grid_column, p.scale_leading_stride);
}

/// Stores kCount scales of a row of the grid from a column on, a multiple of kCount.
template <QuantizeConfig kConfig, ScaleSectors kSectors = ScaleSectors::whole, int kCount>
BLOCKSCALE_DEVICE void store_scales_at(const QuantizeParams& p, uint32_t matrix, uint32_t grid_row,
                                       uint32_t grid_column, const uint32_t (&stored)[kCount]) {
  store_scales_from<kConfig, kSectors>(p, scale_offset_of(p, matrix, grid_row, grid_column),
                                       stored);
}

/// Stores the scales of a chunk's blocks, which are blocks of single rows. Padding of the layout
/// becomes 0.
template <QuantizeConfig kConfig, ScaleSectors kSectors = ScaleSectors::whole, int kCount>
BLOCKSCALE_DEVICE void store_scales_of_blocks(const QuantizeParams& p, const ChunkPlace& place,
                                              const BlockScale (&scales)[kCount]) {
  const uint32_t column = place.column / kConfig.block;
  if (place.row >= p.scale_rows) return;
  uint32_t stored[kCount];
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    const bool exists = place.row < p.rows && place.column + i * kConfig.block < p.k;
    stored[i] = exists ? scales[i].stored : 0u;
  }
  if (column + kCount <= p.scale_columns) {
    store_scales_at<kConfig, kSectors>(p, place.matrix, place.row, column, stored);
  } else if (column < p.scale_columns) {
    static_assert(kCount <= 2);
    const uint32_t first[1] = {stored[0]};
    store_scales_at<kConfig, kSectors>(p, place.matrix, place.row, column, first);
  }
}

}  // namespace blockscale::quantize_sm90
