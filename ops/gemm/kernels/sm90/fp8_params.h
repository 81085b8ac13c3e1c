// What the kernels of fp8_config.h are launched with.
#pragma once

#include "core/divisor.h"
#include "core/tensor_map.h"
#include "device/epilogue/linear.h"
#include "device/epilogue/quantize.h"
#include "device/ptx/global_memory.h"
#include "device/scheduler/dense_order.h"
#include "ops/gemm/kernels/params.h"
#include "ops/gemm/kernels/sm90/fp8_config.h"

namespace blockscale {

/// Which rows of B are a tile's columns, where D is quantized: a tile has two runs of kRunColumns
/// of them, with swiglu the gates and their ups.
struct TileRuns {
  uint32_t tile_rows = 2 * kRunColumns;  // of B, from tile to tile
  uint32_t first[2] = {0, kRunColumns};  // row of B of each run of the first tile
  uint32_t step = 1;                     // rows of B from column to column
  bool have_maps = false;  // each run has its own tensor map, of as many rows as y has columns

  /// The row of B of a column of a run.
  BLOCKSCALE_HD uint32_t row(uint32_t tile, uint32_t run, uint32_t column) const {
    return tile * tile_rows + first[run] + column * step;
  }
  /// Where a run's box begins in its tensor map.
  BLOCKSCALE_HD uint32_t box_row(uint32_t tile, uint32_t run) const {
    return have_maps ? tile * kRunColumns : tile * tile_rows + first[run];
  }
};

/// The tensor maps of a launch. [batch, rows, k] bytes of A and B, in boxes of 128 of k and a
/// tile's rows, or fewer if the operand has fewer. In A's last tile row they have as few as it has
/// (a_tail): to fill rows outside of A with zeros takes time; where groups are known on the device
/// alone half a tile's, for tiles that have no more; so they have in B's last tile column
/// (b_second). Where D is quantized, b and b_second have boxes of a run. D, where it is stored by
/// TMA: [batch, M, N] in boxes of 16 rows of store_bytes_of. Scales, where they are copied: [batch,
/// k, rows] of layout mn_major, else [batch, rows, k], in boxes of kScaleBoxBlocks of k, a tile's
/// rows of A (and kBoxStepA more where rows are inner and tiles begin anywhere), one of B or, where
/// rows are inner, kBoxRowsB.
enum class Fp8GemmMap : uint32_t { a, a_tail, b, b_second, d, a_scales, b_scales };
inline constexpr uint32_t kFp8GemmMaps = 7;

/// Rows of A by an index, where tiles are not known at launch: threads copy them, as no tensor copy
/// of Hopper does.
struct GatheredA {
  const int32_t* index = nullptr;  // null: rows are where they are, and tensor copies bring them
  const uint8_t* values = nullptr;
  int64_t row_stride = 0;  // bytes, a multiple of 16 as the address and k are
  uint32_t rows = 0;       // of A; a row that is none of them is zeros
  uint32_t k = 0;

  /// The row of A, or kNone.
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  BLOCKSCALE_DEVICE uint32_t row(uint32_t of_product) const {
    const auto from = static_cast<uint32_t>(ptx::ld_global(index + of_product));
    return from < rows ? from : kNone;
  }
};

/// All but the order of the tiles.
struct alignas(64) Fp8GemmParts {
  TensorMap maps[kFp8GemmMaps];

  BLOCKSCALE_HD const TensorMap* map(Fp8GemmMap which) const {
    return maps + static_cast<uint32_t>(which);
  }

  GemmScales a_scales, b_scales;
  GatheredA gather;
  LinearEpilogue epilogue;
  QuantizingEpilogue quantize;  // where D is quantized, as `runs`
  TileRuns runs;
  // The order is that of groups of 2^log2_sub_tiles tiles side by side, which one block computes in
  // turn; the first one of a row is number first_n of D's.
  uint32_t log2_sub_tiles = 0;
  uint32_t first_n = 0;
  Divisor split;              // blocks of a cluster, which divide K
  uint32_t k_blocks = 0;      // of 128, the last may be ragged
  uint32_t split_blocks = 0;  // k-blocks of each block of a cluster, but the last ones
  uint32_t stages = 0;
  uint32_t a_bytes = 0;  // copied to a stage, and in the last tile row
  uint32_t a_tail_bytes = 0;
  uint32_t b_bytes = 0;  // the same of B, and in the last tile column
  uint32_t b_tail_bytes = 0;
  uint32_t a_scale_box_rows = 0;   // of a box of A's scales
  uint32_t b_scale_box_bytes = 0;  // of a box of B's
  bool a_batched = false;          // a matrix for each of D's, else one for all
  bool b_batched = false;
  bool b_once = false;  // few tiles read the same rows of B: these need not stay in L2
  /// The kernel before it in the stream computes other columns of the same D: this one need not
  /// wait for it to begin, but must not end before it.
  bool is_beside = false;
};

/// `Order` is that of the tiles (device/scheduler/tile.h).
template <class Order>
struct Fp8GemmParamsOf : Fp8GemmParts {
  Order order;
};

using Fp8GemmParams = Fp8GemmParamsOf<DenseOrder>;

}  // namespace blockscale
