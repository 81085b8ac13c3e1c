// Codes of e2m1 as e4m3, for FP8's tensor cores: each times the power of two that its block's scale
// in ue8m0 has over the least that its row's tables have room for. e4m3 has every code times 2^-5
// to 2^6, exactly, as normal numbers, so that scales need not be the same for one factor in f32 to
// be left to the sum of their products.
//
// The eight magnitudes of a block are a table of eight bytes, from which codes take theirs.
#pragma once

#include "core/format.h"
#include "device/decode/scaled_codes.cuh"
#include "device/kernel.h"
#include "device/ptx/integer.h"

namespace blockscale::decoding {

inline constexpr uint32_t kFoldedBlocks = 4;

/// Of four blocks side by side: what their tables are made of, and factors in f32 of the products
/// with each. `fit`: factors are all the same.
struct FoldedScales {
  uint32_t tables[kFoldedBlocks];
  float factors[kFoldedBlocks];
  bool fit;
};

/// The exponent that a magnitude's byte in e4m3 may have more than in the table of the least scale
/// that there is room for.
inline constexpr uint32_t kMostFolded = 11;
/// value = 2^kFoldedUnit * byte, in the table of the least scale.
inline constexpr uint32_t kFoldedUnit = 5;

/// The least and the largest of four scales.
struct ScaleRange {
  uint32_t least, most;

  BLOCKSCALE_DEVICE explicit ScaleRange(const uint32_t (&scales)[kFoldedBlocks])
      : least(scales[0]), most(scales[0]) {
    BLOCKSCALE_UNROLL
    for (const uint32_t scale : scales) {
      least = scale < least ? scale : least;
      most = scale > most ? scale : most;
    }
  }

  /// Whether tables hold them whose least scale is `first`.
  BLOCKSCALE_DEVICE bool fits(uint32_t first) const {
    return least >= first && most - first <= kMostFolded && most < 255 && first + kFoldedUnit < 255;
  }

  /// The least scale of tables that have room for others on both sides.
  BLOCKSCALE_DEVICE uint32_t first_of_middle() const {
    const uint32_t middle = (least + most) / 2;
    return middle < kMostFolded / 2 ? 0 : middle - kMostFolded / 2;
  }
};

/// By tables whose least scale is `least`. Scales that do not fit them are factors of their own:
/// their tables have the codes' values.
BLOCKSCALE_DEVICE FoldedScales fold_scales(const uint32_t (&scales)[kFoldedBlocks],
                                           uint32_t least) {
  FoldedScales folded;
  folded.fit = ScaleRange(scales).fits(least);
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < kFoldedBlocks; ++i) {
    const uint32_t exponent = folded.fit ? scales[i] - least : kFoldedUnit;
    folded.tables[i] = exponent * 0x08080808u;  // in each byte's exponent
    folded.factors[i] = ue8m0_value(folded.fit ? least + kFoldedUnit : scales[i]);
  }
  return folded;
}

/// Eight codes, of k that follow each other: `words` are four and four. `table` is a block's of
/// fold_scales.
BLOCKSCALE_DEVICE void fold_e2m1(uint32_t (&words)[2], uint32_t codes, uint32_t table) {
  // 0, 0.5, 1, 1.5 and 2, 3, 4, 6, times 2^-5; 0 stays 0.
  const uint32_t low = (0x14100800u + table) & 0xFFFFFF00u, high = 0x24201C18u + table;
  const uint32_t magnitudes = codes & 0x77777777u, even = codes << 4;
  words[0] = ptx::prmt(low, high, magnitudes) | (ptx::prmt(even, codes, 0x5140) & 0x80808080u);
  words[1] =
      ptx::prmt(low, high, magnitudes >> 16) | (ptx::prmt(even, codes, 0x7362) & 0x80808080u);
}

}  // namespace blockscale::decoding
