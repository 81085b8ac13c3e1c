// The kernels of grouped products: those of dense ones by the orders of groups. They are few: which
// rows a group has, and how many, is known when they run.
#pragma once

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

/// Tiles of plain kernels that groups of rows have, each in two forms, and that groups of k have.
inline constexpr PlainTile kPlainGroupedTiles[] = {PlainTile::medium, PlainTile::small,
                                                   PlainTile::few_rows};
inline constexpr PlainTile kPlainKGroupedTiles[] = {PlainTile::medium, PlainTile::small};

}  // namespace blockscale
