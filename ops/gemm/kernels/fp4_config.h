// The kernels of products of few rows of A, in bf16, f16 or FP8, with weights in FP4, and without
// FP8 in MXFP8: what each is compiled for, how they cut K, and how they divide shared memory.
// Shapes, strides, layouts of scales, D's type, what the epilogue does and how K is divided are
// run-time values.
#pragma once

#include "core/recipe.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

/// A lane has pieces of a row of B, 16 bytes each; four lanes' are a step, and four steps a chunk:
/// what a warp has on its way while it multiplies the one before.
inline constexpr uint32_t kFp4PieceBytes = 16;
inline constexpr uint32_t kFp4ChunkSteps = 4;
inline constexpr uint32_t kFp4ChunkPieces = 4 * kFp4ChunkSteps;

/// A kernel for A in bf16 takes f16, too, and one for B in mxfp8_e4m3 mxfp8_e5m2: a launch says
/// which (Fp4GemmParams), and the kernel has a part for each.
struct Fp4GemmConfig {
  Recipe b = Recipe::nvfp4;  // or mxfp4, or of MXFP8
  Format a = Format::bf16;   // its elements: bf16, f16, or e4m3 with FP8's scales
  int tokens = 8;            // rows of A, at most: mma.sync has 8 columns
  /// A's rows come to shared memory part by part, in each turn, where it does not hold them: on
  /// SM120, which has 99 KiB, and no clusters to divide K.
  bool refills = false;

  BLOCKSCALE_HD constexpr Fp4GemmConfig of_f16() const {
    Fp4GemmConfig c = *this;
    c.a = Format::f16;
    return c;
  }
  BLOCKSCALE_HD constexpr Fp4GemmConfig of_e5m2() const {
    Fp4GemmConfig c = *this;
    c.b = Recipe::mxfp8_e5m2;
    return c;
  }
  /// What elements of both become.
  BLOCKSCALE_HD constexpr Format form() const { return a == Format::f16 ? a : Format::bf16; }
  BLOCKSCALE_HD constexpr bool has_token_scales() const { return a == Format::e4m3; }
  /// Of A, that one load of a thread has.
  BLOCKSCALE_HD constexpr uint32_t load_elements() const { return a == Format::e4m3 ? 16 : 8; }
  BLOCKSCALE_HD constexpr Format element() const { return recipe_traits(b).element; }
  BLOCKSCALE_HD constexpr uint32_t piece_k() const { return element() == Format::e2m1 ? 32 : 16; }
  BLOCKSCALE_HD constexpr uint32_t step_k() const { return 4 * piece_k(); }
  BLOCKSCALE_HD constexpr uint32_t chunk_k() const { return kFp4ChunkPieces * piece_k(); }
  /// Whether SM120 has kernels of the pair: of weights in FP4 beside bf16 and f16.
  BLOCKSCALE_HD constexpr bool is_pair_of_sm120() const {
    return a != Format::e4m3 && element() == Format::e2m1;
  }

  friend BLOCKSCALE_HD constexpr bool operator==(const Fp4GemmConfig&,
                                                 const Fp4GemmConfig&) = default;
};

inline constexpr uint32_t kFp4TileRows = 16;          // of B, that a warp multiplies at a time
inline constexpr uint32_t kFp4MostWarps = 16;         // of a block
inline constexpr uint32_t kFp4MostWarpsOfSm120 = 12;  // where 128 registers are too few
inline constexpr uint32_t kFp4MostBlocksK = 8;        // that divide K: blocks of a cluster

/// Where everything lies in shared memory, in bytes from its start: rows of A, of which neighbours
/// lie so that eight lanes read two of them from different banks; their scales, [step][row of A];
/// then two buffers of sums, each with those of every warp, [row of A][row of B].
struct Fp4GemmMemory {
  static constexpr uint32_t kSumRowBytes = (kFp4TileRows + 4) * 4;  // for stores without conflicts

  uint32_t token_bytes;  // of a row
  uint32_t scales;
  uint32_t sums;
  uint32_t warp_sum_bytes;
  uint32_t sum_bytes;  // of a buffer
  uint32_t total;
};
BLOCKSCALE_HD constexpr Fp4GemmMemory memory_of_fp4(const Fp4GemmConfig& config, uint32_t rows,
                                                    uint32_t chunks, uint32_t warps) {
  Fp4GemmMemory m{};
  m.token_bytes = chunks * config.chunk_k() * 2 + 64;
  m.scales = rows * m.token_bytes;
  m.sums = m.scales;
  if (config.has_token_scales()) {
    m.sums += chunks * kFp4ChunkSteps * static_cast<uint32_t>(config.tokens) * 4;
  }
  m.warp_sum_bytes = rows * Fp4GemmMemory::kSumRowBytes;
  m.sum_bytes = warps * m.warp_sum_bytes;
  m.total = m.sums + 2 * m.sum_bytes;
  return m;
}

inline constexpr struct Fp4GemmKernelList {
  // Those of FP4 come first, then of MXFP8, then SM120's.
  static constexpr int kFp4 = 8, kOfHopper = kFp4 + 2, kCount = kOfHopper + 2;

  BLOCKSCALE_HD constexpr Fp4GemmConfig operator[](int i) const {
    constexpr Recipe kOfB[] = {Recipe::nvfp4, Recipe::mxfp4, Recipe::mxfp8_e4m3};
    if (i >= kOfHopper) return {.b = kOfB[i - kOfHopper], .tokens = 16, .refills = true};
    const bool is_in_fp8 = i < kFp4 && i / 2 % 2 != 0;
    return {.b = kOfB[i / 4],
            .a = is_in_fp8 ? Format::e4m3 : Format::bf16,
            .tokens = i % 2 == 0 ? 8 : 16};
  }
  /// Whether it is SM120's. Those have 16 columns, whose products take half the time that weights
  /// take from memory there, by public figures.
  BLOCKSCALE_HD constexpr bool is_of_sm120(int i) const { return i >= kOfHopper; }
  /// The number of the kernel with the fewest columns for so many rows of A, on Hopper or on SM120;
  /// -1 if there is none.
  BLOCKSCALE_HD constexpr int find(Recipe a, Recipe b, int64_t rows, bool on_sm120) const {
    const RecipeTraits& t = recipe_traits(a);
    if (t.family != Family::plain && t.family != Family::fp8) return -1;
    const Format element = t.element == Format::f16 ? Format::bf16 : t.element;
    if (b == Recipe::mxfp8_e5m2) b = Recipe::mxfp8_e4m3;
    for (int i = 0; i < kCount; ++i) {
      const Fp4GemmConfig c = (*this)[i];
      if (on_sm120 != is_of_sm120(i)) continue;
      if (c.b == b && c.a == element && rows <= c.tokens) return i;
    }
    return -1;
  }
} kFp4GemmKernels;

}  // namespace blockscale
