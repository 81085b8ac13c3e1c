// Storing codes and scales.
#pragma once

#include "core/scale_layout.h"
#include "device/encode/codes.cuh"
#include "device/encode/scale_matrix.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/vector.h"

namespace blockscale {

/// Bytes of the widest store that the codes of a chunk are a multiple of.
BLOCKSCALE_HD constexpr int code_store_bytes(Format element, int chunk) {
  const int bytes = chunk * format_traits(element).bits / 8;
  const int divisor = bytes & -bytes;
  return divisor < 16 ? divisor : 16;
}

}  // namespace blockscale

namespace blockscale::encoding {

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

/// Stores the scales of kCount blocks side by side in a row of the grid, of which the grid has as
/// many as `left` says: the first one at `at`, in an aligned column.
template <int kCount>
BLOCKSCALE_DEVICE void store_scales_at(const ScaleMatrix& m, int64_t at, uint32_t left,
                                       const uint32_t (&stored)[kCount]) {
  static_assert(kCount <= 2);
  if constexpr (kCount == 2) {
    if (m.pairs && left >= kCount) {
      ptx::st_global(reinterpret_cast<uint16_t*>(m.data + at),
                     static_cast<uint16_t>(stored[0] | stored[1] << 8));
      return;
    }
  }
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    if (i >= left) continue;
    const int64_t to = at + i * m.column_step;
    if (m.bytes) {
      ptx::st_global(m.data + to, static_cast<uint8_t>(stored[i]));
    } else {
      ptx::st_global(reinterpret_cast<uint32_t*>(m.data) + to, stored[i]);
    }
  }
}

/// Where the scale of a column of a row lies.
BLOCKSCALE_DEVICE int64_t scale_place(const ScaleMatrix& m, uint32_t matrix, uint32_t row,
                                      uint32_t column) {
  return matrix * m.batch_stride + scale_offset(m.layout, row, column, m.leading_stride);
}

/// The same for the scales from `column` on, as far as the grid has these columns.
template <int kCount>
BLOCKSCALE_DEVICE void store_scales(const ScaleMatrix& m, uint32_t matrix, uint32_t row,
                                    uint32_t column, const uint32_t (&stored)[kCount]) {
  const uint32_t left = column < m.columns ? m.columns - column : 0;
  store_scales_at(m, scale_place(m, matrix, row, column), left, stored);
}

/// The f32 scale of a row of the grid's first column.
BLOCKSCALE_DEVICE float load_row_scale(const ScaleMatrix& m, uint32_t matrix, uint32_t row) {
  return ptx::ld_global(reinterpret_cast<const float*>(m.data) + scale_place(m, matrix, row, 0));
}

}  // namespace blockscale::encoding
