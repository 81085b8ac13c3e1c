// The plain kernels of products: what each is compiled for and launched with.
//
// A kernel is specialised on its tile and on the type that elements are turned to. Recipes, scale
// layouts, strides, D's type and all that an epilogue does are run-time values: nine kernels serve
// every pair of operands.
#pragma once

#include "core/config.h"
#include "core/divisor.h"
#include "core/format.h"
#include "device/conversion_loss.h"
#include "device/epilogue/linear.h"
#include "device/scheduler/dense_order.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale {

struct PlainGemmConfig {
  int rows = 128;  // of a tile of D
  int columns = 128;
  int warps_m = 2;  // warps that divide a tile's rows
  int warps_n = 4;  // its columns
  int warps_k = 1;  // groups of these warps that divide K: they add up their sums at the end
  int depth = 64;   // of K, that a group decodes at a time
  int stages = 4;   // of codes on their way, at most
  /// What tensor cores multiply: bf16, or f16, where A is f16 and B's elements are f16 numbers.
  Format form = Format::bf16;
};

/// One is copied to while another is decoded.
inline constexpr uint32_t kPlainLeastStages = 2;

/// Threads that share codes and elements: all of a block, or a warp of those that divide K.
BLOCKSCALE_HD constexpr int group_threads_of(const PlainGemmConfig& c) {
  return 32 * c.warps_m * c.warps_n;
}
BLOCKSCALE_HD constexpr int threads_of(const PlainGemmConfig& c) {
  return group_threads_of(c) * c.warps_k;
}
/// Of elements: where a block multiplies one, while it decodes to the other.
BLOCKSCALE_HD constexpr uint32_t buffers_of(const PlainGemmConfig& c) {
  return c.warps_k == 1 ? 2 : 1;
}

namespace detail {
inline constexpr PlainGemmConfig kPlainTiles[] = {
    {128, 128, 4, 4, 1, 64, 4},
    {64, 64, 2, 2, 1, 64, 4},
    {32, 32, 2, 2, 1, 64, 4},
    {16, 16, 1, 1, 8, 128, 4},  // few rows: warps divide K, and wait for none but themselves
};
inline constexpr int kPlainTileCount = 4;
}  // namespace detail

/// Which of detail::kPlainTiles a kernel has.
enum class PlainTile : uint8_t { large, medium, small, few_rows };

inline constexpr struct PlainGemmKernelList {
  static constexpr int kCount = 2 * detail::kPlainTileCount;

  BLOCKSCALE_HD static constexpr int index(PlainTile tile, Format form) {
    return static_cast<int>(tile) * 2 + (form == Format::f16 ? 1 : 0);
  }
  BLOCKSCALE_HD constexpr PlainGemmConfig operator[](int i) const {
    PlainGemmConfig c = detail::kPlainTiles[i / 2];
    c.form = i % 2 == 0 ? Format::bf16 : Format::f16;
    return c;
  }
} kPlainGemmKernels;

/// What tensor cores multiply for A's and B's elements: f16, where A has f16 and f16 holds B's.
BLOCKSCALE_HD constexpr Format plain_form(Format a, Format b) {
  const bool has_f16 = a == Format::f16 && b != Format::f32 && b != Format::bf16;
  return has_f16 ? Format::f16 : Format::bf16;
}

/// Numbers of `form` whose sum an element is, exactly: bf16 has 8 significant bits, f32 24, f16 11.
BLOCKSCALE_HD constexpr uint32_t plain_parts(Format element, Format form) {
  if (form == Format::f16) return 1;
  return element == Format::f32 ? 3 : element == Format::f16 ? 2 : 1;
}
/// Products of part i of A's elements and part j of B's are left out where i + j is this or more:
/// they are at most 2.1 * 2^-24 of the elements' product.
inline constexpr uint32_t kPlainPartSum = 3;

