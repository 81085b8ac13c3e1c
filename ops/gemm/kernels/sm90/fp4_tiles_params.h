// What the kernels of fp4_tiles_config.h are launched with.
#pragma once

#include "core/divisor.h"
#include "core/tensor_map.h"
#include "device/conversion_loss.h"
#include "device/epilogue/linear.h"
#include "device/scheduler/dense_or_grouped_order.h"
#include "ops/gemm/kernels/params.h"
#include "ops/gemm/kernels/sm90/fp4_tiles_config.h"

namespace blockscale {

/// The tensor maps of a launch. [batch, rows, bytes of k] of A, in boxes of kRowBytesA and a tile's
/// rows, and of B, in boxes of row_bytes_of_b; D, where it is stored by TMA, in boxes of 16 rows of
/// kStoreBytes.
enum class Fp4TilesMap : uint32_t { a, b, d };
inline constexpr uint32_t kFp4TilesMaps = 3;

struct alignas(64) Fp4TilesParams {
  TensorMap maps[kFp4TilesMaps];

  BLOCKSCALE_HD const TensorMap* map(Fp4TilesMap which) const {
    return maps + static_cast<uint32_t>(which);
  }

  /// Of B's codes, as few rows take them (fp4_params.h).
  GemmScales scales;
  /// Those of kScaleStages stages of a row lie side by side, at a multiple of their size.
  bool scale_vectors = false;
  TensorScale tensor_scale;  // of B
  TensorScale a_tensor_scale;
  GemmScales a_scales;  // of kernels that promote: of each kPromotedK, in f32
  bool a_batched = false, b_batched = false;
  /// Rows of D are in 16 bits and whole chunks, stay where they are, and are made of nothing but
  /// sums, A's scales, alpha, bias and gate: no sums are exchanged.
  bool is_direct = false;
  bool is_f16 = false;             // A, of a kernel for bf16
  bool fast_accumulation = false;  // in FP8: sums of stages with a row's same factor are one
  LinearEpilogue epilogue;
  uint32_t pieces = 0;        // of a row of B's codes: K is as many times kPieceK
  uint32_t k_stages = 0;      // of kStageK, the last may be ragged
  uint32_t blocks_k = 1;      // of a cluster, which divide K
  uint32_t block_stages = 0;  // of each of them, but the last ones
  uint32_t stages = 0;        // of shared memory
  /// Where operands were converted: what they have lost leaves D to the product behind this.
  ConversionLoss* loss = nullptr;
  DenseOrGroupedOrder order;  // of tiles; what it asks for lies behind Fp4TilesMemory
};

}  // namespace blockscale
