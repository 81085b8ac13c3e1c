// The kernels of block-scaled FP8 products with wgmma: what each is compiled for, what it can do,
// and how it divides shared memory. Everything else (granularity, layout and type of scales, D's
// type, bias, alpha, beta, stages, split) is a run-time value.
#pragma once

#include "ops/gemm/kernels/params.h"

namespace blockscale {

/// How B's scales meet a k-block's products.
enum class Promotion : uint8_t {
  blocks,   // one scale for 128 columns (or for all)
  columns,  // one each
};

struct Fp8GemmConfig {
  int rows = 128;     // of A and D in a tile: 64 for each warpgroup that multiplies
  int columns = 128;  // rows of B in a tile
  Promotion promotion = Promotion::blocks;
  bool quantizes = false;  // D, which is not stored otherwise: tiles of 128 columns in two runs
  /// Tensor copies bring the scales, kScaleBoxBlocks k-blocks at a time into one of kScaleBoxes
  /// places: f32 scales of A's rows and of B's blocks, as takes_copied_scales (cuda/tensor_maps.h)
  /// says. (Where rows of A are gathered a warp loads them, of any type and layout.)
  bool copies_scales = false;
  /// All scales hold for all of K and are the epilogue's: a k-block is added as it is.
  bool leaves_scales = false;

