// What the kernels of block_scaled_config.h are launched with.
#pragma once

#include "core/tensor_map.h"
#include "device/epilogue/linear.h"
#include "device/scheduler/dense_or_grouped_order.h"
#include "ops/gemm/kernels/params.h"
#include "ops/gemm/kernels/sm120/block_scaled_config.h"

namespace blockscale {

/// The tensor maps of a launch. [batch, rows, k] of A and of B, in boxes of a tile's rows and
/// kStageK of k: bytes, or elements that lie in a byte each in shared memory; D, where it is stored
/// by TMA, in boxes of 16 rows of store_bytes_of. A group has a matrix of B.
enum class BlockScaledMap : uint32_t { a, b, d };
inline constexpr uint32_t kBlockScaledMaps = 3;

/// How the scales of an operand reach shared memory.
struct BlockScaledScales {
  GemmScales at;       // no data: 1, of scales in f32
  bool atoms = false;  // they lie there as they are in memory: copied together, else word by word,
                       // as are those of groups' rows, which begin anywhere in an atom
};

struct alignas(64) BlockScaledParams {
  TensorMap maps[kBlockScaledMaps];

  BLOCKSCALE_HD const TensorMap* map(BlockScaledMap which) const {
    return maps + static_cast<uint32_t>(which);
  }

  BlockScaledScales a_scales, b_scales;
  TensorScale a_tensor_scale, b_tensor_scale;
  bool a_batched = false, b_batched = false;
  bool copies_words = false;  // of any scales, in any stage
  LinearEpilogue epilogue;
  uint32_t k_stages = 0;      // of kStageK, the last may be ragged
  uint32_t whole_stages = 0;  // those that are not
  uint32_t scale_blocks = 0;  // of k, which have a byte, or an f32, of a row each
  uint32_t stages = 0;        // of shared memory
  DenseOrGroupedOrder order;  // of tiles; what it asks for lies behind BlockScaledMemory
};

}  // namespace blockscale