/// A or B: rows of codes, and their scales.
struct PlainOperand {
  const uint8_t* values = nullptr;
  int64_t row_stride = 0;  // bytes
  int64_t batch_stride = 0;
  uint32_t rows = 0;
  uint32_t row_bytes = 0;  // of K codes
  Format element = Format::bf16;
  bool vectors = false;  // each row begins at a multiple of 16 bytes
  Divisor pieces;        // of 16 bytes, in a tile's part of a row
  uint32_t parts = 1;
  uint32_t stage_rows = 0;  // a tile's, or fewer if there are fewer

  GemmScales scales;  // no data: 1
  Format scale_format = Format::f32;
  uint32_t log2_block_k = 0;  // of k that share a scale; 31: all

  TensorScale tensor_scale;
};

/// All but the order of the tiles.
struct PlainGemmParts {
  PlainOperand operands[2];  // A, B
  LinearEpilogue epilogue;
  const int32_t* a_index = nullptr;  // which row of A each row is; null: that row
  uint32_t k = 0;
  uint32_t k_tiles = 0;       // of a config's depth
  uint32_t log2_segment = 5;  // codes that have one scale of each operand: 32, or 16
  uint32_t stages = 0;        // kPlainLeastStages to the config's
  bool store_pairs = false;   // two neighbouring elements of D lie at a multiple of their size
  /// The product before it leaves D to this one where that says so. Null: D is this one's.
  ConversionLoss* loss = nullptr;
};

/// `Order` is that of the tiles (device/scheduler/tile.h), which blocks take in turn. Where it is
/// not known at launch, rows of A may be gathered; a KGroupedOrder also says which k a tile has.
template <class Order>
struct PlainGemmParamsOf : PlainGemmParts {
  Order order;
};
using PlainGemmParams = PlainGemmParamsOf<DenseOrder>;

/// Where everything of a group lies in shared memory, in bytes from where its own begins: buffers
/// of decoded elements, each with A's parts and then B's, rows of a config's depth; as many of
/// scales in f32, [segment][rows of A, rows of B]; and stages of codes as they lie in memory, A's
/// and then B's.
struct PlainMemory {
  uint32_t a_part_bytes;  // of a part of an operand
  uint32_t b_part_bytes;
  uint32_t buffer_bytes;  // of decoded elements
  uint32_t scales;        // where the first buffer of scales begins
  uint32_t scale_bytes;   // of a buffer
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t b_stage;      // where B's codes begin in a stage
  uint32_t group_bytes;  // a multiple of 128
  uint32_t total;        // of all groups, and not less than their sums take at the end
};

BLOCKSCALE_HD constexpr PlainMemory memory_of(const PlainGemmConfig& c,
                                              const PlainOperand (&operands)[2], uint32_t stages) {
  const uint32_t rows = static_cast<uint32_t>(c.rows), columns = static_cast<uint32_t>(c.columns);
  const uint32_t depth = static_cast<uint32_t>(c.depth), groups = static_cast<uint32_t>(c.warps_k);
  const PlainOperand &a = operands[0], &b = operands[1];
  PlainMemory m{};
  // Where warps divide K, each has memory of its own: for the rows that there are.
  m.a_part_bytes = (buffers_of(c) == 1 ? a.stage_rows : rows) * depth * 2;
  m.b_part_bytes = columns * depth * 2;
  m.buffer_bytes = a.parts * m.a_part_bytes + b.parts * m.b_part_bytes;
  m.scales = buffers_of(c) * m.buffer_bytes;
  m.scale_bytes = (rows + columns) * (depth / 16) * 4;
  m.stages = m.scales + buffers_of(c) * m.scale_bytes;
  m.b_stage = a.stage_rows * a.pieces.divisor * 16;
  m.stage_bytes = m.b_stage + b.stage_rows * b.pieces.divisor * 16;
  m.group_bytes = (m.stages + stages * m.stage_bytes + 127) / 128 * 128;
  const uint32_t sums = groups * rows * columns * 4;
  m.total = groups * m.group_bytes > sums ? groups * m.group_bytes : sums;
  return m;
}

}  // namespace blockscale
