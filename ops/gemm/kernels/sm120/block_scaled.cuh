// D = epilogue(A B^T) of two operands with scales, or of groups of rows of A with a B each, by
// products of sm_120f that take scales with elements: NVFP4, MXFP4, MXFP8, MXFP8 with weights in
// MXFP6 or MXFP4, and FP8 with scales in f32. (ops/gemm/kernels/plain.cuh computes the same for any
// pair: read that first.) Compiled for the chip and emulated, never run on silicon.
//
// A block computes tiles of D, one after the other, of 128 columns and 128 rows, or 32 where A has
// few. One warp brings stages of kStageK of k (block_scaled_load.cuh): elements by tensor copies,
// and scales so that those of four blocks of k of a row are a word, as in the layout
// swizzled_128x4. Eight warps divide the tile (block_scaled_multiply.cuh): such a word is what an
// instruction takes. Scales in f32 no instruction takes: it is given ones, and sums of 128 of k are
// multiplied and added in f32.
//
// K is summed in one order, whatever the tile: a row's bits do not depend on other rows. What is
// outside of K is 0; what is outside of D is not stored, nor is what a tile has of rows behind its
// group's last, which are another's.
#pragma once

#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/grid.h"
#include "device/ptx/warp.h"
#include "ops/gemm/kernels/sm120/block_scaled_multiply.cuh"
#include "ops/gemm/kernels/tensor_scale.cuh"

namespace blockscale {
namespace block_scaled {

/// By the warps that multiply: tiles' sums, and what becomes of them.
template <BlockScaledConfig kConfig>
BLOCKSCALE_DEVICE void multiply(const Work<kConfig>& work, const Shared<kConfig>& shared,
                                uint32_t warp) {
  using Multiply = Multiplier<kConfig>;
  constexpr int kColumnsOfWarp = static_cast<int>(warp_columns(kConfig));
  using Store = TileStore<kColumnsOfWarp, static_cast<int>(store_bytes_of(kConfig)), 1,
                          DenseOrGroupedOrder::RowMap>;
  const auto& p = work.p;
  const uint32_t row = warp % warps_of_rows(kConfig) * warp_rows(kConfig);
  const uint32_t column = warp / warps_of_rows(kConfig) * warp_columns(kConfig);
  Multiply multiplier(shared, row, column);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t index = work.first; index < work.tiles.count(); index += work.step) {
    // With scales in f32, whose sums are of two kinds, no registers are left for a tile meanwhile.
    constexpr bool kFindsTileLate = has_f32_scales(kConfig);
    Tile tile = {};
    if constexpr (!kFindsTileLate) tile = work.tiles.tile(index);
    typename Multiply::Sums sums;
    multiplier.multiply(p.k_stages, tile.first_row, p.a_scales.at.data != nullptr, sums);
    if constexpr (kFindsTileLate) tile = work.tiles.tile(index);
    const RowSpan span = work.span(tile);
    const TensorFactor of_a(p.a_tensor_scale, span.matrix), of_b(p.b_tensor_scale, span.group);
    const Store store(p.epilogue, p.map(BlockScaledMap::d), shared.results(warp),
                      p.order.row_map());
    BLOCKSCALE_UNROLL
    for (uint32_t m = 0; m < Multiply::kTilesM; ++m) {
      float numbers[kColumnsOfWarp / 2];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kColumnsOfWarp / 2; ++i) {
        numbers[i] = sums.at[m][i / 4].value[i % 4];
      }
      if (p.a_tensor_scale.data != nullptr) of_a.apply(numbers);
      if (p.b_tensor_scale.data != nullptr) of_b.apply(numbers);
      store(numbers, span, tile.first_row + row + 16 * m, tile.n * kColumns + column);
    }
  }
  Store::finish();
}

}  // namespace block_scaled

template <BlockScaledConfig kConfig>
BLOCKSCALE_DEVICE void block_scaled_kernel(const BlockScaledParams& p) {
  using namespace block_scaled;
  const Shared<kConfig> shared(p.stages);
  Work<kConfig> work(p, shared.of_order());
  const uint32_t warp = device::warp_index();
  if (warp == kLoadWarp) {
    if (ptx::elect_sync()) {
      shared.ring.template init<kBlockScaledMostStages>(p.copies_words ? 1 + 32 : 1, kMathWarps);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_warp_sync(ptx::kFullMask);
  }
  ptx::barrier_sync_all();
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  work.tiles.begin();
  if (warp == kLoadWarp) {
    Loader<kConfig>(work, shared).run();
  } else {
    multiply(work, shared, warp);
  }
}

}  // namespace blockscale