  friend BLOCKSCALE_HD constexpr bool operator==(const Fp8GemmConfig&,
                                                 const Fp8GemmConfig&) = default;
};

/// Columns of a run: rows of B, evenly spaced, that one copy brings.
inline constexpr int kRunColumns = 64;

BLOCKSCALE_HD constexpr int math_warpgroups(const Fp8GemmConfig& c) {
  return c.rows / 64;
}
/// A warpgroup loads, the others multiply.
BLOCKSCALE_HD constexpr int threads_of(const Fp8GemmConfig& c) {
  return 128 * (1 + math_warpgroups(c));
}
/// Blocks that one multiprocessor's registers hold.
BLOCKSCALE_HD constexpr int blocks_per_multiprocessor(const Fp8GemmConfig& c) {
  return c.rows == 64 ? 2 : 1;
}
/// Registers of a thread, once the loaders have given theirs up. A block has as many as it was
/// launched with: a multiple of 8 for each thread. (Whoever asks for more waits for ever.)
BLOCKSCALE_HD constexpr int launched_registers(const Fp8GemmConfig& c) {
  return 65536 / (threads_of(c) * blocks_per_multiprocessor(c)) / 8 * 8;
}
BLOCKSCALE_HD constexpr int math_registers(const Fp8GemmConfig& c) {
  constexpr int kLeastOfLoader = 40;
  return (launched_registers(c) * threads_of(c) - 128 * kLeastOfLoader) /
         (128 * math_warpgroups(c)) / 8 * 8;
}
BLOCKSCALE_HD constexpr int loader_registers(const Fp8GemmConfig& c) {
  return launched_registers(c) * (1 + math_warpgroups(c)) - math_registers(c) * math_warpgroups(c);
}

/// Whether a warpgroup begins a k-block's products before it adds up the one before, with a second
/// accumulator. Three warpgroups have no registers for it: they multiply in ping-pong, and each
/// adds while the others multiply.
BLOCKSCALE_HD constexpr bool has_two_accumulators(const Fp8GemmConfig& c) {
  return math_warpgroups(c) < 3;
}

/// Warps of the loading warpgroup that bring scales: all but the one that copies operands. Where
/// scales are copied, a warp for each 64 rows.
inline constexpr uint32_t kScaleWarps = 3;
BLOCKSCALE_HD constexpr uint32_t scale_warps_of(const Fp8GemmConfig& c) {
  return c.copies_scales ? static_cast<uint32_t>(c.rows) / 64 : kScaleWarps;
}

/// Warps of the loading warpgroup that copy rows of A, where these are gathered, and that bring
/// scales then.
inline constexpr uint32_t kGatherWarps = 3;
inline constexpr uint32_t kGatherScaleWarps = 4 - kGatherWarps;

inline constexpr uint32_t kScaleBoxBlocks = 4;
inline constexpr uint32_t kScaleBoxes = 3;
/// Where rows of B's scales are inner, a box begins at a multiple of 16 bytes and has so many of
/// them: those of a tile's blocks, wherever they lie.
inline constexpr uint32_t kBoxStepB = 4;
inline constexpr uint32_t kBoxRowsB = 8;
/// So it is with A's, of tiles that begin anywhere: a box has as many rows more.
inline constexpr uint32_t kBoxStepA = 4;
/// Room for them, after which B's lie.
BLOCKSCALE_HD constexpr uint32_t a_scale_box_bytes(const Fp8GemmConfig& c) {
  return ((static_cast<uint32_t>(c.rows) + kBoxStepA) * kScaleBoxBlocks * 4 + 127) / 128 * 128;
}

/// Small tiles have registers enough: to move them takes as long as a copy's beginning.
BLOCKSCALE_HD constexpr bool moves_registers(const Fp8GemmConfig& c) {
  return c.rows > 64 || c.columns > 64;
}

/// Scales of B that a tile takes for a k-block: a tile whose width does not divide 128 can lie on
/// two blocks, and so can two runs.
BLOCKSCALE_HD constexpr int b_scales_of(const Fp8GemmConfig& c) {
  if (c.promotion == Promotion::columns) return c.columns;
  return 128 % c.columns == 0 && !c.quantizes ? 1 : 2;
}

/// Scales of a row in a stage: A's times each of B's blocks, or A's alone.
BLOCKSCALE_HD constexpr int row_scales_of(const Fp8GemmConfig& c) {
  if (c.leaves_scales) return 0;
  return c.promotion == Promotion::columns ? 1 : b_scales_of(c);
}

/// How results go to memory: each warp that multiplies gathers 16 rows of so many bytes in shared
/// memory, and copies them as a box; so many of them may be on their way, where there is memory for
/// them beside the stages. (Who quantizes holds half of a tile there.)
BLOCKSCALE_HD constexpr int store_bytes_of(const Fp8GemmConfig& c) {
  return c.columns % 64 == 0 ? 128 : 64;
}
BLOCKSCALE_HD constexpr int store_buffers_of(const Fp8GemmConfig& c) {
  return c.rows == 128 || c.quantizes ? 2 : 1;
}

/// Stages at most. Their mbarriers lie first in shared memory, then those of boxes of scales that
/// are copied, then those of the sums of each warp that multiplies: where no run-time value moves
/// them, so that they are initialized without a look at the parameters.
inline constexpr uint32_t kMostStages = 16;
inline constexpr uint32_t kScaleBoxBarriers = kMostStages * 16;
inline constexpr uint32_t kSumBarriers = kScaleBoxBarriers + kScaleBoxes * 16;
inline constexpr uint32_t kBarrierBytes = 512;

/// Where everything else lies in shared memory, in bytes from its start: the stages' scales (of
/// rows, then of columns) and operands, the warps' buffers of results, the other blocks' sums of
/// this block's warps where a cluster divides K, and boxes of scales that are copied.
struct Fp8GemmMemory {
  uint32_t operands;
  uint32_t stage_bytes;  // A's rows of 128 bytes, then B's
  uint32_t b_offset;     // in a stage
  uint32_t results;
  uint32_t result_bytes;  // of a warp
  uint32_t scale_bytes;   // of a stage; the first one's lie behind the mbarriers
  uint32_t sums;
  uint32_t warp_sum_bytes;  // a warp's 16 rows
  uint32_t scale_boxes;     // where scales are copied: A's and then B's
  uint32_t scale_box_bytes;
  uint32_t total;
};

/// Place of a row's scale `i` in a stage: those of rows r and r + 8, which a thread has, lie side
/// by side.
BLOCKSCALE_HD constexpr uint32_t row_scale_slot(const Fp8GemmConfig& c, uint32_t row, uint32_t i) {
  const uint32_t pair = row / 16 * 8 + row % 8;
  return (pair * static_cast<uint32_t>(row_scales_of(c)) + i) * 2 + row / 8 % 2;
}

BLOCKSCALE_HD constexpr Fp8GemmMemory memory_of(const Fp8GemmConfig& c, uint32_t stages,
                                                uint32_t split) {
  const uint32_t rows = static_cast<uint32_t>(c.rows), columns = static_cast<uint32_t>(c.columns);
  Fp8GemmMemory m{};
  const uint32_t warps = static_cast<uint32_t>(4 * math_warpgroups(c));
  m.scale_bytes = (rows * static_cast<uint32_t>(row_scales_of(c)) +
                   (c.promotion == Promotion::columns ? columns : 0)) *
                  4;
  m.operands = (kBarrierBytes + stages * m.scale_bytes + 1023) / 1024 * 1024;
  m.b_offset = rows * kFp8BlockK;
  m.stage_bytes = (rows + columns) * kFp8BlockK;
  m.results = m.operands + stages * m.stage_bytes;
  m.result_bytes = static_cast<uint32_t>(16 * store_bytes_of(c) * store_buffers_of(c));
  m.sums = m.results + warps * m.result_bytes;
  m.warp_sum_bytes = 16 * columns * 4;
  m.scale_boxes = m.sums + (warps + split - 1) / split * (split - 1) * m.warp_sum_bytes;
  if (c.copies_scales) {
    constexpr uint32_t kBoxB = (kBoxRowsB * kScaleBoxBlocks * 4 + 127) / 128 * 128;
    m.scale_box_bytes = a_scale_box_bytes(c) + kBoxB;
  }
  m.total = m.scale_boxes + kScaleBoxes * m.scale_box_bytes;
  return m;
}

/// Whether the blocks of a cluster may divide K: tiles of 192 rows are for many rows, where nothing
/// is gained, and so are scales that are copied.
BLOCKSCALE_HD constexpr bool can_split_k(const Fp8GemmConfig& c) {
  return c.rows < 192 && !c.copies_scales;
}

template <int kSize>
struct Fp8GemmKernels {
  static constexpr int kCount = kSize;
  Fp8GemmConfig at[kCount];

