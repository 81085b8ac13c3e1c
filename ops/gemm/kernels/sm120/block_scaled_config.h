// The kernels of products of two operands of 8 bits or fewer with scales, for sm_120f: what each is
// compiled for, and how it divides shared memory. Compiled for the chip and emulated, never run on
// silicon. Shapes, strides, layouts of scales, D's type, what the epilogue does and stages are
// run-time values.
#pragma once

#include "core/recipe.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

/// The recipes say elements and scales. FP8's stand for all with scales in f32 that hold for each
/// 128 of k, or for all, and for 128 rows of B, or for all.
struct BlockScaledConfig {
  Recipe a = Recipe::nvfp4;
  Recipe b = Recipe::nvfp4;
  int rows = 128;  // of A in a tile

  friend BLOCKSCALE_HD constexpr bool operator==(const BlockScaledConfig&,
                                                 const BlockScaledConfig&) = default;
};

/// Rows of A that a tile may have.
inline constexpr int kBlockScaledRows[] = {32, 128};

namespace block_scaled {

inline constexpr uint32_t kColumns = 128;  // of D in a tile: rows of B
inline constexpr uint32_t kStageK = 128;
inline constexpr uint32_t kMathWarps = 8;
inline constexpr uint32_t kLoadWarp = kMathWarps;  // behind them
inline constexpr uint32_t kThreads = 32 * (kMathWarps + 1);

/// Scales of 128 rows, a word for each: of four blocks of k a byte each, or an f32. The word of row
/// r lies as in the layout swizzled_128x4; an f32 is that of row r of the tile.
inline constexpr uint32_t kAtomRows = 128;
inline constexpr uint32_t kAtomBytes = 4 * kAtomRows;

}  // namespace block_scaled

BLOCKSCALE_HD constexpr bool has_f32_scales(const BlockScaledConfig& c) {
  return recipe_traits(c.a).scale == Format::f32;
}

/// Of k: of an instruction, and what one word of scales holds for.
BLOCKSCALE_HD constexpr uint32_t instruction_k(const BlockScaledConfig& c) {
  return recipe_traits(c.a).element == Format::e2m1 ? 64 : 32;
}
BLOCKSCALE_HD constexpr uint32_t scale_word_k(const BlockScaledConfig& c) {
  return has_f32_scales(c) ? kFp8BlockK : 4 * static_cast<uint32_t>(recipe_traits(c.a).block_k);
}
BLOCKSCALE_HD constexpr uint32_t stage_atoms(const BlockScaledConfig& c) {
  return block_scaled::kStageK / scale_word_k(c);
}

/// Of a stage's row in shared memory: two packed e2m1 a byte, or any element in one.
BLOCKSCALE_HD constexpr uint32_t stage_row_bytes(const BlockScaledConfig& c) {
  return block_scaled::kStageK * 32 / instruction_k(c);
}

/// Of D, of a warp.
BLOCKSCALE_HD constexpr uint32_t warp_rows(const BlockScaledConfig& c) {
  return c.rows == 128 ? 32 : 16;
}
BLOCKSCALE_HD constexpr uint32_t warps_of_rows(const BlockScaledConfig& c) {
  return static_cast<uint32_t>(c.rows) / warp_rows(c);
}
BLOCKSCALE_HD constexpr uint32_t warp_columns(const BlockScaledConfig& c) {
  return block_scaled::kColumns * warps_of_rows(c) / block_scaled::kMathWarps;
}
/// Of a row of D in a warp's buffer, which has 16.
BLOCKSCALE_HD constexpr uint32_t store_bytes_of(const BlockScaledConfig& c) {
  return warp_columns(c) * 2;
}

/// Stages at most. Their mbarriers lie first in shared memory.
inline constexpr uint32_t kBlockScaledMostStages = 8;

/// Where everything else lies in shared memory, in bytes from its start: stages, each of which has
/// rows of A, rows of B, A's scales and B's; then warps' buffers of results.
struct BlockScaledMemory {
  static constexpr uint32_t kStages = 1024;

  uint32_t b_offset;  // in a stage
  uint32_t a_scales;
  uint32_t b_scales;
  uint32_t stage_bytes;
  uint32_t results;
  uint32_t total;
};

BLOCKSCALE_HD constexpr BlockScaledMemory memory_of(const BlockScaledConfig& c, uint32_t stages) {
  using namespace block_scaled;
  BlockScaledMemory m{};
  m.b_offset = static_cast<uint32_t>(c.rows) * stage_row_bytes(c);
  m.a_scales = m.b_offset + kColumns * stage_row_bytes(c);
  m.b_scales = m.a_scales + stage_atoms(c) * kAtomBytes;
  m.stage_bytes = m.b_scales + stage_atoms(c) * kAtomBytes;
  m.results = BlockScaledMemory::kStages + stages * m.stage_bytes;
  m.total = m.results + kMathWarps * 16 * store_bytes_of(c);
  return m;
}

namespace detail {
inline constexpr Recipe kBlockScaledPairs[][2] = {
    {Recipe::nvfp4, Recipe::nvfp4},           {Recipe::mxfp4, Recipe::mxfp4},
    {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3}, {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
    {Recipe::mxfp8_e4m3, Recipe::mxfp6_e3m2}, {Recipe::mxfp8_e4m3, Recipe::mxfp4},
    {Recipe::fp8_1x128, Recipe::fp8_128x128}};
inline constexpr int kBlockScaledPairCount =
    static_cast<int>(sizeof(kBlockScaledPairs) / sizeof(kBlockScaledPairs[0]));
}  // namespace detail

inline constexpr struct BlockScaledKernelList {
  static constexpr int kCount = 2 * detail::kBlockScaledPairCount;

  BLOCKSCALE_HD constexpr BlockScaledConfig operator[](int i) const {
    return {detail::kBlockScaledPairs[i / 2][0], detail::kBlockScaledPairs[i / 2][1],
            kBlockScaledRows[i % 2]};
  }
  /// The number of a kernel for elements and scales as these recipes have them; -1 if there is
  /// none.
  BLOCKSCALE_HD constexpr int find(Recipe a, Recipe b, int rows) const {
    const auto is_like = [](Recipe x, Recipe y) {
      return recipe_traits(x).element == recipe_traits(y).element &&
             recipe_traits(x).scale == recipe_traits(y).scale &&
             recipe_traits(x).family == recipe_traits(y).family;
    };
    for (int i = 0; i < kCount; ++i) {
      const BlockScaledConfig c = (*this)[i];
      if (is_like(a, c.a) && is_like(b, c.b) && c.rows == rows) return i;
    }
    return -1;
  }
} kBlockScaledKernels;

}  // namespace blockscale
