// The kernels of products of many rows of A, in bf16, f16 or FP8, with weights in FP4, or of A's
// own 16 bits: what each is compiled for, and how it divides shared memory. Shapes, strides,
// layouts of scales, D's type, what the epilogue does, stages and how K is divided are run-time
// values.
#pragma once

#include "core/recipe.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

struct Fp4TilesConfig {
  Recipe b = Recipe::nvfp4;  // or mxfp4, or plain: bf16, or f16, as a launch says
  /// A's elements, and what codes become; e4m3 beside mxfp4. A kernel for bf16 takes f16, too: a
  /// launch says which.
  Format form = Format::bf16;
  int tokens = 256;  // rows of A in a tile: wgmma's columns
  /// Products of each kPromotedK of k take A's scale of the row and these before f32 adds them up.
  bool promotes = false;

  friend BLOCKSCALE_HD constexpr bool operator==(const Fp4TilesConfig&,
                                                 const Fp4TilesConfig&) = default;
};

BLOCKSCALE_HD constexpr Fp4TilesConfig in_f16(Fp4TilesConfig c) {
  c.form = Format::f16;
  return c;
}

/// Rows of A that a tile may have; of plain B not the fewest.
inline constexpr int kFp4TilesTokens[] = {64, 128, 256};

/// Whether FP8's tensor cores multiply: each stage is summed from 0, or, with fast accumulation,
/// many of them.
BLOCKSCALE_HD constexpr bool is_in_fp8(const Fp4TilesConfig& c) {
  return c.form == Format::e4m3;
}

/// Whether B is codes with scales, which become numbers in registers. Plain B is multiplied from
/// shared memory, like A.
BLOCKSCALE_HD constexpr bool has_codes(const Fp4TilesConfig& c) {
  return !is_plain(c.b);
}

namespace fp4_tiles {

/// Two warpgroups multiply 64 rows of B each, wgmma's rows; a third one loads.
inline constexpr uint32_t kMathWarps = 8;
inline constexpr uint32_t kThreads = 128 + 32 * kMathWarps;

/// Scales of a row in a stage: of NVFP4 four factors, of MX two, and two scales in f32.
inline constexpr uint32_t kRowWords = 4;
inline constexpr uint32_t kFirstScale = 2;  // word, of MX
inline constexpr uint32_t kTileRows = 128;  // of B
inline constexpr uint32_t kLoadWarps = 4;   // with scales of 32 of them each

/// K of a stage in 16 bits: four instructions of 16, and pieces of 32, with which K ends. In FP8 it
/// is four of 32.
inline constexpr uint32_t kStageK = 64;
inline constexpr uint32_t kPieceK = 32;
inline constexpr uint32_t kPromotedK = kFp8BlockK;   // two stages
inline constexpr uint32_t kRowBytesA = kStageK * 2;  // as tensor copies swizzle them
inline constexpr uint32_t kRowBytesB = kStageK / 2;  // of codes

BLOCKSCALE_HD constexpr uint32_t stage_k(const Fp4TilesConfig& c) {
  return is_in_fp8(c) ? kFp8BlockK : kStageK;
}

/// Scales of so many stages are loaded together, where they lie so.
inline constexpr uint32_t kScaleStages = 4;

/// Where sums are exchanged: rows of A so many at a time, as a TileStore takes them by warps of 16.
inline constexpr uint32_t kExchangeTokens = 64;
inline constexpr uint32_t kSumRowBytes = (64 + 4) * 4;  // for stores without conflicts
inline constexpr uint32_t kStoreBytes = 128;            // of a row of D, in a warp's buffer

inline constexpr uint32_t kBlocksK[] = {1, 2, 3, 4, 8};  // that divide K: blocks of a cluster

BLOCKSCALE_HD constexpr uint32_t row_bytes_of_b(const Fp4TilesConfig& c) {
  return has_codes(c) ? stage_k(c) / 2 : kRowBytesA;
}

/// Rows of kRowWords that a row's scales in a stage take: in FP8 tables, and then factors.
BLOCKSCALE_HD constexpr uint32_t scale_rows_of(const Fp4TilesConfig& c) {
  return !has_codes(c) ? 0 : is_in_fp8(c) ? 2 : 1;
}

}  // namespace fp4_tiles

