// The kernels of grouped products: those of dense ones by the orders of groups. They are few: which
// rows a group has, and how many, is known when they run.
#pragma once

#include "ops/gemm/kernels/fp4_config.h"
#include "ops/gemm/kernels/plain_params.h"
#include "ops/gemm/kernels/sm90/fp8_config.h"

namespace blockscale {

using Fp8GroupedKernelList = Fp8GemmKernels<8>;

/// Of kFp8GemmKernels.
inline constexpr Fp8GroupedKernelList kFp8GroupedKernels = {{
    detail::by_blocks(64, 128),
    detail::by_blocks(128, 128),
    detail::copying_scales(detail::by_blocks(192, 128)),
    detail::by_columns(64, 96),
    detail::by_columns(128, 128),
    detail::quantizing(detail::by_blocks(64, 128)),
    detail::quantizing(detail::by_columns(128, 128)),
    detail::quantizing(detail::by_blocks(192, 128)),
}};

/// Of kFp4GemmKernels, those of FP4 weights and this many rows of A.
inline constexpr int kFp4GroupedRows = 8;
inline constexpr struct Fp4GroupedKernelList {
  static constexpr int kCount = Fp4GemmKernelList::kFp4 / 2;

  BLOCKSCALE_HD static constexpr int of_dense(int i) { return 2 * i; }
  BLOCKSCALE_HD constexpr Fp4GemmConfig operator[](int i) const {
    return kFp4GemmKernels[of_dense(i)];
  }
  /// On Hopper or on SM120; -1 if there is none.
  BLOCKSCALE_HD constexpr int find(Recipe a, Recipe b, bool on_sm120) const {
    const int dense = kFp4GemmKernels.find(a, b, kFp4GroupedRows, false);
    for (int i = 0; i < kCount; ++i) {
      if (dense == of_dense(i) && (!on_sm120 || (*this)[i].is_pair_of_sm120())) return i;
    }
    return -1;
  }
} kFp4GroupedKernels;

/// Tiles of plain kernels that groups of rows have, each in two forms, and that groups of k have.
inline constexpr PlainTile kPlainGroupedTiles[] = {PlainTile::medium, PlainTile::small,
                                                   PlainTile::few_rows};
inline constexpr PlainTile kPlainKGroupedTiles[] = {PlainTile::medium, PlainTile::small};

}  // namespace blockscale