  BLOCKSCALE_HD constexpr const Fp8GemmConfig& operator[](int i) const { return at[i]; }
  /// The number of a kernel; -1 if there is none.
  BLOCKSCALE_HD constexpr int find(const Fp8GemmConfig& config) const {
    for (int i = 0; i < kCount; ++i) {
      if (at[i] == config) return i;
    }
    return -1;
  }
};

using Fp8GemmKernelList = Fp8GemmKernels<24>;

namespace detail {

BLOCKSCALE_HD constexpr Fp8GemmConfig by_blocks(int rows, int columns) {
  return {.rows = rows, .columns = columns, .promotion = Promotion::blocks};
}
BLOCKSCALE_HD constexpr Fp8GemmConfig by_columns(int rows, int columns) {
  return {.rows = rows, .columns = columns, .promotion = Promotion::columns};
}
BLOCKSCALE_HD constexpr Fp8GemmConfig quantizing(Fp8GemmConfig config) {
  config.quantizes = true;
  return config;
}
BLOCKSCALE_HD constexpr Fp8GemmConfig copying_scales(Fp8GemmConfig config) {
  config.copies_scales = true;
  return config;
}
BLOCKSCALE_HD constexpr Fp8GemmConfig leaving_scales(Fp8GemmConfig config) {
  config.leaves_scales = true;
  return config;
}

}  // namespace detail

// (Who quantizes by columns has no registers for tiles of 64 rows, of which two blocks would share
// a multiprocessor.)
inline constexpr Fp8GemmKernelList kFp8GemmKernels = {{
    detail::by_blocks(128, 128),
    detail::by_columns(128, 128),
    detail::copying_scales(detail::by_blocks(128, 128)),
    detail::by_blocks(128, 96),
    detail::by_blocks(128, 64),
    detail::by_blocks(64, 32),
    detail::by_columns(64, 32),
    detail::by_blocks(64, 64),
    detail::by_columns(64, 64),
    detail::by_blocks(64, 96),
    detail::by_columns(64, 96),
    detail::by_blocks(64, 128),
    detail::quantizing(detail::by_blocks(128, 128)),
    detail::quantizing(detail::by_columns(128, 128)),
    detail::quantizing(detail::by_blocks(64, 128)),
    detail::by_blocks(192, 128),
    detail::by_blocks(192, 96),
    detail::by_columns(192, 96),
    detail::copying_scales(detail::by_blocks(192, 128)),
    detail::copying_scales(detail::by_blocks(192, 96)),
    detail::quantizing(detail::by_blocks(192, 128)),
    detail::leaving_scales(detail::by_blocks(128, 64)),
    detail::leaving_scales(detail::by_blocks(128, 128)),
    detail::leaving_scales(detail::by_blocks(192, 128)),
}};

}  // namespace blockscale