/// Blocks that one multiprocessor's registers hold, and registers as in fp8_config.h.
BLOCKSCALE_HD constexpr int blocks_per_multiprocessor(const Fp4TilesConfig& c) {
  return c.tokens == 64 && !c.promotes && !is_in_fp8(c) ? 2 : 1;
}
BLOCKSCALE_HD constexpr int math_registers(const Fp4TilesConfig& c) {
  return c.promotes ? 224 : blocks_per_multiprocessor(c) == 2 ? 104 : 232;
}
BLOCKSCALE_HD constexpr int loader_registers(const Fp4TilesConfig& c) {
  return c.promotes ? 56 : blocks_per_multiprocessor(c) == 2 ? 32 : 40;
}

/// Stages at most. Their mbarriers lie first in shared memory, then words that say whether their
/// scales have factors.
inline constexpr uint32_t kFp4TilesMostStages = 12;

/// Where everything else lies in shared memory, in bytes from its start: the stages' scales, and
/// A's of those that promote, their operands (rows of A, then of B), warps' buffers of results,
/// and, unless sums go to D directly, warpgroups' exchanges of them.
struct Fp4TilesMemory {
  static constexpr uint32_t kHaveFactors = kFp4TilesMostStages * 16;
  static constexpr uint32_t kScales = 512;

  uint32_t a_scales;
  uint32_t operands;
  uint32_t stage_bytes;
  uint32_t b_offset;  // in a stage
  uint32_t results;
  uint32_t exchange;
  uint32_t total;
};
static_assert(Fp4TilesMemory::kHaveFactors + kFp4TilesMostStages * fp4_tiles::kTileRows / 32 * 4 <=
              Fp4TilesMemory::kScales);

BLOCKSCALE_HD constexpr Fp4TilesMemory memory_of(const Fp4TilesConfig& c, uint32_t stages,
                                                 bool is_direct) {
  using namespace fp4_tiles;
  Fp4TilesMemory m{};
  m.a_scales = Fp4TilesMemory::kScales + stages * scale_rows_of(c) * kTileRows * kRowWords * 4;
  const uint32_t a_scale_bytes = c.promotes ? stages * static_cast<uint32_t>(c.tokens) * 4 : 0;
  m.operands = (m.a_scales + a_scale_bytes + 1023) / 1024 * 1024;
  m.b_offset = static_cast<uint32_t>(c.tokens) * kRowBytesA;
  m.stage_bytes = m.b_offset + kTileRows * row_bytes_of_b(c);
  m.results = m.operands + stages * m.stage_bytes;
  m.exchange = m.results + kMathWarps * 16 * kStoreBytes;
  m.total = m.exchange + (is_direct ? 0 : kMathWarps / 4 * kExchangeTokens * kSumRowBytes);
  return m;
}

inline constexpr struct Fp4TilesKernelList {
  // Those in 16 bits come first, then those in FP8, those that promote, and those of plain B.
  static constexpr int kIn16Bits = 6, kOfSums = kIn16Bits + 3, kOfCodes = kOfSums + 4,
                       kCount = kOfCodes + 2;

  BLOCKSCALE_HD constexpr Fp4TilesConfig operator[](int i) const {
    constexpr Recipe kOfB[] = {Recipe::nvfp4, Recipe::mxfp4};
    if (i >= kOfCodes) return {.b = Recipe::bf16, .tokens = kFp4TilesTokens[1 + i - kOfCodes]};
    if (i >= kOfSums) {  // of two accumulators, each of 128 rows of A at most
      const int own = i - kOfSums;
      return {.b = kOfB[own / 2], .tokens = kFp4TilesTokens[own % 2], .promotes = true};
    }
    if (i >= kIn16Bits) {
      return {.b = Recipe::mxfp4, .form = Format::e4m3, .tokens = kFp4TilesTokens[i - kIn16Bits]};
    }
    return {.b = kOfB[i / 3], .tokens = kFp4TilesTokens[i % 3]};
  }
  /// The number of a kernel; -1 if there is none. Of A in FP8 all recipes are fp8_row.
  BLOCKSCALE_HD constexpr int find(Recipe a, Recipe b, int tokens, bool promotes) const {
    for (int i = 0; i < kCount; ++i) {
      const Fp4TilesConfig c = (*this)[i];
      const bool is_in_16_bits = a == Recipe::bf16 || a == Recipe::f16;
      const bool takes = !has_codes(c)  ? a == b && is_in_16_bits
                         : is_in_fp8(c) ? b == c.b && a == Recipe::fp8_row
                                        : b == c.b && is_in_16_bits;
      if (takes && c.tokens == tokens && c.promotes == promotes) return i;
    }
    return -1;
  }
} kFp4TilesKernels;

}  // namespace blockscale
